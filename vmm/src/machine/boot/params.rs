//! The Linux boot parameters ("zero page") and the memory map in them.

use device_model::ram::Ram;
use linux_loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::{Kernel, Placed};
use crate::error::{Error, Result};
use crate::machine::layout::{
    ACPI_TABLES, BOOT_PARAMS, CMDLINE, ECAM, HIGH_RAM, LOW_RAM_END, RAM_ABOVE_HOLE,
};
use crate::machine::memory::{end_of, low_ram_end};

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;
/// `type_of_loader` of loaders without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;

/// Writes the parameters of `kernel`.
pub(super) fn write(ram: &Ram, kernel: &Kernel, initramfs: Placed, rsdp: u64) -> Result<()> {
    let address_32 = |address: u64| {
        u32::try_from(address)
            .map_err(|_| Error::Failure(format!("Boot data at {address:#x} is not below 4 GiB")))
    };
    let mut params = boot_params { hdr: kernel.header, acpi_rsdp_addr: rsdp, ..Default::default() };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = address_32(CMDLINE)?;
    params.hdr.ramdisk_image = address_32(initramfs.base)?;
    params.hdr.ramdisk_size = address_32(initramfs.size)?;
    let map = memory_map(ram);
    for (slot, entry) in params.e820_table.iter_mut().zip(&map) {
        *slot = *entry;
    }
    params.e820_entries = map.len() as u8;
    ram.write_obj(params, GuestAddress(BOOT_PARAMS))
        .map_err(|e| Error::Failure(format!("Failed to write the boot parameters: {e}")))
}

/// What the guest may use of its addresses: RAM without the legacy hole, and what is not RAM but taken.
fn memory_map(ram: &Ram) -> Vec<boot_e820_entry> {
    let range =
        |start: u64, end: u64, kind: u32| boot_e820_entry { addr: start, size: end - start, r#type: kind };
    let top = ram.iter().map(end_of).max().unwrap_or(0);
    let mut map = vec![
        range(0, LOW_RAM_END, E820_RAM),
        range(ACPI_TABLES, HIGH_RAM, E820_RESERVED),
        range(HIGH_RAM, low_ram_end(ram), E820_RAM),
        range(ECAM.base, ECAM.base + ECAM.size, E820_RESERVED),
    ];
    if top > RAM_ABOVE_HOLE {
        map.push(range(RAM_ABOVE_HOLE, top, E820_RAM));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_map_is_sorted_disjoint_and_covers_ram() {
        let ram = Ram::from_ranges(&[(GuestAddress(0), 0x20_0000), (GuestAddress(RAM_ABOVE_HOLE), 0x1000)])
            .unwrap();
        let map = memory_map(&ram);
        for pair in map.windows(2) {
            let (end, next) = (pair[0].addr + pair[0].size, pair[1].addr);
            assert!(end <= next);
        }
        let usable: u64 = map.iter().filter(|entry| entry.r#type == E820_RAM).map(|entry| entry.size).sum();
        assert_eq!(usable, LOW_RAM_END + 0x10_0000 + 0x1000);
    }
}
