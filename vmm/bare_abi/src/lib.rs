//! What a bare-metal test guest and the machine that starts it agree on (`verbena run --bare FILE`).
//!
//! The guest is a static ELF program linked to fixed addresses (`-static -no-pie`). Every CPU starts at its entry point
//! in 64-bit mode, **ring 3**, with all ports allowed and interrupts enabled, because ring 3 code runs at native
//! speed even where KVM is done in software. Guest-virtual and guest-physical addresses are the same; all of RAM below
//! 4 GiB and all device memory below 4 GiB is mapped, writable and executable.
//!
//! | register | on entry |
//! |---|---|
//! | RDI | address of the [`BootInfo`] |
//! | RSI | number of the CPU, 0 for the first |
//! | RSP | top of a stack of [`STACK_SIZE`] bytes, 8 below a multiple of 16 as after a call |
//!
//! # Interrupts
//!
//! The local APIC is enabled. The interrupt descriptor table at [`BootInfo::idt`] is empty and writable: fill in an entry
//! with [`gate`] and program the vector into a device. The handler runs in ring 3 on a stack of its own, so the
//! red zone is safe; it writes 0 to [`APIC_EOI`] and returns with IRETQ. `sti`, `cli` and `hlt` are not available.
//! Where KVM is done in software, IRETQ does not enable interrupts again; [`PORT_HALT`] and [`PORT_SLEEP`] do, so that a
//! guest which rests now and then gets all of them everywhere.
//!
//! # Ports
//!
//! An idle CPU must not spin: it uses [`PORT_HALT`] or [`PORT_SLEEP`]. [`PORT_EXIT`] ends the machine. [`PORT_EXITS`] says
//! how often the CPU has left the guest.

#![no_std]
#![forbid(unsafe_code)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of every [`BootInfo`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"VRBNBARE");

/// Version of this interface.
pub const VERSION: u64 = 1;

/// Bytes of each CPU's stack.
pub const STACK_SIZE: u64 = 64 << 10;

/// OUT of any value: the CPU waits for its next interrupt, as HLT would.
pub const PORT_HALT: u16 = 0x510;

/// OUT of a 32-bit number of microseconds: the CPU rests that long; 0 lets other threads of the host run.
pub const PORT_SLEEP: u16 = 0x514;

/// OUT of a 32-bit value: ends the machine; 0 is success.
pub const PORT_EXIT: u16 = 0x518;

/// IN of a 32-bit value: the exits of this CPU up to now, the lower half of them, as KVM counts; all ones where it does not.
/// Reading it is one.
pub const PORT_EXITS: u16 = 0x51c;

/// Data register of the first serial port. REP OUTSB to it is the cheapest way to print.
pub const PORT_SERIAL: u16 = 0x3f8;

/// End-of-interrupt register of the local APIC.
pub const APIC_EOI: u64 = 0xfee0_00b0;

/// Message address that interrupts the CPU with APIC id 0; add `cpu << 12` for others.
pub const MSI_ADDRESS: u64 = 0xfee0_0000;

/// Selector of the code segment, for [`gate`].
pub const CODE_SELECTOR: u16 = 0x13;

/// Entry of the interrupt stack table that handlers use.
pub const INTERRUPT_STACK: u8 = 1;

/// What the guest is told about its machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BootInfo {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u64,
    /// Number of CPUs.
    pub cpus: u64,
    /// First byte of RAM that nothing occupies.
    pub free_start: u64,
    /// End of RAM below 4 GiB.
    pub free_end: u64,
    /// The interrupt descriptor table: 256 entries of 16 bytes.
    pub idt: u64,
    /// PCI Express configuration space of bus 0.
    pub ecam: u64,
    /// The command line, not terminated.
    pub cmdline: u64,
    /// Its length in bytes.
    pub cmdline_len: u64,
    /// Frequency of the time stamp counter in kHz; 0 if not known.
    pub tsc_khz: u64,
}

/// The descriptor of an interrupt gate to `handler`, as the two halves of an entry of the descriptor table.
pub const fn gate(handler: u64) -> [u64; 2] {
    const PRESENT_RING3_INTERRUPT_GATE: u64 = 0xee;
    let low = handler & 0xffff
        | (CODE_SELECTOR as u64) << 16
        | (INTERRUPT_STACK as u64) << 32
        | PRESENT_RING3_INTERRUPT_GATE << 40
        | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_spreads_the_handler_over_the_entry() {
        let [low, high] = gate(0x1122_3344_5566_7788);
        assert_eq!(high, 0x1122_3344);
        assert_eq!(low, 0x5566_ee01_0013_7788);
    }
}
