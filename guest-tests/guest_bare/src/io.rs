//! What needs `unsafe`: ports, device registers, and memory by its address.
//!
//! The VMM maps all RAM and device memory below 4 GiB at its own address and allows all ports. Callers pass addresses
//! that came from it: the free memory of the boot information, configuration space, and BARs.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use bare_abi::{BootInfo, MAGIC, PORT_EXIT, PORT_EXITS, PORT_HALT, PORT_SERIAL, PORT_SLEEP, VERSION};

/// Writes a port.
fn out(port: u16, value: u32) {
    // SAFETY: all ports are allowed, and those of this module have no effect on memory of the program.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) };
}

/// Ends the machine.
pub fn exit(status: u32) -> ! {
    out(PORT_EXIT, status);
    rest_for_ever()
}

/// Never returns and costs nothing.
pub fn rest_for_ever() -> ! {
    loop {
        out(PORT_HALT, 0);
    }
}

/// Rests for some microseconds; 0 only lets others run.
pub fn sleep(microseconds: u32) {
    out(PORT_SLEEP, microseconds);
}

/// Sends bytes over the first serial port.
pub fn serial(bytes: &[u8]) {
    // SAFETY: the instruction reads the bytes of the slice and nothing else.
    unsafe {
        asm!(
            "rep outsb",
            in("dx") PORT_SERIAL, inout("rcx") bytes.len() => _, inout("rsi") bytes.as_ptr() => _,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// The boot information. Ends the machine if it is of another interface.
pub fn boot_info(address: u64) -> BootInfo {
    // SAFETY: the VMM passes the address of the structure in RAM.
    let info = unsafe { (address as *const BootInfo).read() };
    if (info.magic, info.version) == (MAGIC, VERSION) { info } else { exit(2) }
}

/// The command line.
pub fn command_line(info: &BootInfo) -> &'static [u8] {
    // SAFETY: the VMM puts it there before the start, outside the free memory, and nobody writes to it later.
    unsafe { core::slice::from_raw_parts(info.cmdline as *const u8, info.cmdline_len as usize) }
}

/// The next byte that came over the first serial port.
pub fn serial_byte() -> Option<u8> {
    const LINE_STATUS: u16 = PORT_SERIAL + 5;
    const DATA_READY: u8 = 1;
    (input(LINE_STATUS) & DATA_READY != 0).then(|| input(PORT_SERIAL))
}

/// Exits of this CPU so far, the lower half of them; `None` where KVM does not count.
pub fn exits() -> Option<u32> {
    let value: u32;
    // SAFETY: all ports are allowed, and this one has no effect.
    unsafe {
        asm!("in eax, dx", in("dx") PORT_EXITS, out("eax") value, options(nomem, nostack, preserves_flags));
    }
    (value != u32::MAX).then_some(value)
}

/// Reads a port.
fn input(port: u16) -> u8 {
    let value: u8;
    // SAFETY: all ports are allowed, and those of this module have no effect on memory of the program.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// The time stamp counter.
pub fn time_stamp() -> u64 {
    // SAFETY: the instruction is there in 64-bit mode and allowed in ring 3.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads a 32-bit register.
pub fn read_register(address: u64) -> u32 {
    // SAFETY: the address is one of a device register, aligned.
    unsafe { (address as *const u32).read_volatile() }
}

/// Writes a 32-bit register, after everything written to memory before.
pub fn write_register(address: u64, value: u32) {
    core::sync::atomic::fence(Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { (address as *mut u32).write_volatile(value) };
}

/// Copies out of memory that the device may have written.
pub fn read_memory(address: u64, bytes: &mut [u8]) {
    core::sync::atomic::fence(Ordering::SeqCst);
    // SAFETY: the range is one of pages given out by this program, none of which a reference points to.
    unsafe { core::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
}

/// Copies into memory that the device may read.
pub fn write_memory(address: u64, bytes: &[u8]) {
    // SAFETY: as above.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Sets memory to zero.
pub fn zero_memory(address: u64, length: usize) {
    // SAFETY: as above.
    unsafe { core::ptr::write_bytes(address as *mut u8, 0, length) };
}

/// Loads a word that the device writes.
pub fn load(address: u64) -> u32 {
    // SAFETY: as above, and the address is aligned.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire)
}

/// Stores a word that the device reads, after everything written before.
pub fn store(address: u64, value: u32) {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value, Ordering::SeqCst);
}
