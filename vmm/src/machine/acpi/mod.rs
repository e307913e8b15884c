//! ACPI tables: what a stock kernel needs to find CPUs, interrupts, the PCI bus, serial ports and the power switch.

mod dsdt;
mod fadt;
mod madt;

use acpi_tables::facs::FACS;
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use device_model::ram::Ram;
use pci::Windows;
use vm_memory::{Bytes, GuestAddress};

use super::layout::{ACPI_TABLES, ECAM, HIGH_RAM};
use crate::error::{Error, Result};

const OEM_ID: [u8; 6] = *b"VRBENA";
const OEM_TABLE_ID: [u8; 8] = *b"VERBENA ";
const OEM_REVISION: u32 = 1;
/// The firmware control structure wants this much; the other tables do with less.
const ALIGNMENT: u64 = 64;

/// Writes all tables for a machine of `cpus` CPUs and returns the address of the root pointer.
///
/// # Errors
///
/// When they do not fit the memory set aside for them.
pub fn write(ram: &Ram, cpus: u8, windows: &Windows) -> Result<u64> {
    let mut tables = Tables { ram, next: ACPI_TABLES };
    // The root pointer lies first, where a guest that searches for it looks; its size is known before its contents.
    let rsdp = tables.reserve(Rsdp::len())?;
    let facs = tables.add(&FACS::new())?;
    let dsdt = tables.add_bytes(dsdt::build(windows)?.as_slice())?;
    let fadt = tables.add(&fadt::build(facs, dsdt))?;
    let madt = tables.add_bytes(madt::build(cpus).as_slice())?;
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(ECAM.base, 0, 0, 0);
    let mcfg = tables.add(&mcfg)?;
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    [fadt, madt, mcfg].into_iter().for_each(|table| xsdt.add_entry(table));
    let xsdt = tables.add(&xsdt)?;
    tables.put(rsdp, &bytes(&Rsdp::new(OEM_ID, xsdt)))?;
    Ok(rsdp)
}

/// Lays tables out one after the other.
struct Tables<'a> {
    ram: &'a Ram,
    next: u64,
}

impl Tables<'_> {
    fn reserve(&mut self, length: usize) -> Result<u64> {
        let address = self.next.next_multiple_of(ALIGNMENT);
        self.next = address + length as u64;
        if self.next > HIGH_RAM {
            return Err(Error::Failure("The ACPI tables do not fit: give fewer CPUs".to_owned()));
        }
        Ok(address)
    }

    fn add(&mut self, table: &dyn Aml) -> Result<u64> {
        self.add_bytes(&bytes(table))
    }

    fn add_bytes(&mut self, table: &[u8]) -> Result<u64> {
        let address = self.reserve(table.len())?;
        self.put(address, table)?;
        Ok(address)
    }

    fn put(&self, address: u64, table: &[u8]) -> Result<()> {
        self.ram
            .write_slice(table, GuestAddress(address))
            .map_err(|e| Error::Failure(format!("Failed to write the ACPI tables: {e}")))
    }
}

/// The encoding of a table.
fn bytes(table: &dyn Aml) -> Vec<u8> {
    struct Sink(Vec<u8>);
    impl AmlSink for Sink {
        fn byte(&mut self, byte: u8) {
            self.0.push(byte);
        }
    }
    let mut sink = Sink(Vec::new());
    table.to_aml_bytes(&mut sink);
    sink.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::layout::pci_windows;

    struct Table(Vec<u8>);

    impl Table {
        fn read(ram: &Ram, address: u64) -> Self {
            let length: u32 = ram.read_obj(GuestAddress(address + 4)).unwrap();
            let mut table = vec![0; length as usize];
            ram.read_slice(&mut table, GuestAddress(address)).unwrap();
            Self(table)
        }

        fn is_sound(&self) -> bool {
            self.0.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
        }

        fn u64(&self, offset: usize) -> u64 {
            u64::from_le_bytes(self.0[offset..offset + 8].try_into().unwrap())
        }
    }

    #[test]
    fn every_table_is_reachable_from_the_root_and_its_sum_is_zero() {
        let ram = Ram::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap();
        let rsdp = write(&ram, 254, &pci_windows(1 << 30, 40).unwrap()).unwrap();
        let mut root = vec![0; Rsdp::len()];
        ram.read_slice(&mut root, GuestAddress(rsdp)).unwrap();
        let root = Table(root);
        assert!(root.is_sound() && root.0.starts_with(b"RSD PTR "));
        let xsdt = Table::read(&ram, root.u64(24));
        assert!(xsdt.is_sound());
        let tables: Vec<_> =
            (36..xsdt.0.len()).step_by(8).map(|at| Table::read(&ram, xsdt.u64(at))).collect();
        let names: Vec<_> = tables.iter().map(|table| &table.0[..4]).collect();
        assert_eq!(names, [b"FACP", b"APIC", b"MCFG"]);
        assert!(tables.iter().all(Table::is_sound));
        let dsdt = Table::read(&ram, tables[0].u64(140));
        assert!(dsdt.is_sound() && dsdt.0.starts_with(b"DSDT"));
    }
}
