//! Where things are: guest-physical addresses, I/O ports and interrupt lines.

use pci::{ECAM_SIZE, Window, Windows};

use crate::error::{Error, Result};

/// Global descriptor table of the boot CPU.
pub const GDT: u64 = 0x500;
/// Interrupt descriptor table of the boot CPU, empty.
pub const IDT: u64 = 0x540;
/// Linux boot parameters ("zero page").
pub const BOOT_PARAMS: u64 = 0x7000;
/// Top of the boot CPU's stack.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Page tables of the boot CPU: one PML4, one PDPT and four page directories.
pub const PAGE_TABLES: u64 = 0x9000;
/// Kernel command line.
pub const CMDLINE: u64 = 0x2_0000;
/// End of the RAM below the extended BIOS data area that guests may use.
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables.
pub const ACPI_TABLES: u64 = 0xe_0000;
/// Start of RAM above the legacy hole, and where kernels are loaded.
pub const HIGH_RAM: u64 = 0x10_0000;

/// End of RAM below 4 GiB, at most; device memory follows.
pub const RAM_HOLE: u64 = 0xc000_0000;
/// Start of RAM above 4 GiB.
pub const RAM_ABOVE_HOLE: u64 = 1 << 32;

/// Device memory below 4 GiB.
pub const PCI_LOW: Window = Window { base: RAM_HOLE, size: 0x2000_0000 };
/// PCI Express enhanced configuration space of bus 0.
pub const ECAM: Window = Window { base: 0xe000_0000, size: ECAM_SIZE };
/// I/O APIC.
pub const IO_APIC: u32 = 0xfec0_0000;
/// Local APICs.
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// Four pages that KVM needs on Intel CPUs: one for an identity map, three for a task state segment.
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Last three of the four.
pub const KVM_TSS: usize = 0xfffb_d000;

/// I/O ports of the serial ports.
pub const SERIAL_PORTS: [u16; 2] = [0x3f8, 0x2f8];
/// Interrupt lines of the serial ports.
pub const SERIAL_IRQS: [u32; 2] = [4, 3];
/// Port at which a guest kernel reports its panic.
pub const PANIC_PORT: u16 = 0x505;
/// ACPI PM1a event block: status and enable.
pub const PM1_EVENT: u16 = 0x600;
/// ACPI PM1a control block.
pub const PM1_CONTROL: u16 = 0x604;
/// System control interrupt of ACPI.
pub const SCI_IRQ: u32 = 9;
/// Reset control register, at the place chipsets have it.
pub const RESET_CONTROL: u16 = 0xcf9;
/// Value for [`RESET_CONTROL`] that resets the machine.
pub const RESET_VALUE: u8 = 0x06;
/// Command and status port of the keyboard controller that is not there, but pulses the reset line.
pub const KEYBOARD_COMMAND: u16 = 0x64;

/// Size of the device memory window above RAM.
const PCI_HIGH_SIZE: u64 = 1 << 36;
/// Alignment of that window.
const PCI_HIGH_ALIGN: u64 = 1 << 30;

/// The ranges of RAM for `size` bytes: up to the hole, then from 4 GiB on.
pub fn ram_ranges(size: u64) -> Vec<Window> {
    let low = size.min(RAM_HOLE);
    let mut ranges = vec![Window { base: 0, size: low }];
    if size > low {
        ranges.push(Window { base: RAM_ABOVE_HOLE, size: size - low });
    }
    ranges
}

/// Device memory windows for `ram_size` bytes of RAM and guest-physical addresses of `address_bits` bits.
///
/// # Errors
///
/// [`Error::Usage`] when RAM and device memory do not fit the CPU's addresses.
pub fn pci_windows(ram_size: u64, address_bits: u8) -> Result<Windows> {
    let limit = 1_u64.checked_shl(address_bits.into()).unwrap_or(u64::MAX);
    ram_size
        .saturating_sub(RAM_HOLE)
        .checked_add(RAM_ABOVE_HOLE)
        .and_then(|end| end.checked_next_multiple_of(PCI_HIGH_ALIGN))
        .filter(|base| base.checked_add(PCI_HIGH_SIZE).is_some_and(|end| end <= limit))
        .map(|base| Windows { low: PCI_LOW, high: Window { base, size: PCI_HIGH_SIZE } })
        .ok_or_else(|| {
            Error::Usage(format!(
                "{} GiB of memory do not fit the CPU's {address_bits} address bits: give less",
                ram_size >> 30
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_steps_over_the_hole() {
        let range = |base, size| Window { base, size };
        assert_eq!(ram_ranges(1 << 30), [range(0, 1 << 30)]);
        assert_eq!(ram_ranges(RAM_HOLE), [range(0, RAM_HOLE)]);
        assert_eq!(ram_ranges(4 << 30), [range(0, RAM_HOLE), range(RAM_ABOVE_HOLE, 1 << 30)]);
    }

    #[test]
    fn device_memory_lies_above_ram_or_is_refused() {
        assert_eq!(pci_windows(1 << 30, 40).unwrap().high.base, 4 << 30);
        assert_eq!(pci_windows((4 << 30) + 4096, 40).unwrap().high.base, 6 << 30);
        assert!(pci_windows(1 << 36, 36).is_err());
        assert!(pci_windows(u64::MAX, 52).is_err());
    }
}
