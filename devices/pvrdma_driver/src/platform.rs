//! What the driver needs of the machine it runs on.

use pvrdma_spec::register::Register;

/// The machine: one function's registers, doorbell pages and interrupts, and memory that the device can reach.
pub trait Platform {
    /// Reads a register.
    fn read_register(&self, register: Register) -> u32;

    /// Writes a register.
    fn write_register(&self, register: Register, value: u32);

    /// Writes a doorbell: byte `offset` of doorbell page `page`.
    fn ring(&self, page: u32, offset: u64, value: u32);

    /// Page number of the first doorbell page as a driver would see it.
    fn doorbell_pfn(&self) -> u64;

    /// Waits for the interrupt that announces a response; `false` when none comes.
    fn wait_response(&self) -> bool;

    /// A zeroed page, by the address the device knows it by. Panics when there is none left.
    fn alloc_page(&self) -> u64;

    /// Takes a page back.
    fn free_page(&self, page: u64);

    /// Copies out of memory. The range may cross pages that follow one another.
    fn read(&self, address: u64, bytes: &mut [u8]);

    /// Copies into memory.
    fn write(&self, address: u64, bytes: &[u8]);

    /// Loads a word that the device writes.
    fn load(&self, address: u64) -> u32;

    /// Stores a word that the device reads, after everything written before.
    fn store(&self, address: u64, value: u32);
}
