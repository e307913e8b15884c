//! The machine under the test driver: a PCI function, pages of RAM, and a clock to wait by.

use alloc::vec::Vec;
use core::cell::RefCell;

use guest_cases::Machine;
use pvrdma_driver::Platform;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::register::{BAR_REGISTERS, BAR_UAR, Register, Vector};

use crate::io;
use crate::pci::Function;

const VENDOR: u16 = 0x15ad;
const RDMA_DEVICE: u16 = 0x0820;
/// Where the doorbells go: the VMM places this BAR above 4 GiB, where a bare guest has nothing mapped. It places what
/// belongs below from the start of device memory, at 3 GiB, so this is free.
const DOORBELLS: u32 = 0xd000_0000;
/// Times a response is looked for, a rest in between.
const PATIENCE: u32 = 10_000;
/// One rest, in microseconds.
const REST: u32 = 100;

/// A machine with one RDMA device.
pub struct BareMachine {
    registers: u64,
    doorbells: u64,
    pages: RefCell<Pages>,
}

/// RAM that is given out in pages.
struct Pages {
    next: u64,
    end: u64,
    free: Vec<u64>,
}

impl BareMachine {
    /// Finds the device; free RAM from `free` to `end` becomes pages.
    pub fn find(ecam: u64, free: u64, end: u64) -> Result<Self, &'static str> {
        let function = Function::find(ecam, VENDOR, RDMA_DEVICE).ok_or("There is no 15ad:0820")?;
        function.move_bar(BAR_UAR, DOORBELLS);
        function.enable();
        let (registers, doorbells) = (function.bar(BAR_REGISTERS), function.bar(BAR_UAR));
        if registers == 0 || doorbells == 0 {
            return Err("The BARs of 15ad:0820 have no addresses");
        }
        let pages = Pages { next: free.next_multiple_of(PAGE_SIZE), end, free: Vec::new() };
        Ok(Self { registers, doorbells, pages: RefCell::new(pages) })
    }
}

impl Machine for BareMachine {
    fn settle(&self) {
        io::sleep(REST);
    }

    fn spin(&self) {
        core::hint::spin_loop();
    }

    fn exits(&self) -> Option<u32> {
        io::exits()
    }

    fn mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.read_register(Register::MacLow).to_le_bytes();
        let [e, f, ..] = self.read_register(Register::MacHigh).to_le_bytes();
        [a, b, c, d, e, f]
    }
}

impl Platform for BareMachine {
    fn read_register(&self, register: Register) -> u32 {
        io::read_register(self.registers + register.offset())
    }

    fn write_register(&self, register: Register, value: u32) {
        io::write_register(self.registers + register.offset(), value);
    }

    fn ring(&self, page: u32, offset: u64, value: u32) {
        io::write_register(self.doorbells + u64::from(page) * PAGE_SIZE + offset, value);
    }

    fn doorbell_pfn(&self) -> u64 {
        self.doorbells / PAGE_SIZE
    }

    /// Looks for the cause of the interrupt, which the device keeps also when nobody takes interrupts.
    fn wait_response(&self) -> bool {
        for _ in 0..PATIENCE {
            if self.read_register(Register::Icr) & Vector::Response.bit() != 0 {
                return true;
            }
            io::sleep(REST);
        }
        false
    }

    fn alloc_page(&self) -> u64 {
        let mut pages = self.pages.borrow_mut();
        let page = pages.free.pop().unwrap_or_else(|| {
            let page = pages.next;
            pages.next += PAGE_SIZE;
            assert!(pages.next <= pages.end, "No page is left");
            page
        });
        io::zero_memory(page, PAGE_SIZE as usize);
        page
    }

    fn free_page(&self, page: u64) {
        self.pages.borrow_mut().free.push(page);
    }

    fn read(&self, address: u64, bytes: &mut [u8]) {
        io::read_memory(address, bytes);
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        io::write_memory(address, bytes);
    }

    fn load(&self, address: u64) -> u32 {
        io::load(address)
    }

    fn store(&self, address: u64, value: u32) {
        io::store(address, value);
    }
}
