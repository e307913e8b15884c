//! Multiple APIC description table: CPUs and interrupt controllers.

use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;
use zerocopy::{Immutable, IntoBytes, little_endian};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::machine::interrupts::TIMER_PIN;
use crate::machine::layout::{IO_APIC, LOCAL_APIC, SCI_IRQ};

/// Table header, local APIC address and flags.
const HEADER_LENGTH: u32 = 44;
const REVISION: u8 = 5;
const LOCAL_APIC_OFFSET: usize = 36;
const FLAGS_OFFSET: usize = 40;
/// There are two 8259 interrupt controllers too.
const PCAT_COMPAT: u32 = 1;
/// Id of the I/O APIC. Its ids are a space of their own.
const IO_APIC_ID: u8 = 0;

/// An interrupt of the ISA bus that is not what ISA says.
#[repr(C, packed)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct InterruptSourceOverride {
    kind: u8,
    length: u8,
    bus: u8,
    source: u8,
    global_interrupt: little_endian::U32,
    flags: little_endian::U16,
}

impl InterruptSourceOverride {
    /// Polarity and trigger as the bus has them.
    const CONFORMS: u16 = 0;
    /// Active high, level-triggered.
    const HIGH_LEVEL: u16 = 0b1101;

    fn new(source: u32, global_interrupt: u32, flags: u16) -> Self {
        Self {
            kind: 2,
            length: 10,
            bus: 0,
            source: source as u8,
            global_interrupt: global_interrupt.into(),
            flags: flags.into(),
        }
    }
}

/// LINT1 of every CPU takes the NMI.
#[repr(C, packed)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct LocalApicNmi {
    kind: u8,
    length: u8,
    processor: u8,
    flags: little_endian::U16,
    pin: u8,
}

const NMI_ON_LINT1: LocalApicNmi =
    LocalApicNmi { kind: 4, length: 6, processor: 0xff, flags: little_endian::U16::ZERO, pin: 1 };

/// The table for `cpus` CPUs, whose APIC ids are their numbers.
pub(super) fn build(cpus: u8) -> Sdt {
    let mut madt = Sdt::new(*b"APIC", HEADER_LENGTH, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    madt.write_u32(LOCAL_APIC_OFFSET, LOCAL_APIC);
    madt.write_u32(FLAGS_OFFSET, PCAT_COMPAT);
    for cpu in 0..cpus {
        madt.append_slice(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled).as_bytes());
    }
    madt.append_slice(IoApic::new(IO_APIC_ID, IO_APIC, 0).as_bytes());
    for entry in [
        InterruptSourceOverride::new(0, TIMER_PIN, InterruptSourceOverride::CONFORMS),
        InterruptSourceOverride::new(SCI_IRQ, SCI_IRQ, InterruptSourceOverride::HIGH_LEVEL),
    ] {
        madt.append_slice(entry.as_bytes());
    }
    madt.append_slice(NMI_ON_LINT1.as_bytes());
    madt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_fill_the_table_exactly() {
        let madt = build(3);
        let mut rest = &madt.as_slice()[HEADER_LENGTH as usize..];
        let mut kinds = Vec::new();
        while let [kind, length, ..] = *rest {
            kinds.push(kind);
            rest = &rest[usize::from(length)..];
        }
        assert_eq!(kinds, [0, 0, 0, 1, 2, 2, 4]);
        assert!(rest.is_empty());
    }
}
