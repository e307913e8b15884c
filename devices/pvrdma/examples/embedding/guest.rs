//! What stands in for a guest: a driver's way to registers, doorbells, interrupts and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::irq::Interrupts;
use device_model::net::MacAddr;
use device_model::ram::GuestRam;
use parking_lot::Mutex;
use pci::Device;
use pvrdma::Pvrdma;
use pvrdma_driver::Platform;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::register::{BAR_REGISTERS, BAR_UAR, Register, Vector};

use crate::memory::{BASE, FlatMemory};

/// Page number at which the guest believes the doorbell pages to start.
const DOORBELL_PFN: u64 = 0xfe00_0000 / PAGE_SIZE;

/// Interrupts that have come and that nobody has looked at.
#[derive(Default)]
pub struct Pending([AtomicU64; Vector::COUNT as usize]);

impl Interrupts for Pending {
    fn signal(&self, vector: u16) {
        if let Some(count) = self.0.get(usize::from(vector)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The guest.
pub struct Guest {
    device: Arc<Pvrdma>,
    memory: Arc<FlatMemory>,
    interrupts: Arc<Pending>,
    mac: MacAddr,
    free_pages: Mutex<Vec<u64>>,
}

impl Guest {
    /// A guest to which all of `memory` belongs.
    pub fn new(device: Arc<Pvrdma>, memory: Arc<FlatMemory>, interrupts: Arc<Pending>, mac: MacAddr) -> Self {
        let pages = (BASE..memory.end()).step_by(usize::try_from(PAGE_SIZE).expect("a page is small"));
        let free_pages = Mutex::new(pages.collect());
        Self { device, memory, interrupts, mac, free_pages }
    }

    fn memory(&self) -> &dyn GuestRam {
        &*self.memory
    }
}

impl guest_cases::Machine for Guest {
    fn settle(&self) {
        std::thread::yield_now();
    }

    fn spin(&self) {
        std::thread::yield_now();
    }

    /// No CPU runs this guest.
    fn exits(&self) -> Option<u32> {
        None
    }

    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }
}

impl Platform for Guest {
    fn read_register(&self, register: Register) -> u32 {
        let mut word = [0; 4];
        self.device.read(BAR_REGISTERS, register.offset(), &mut word);
        u32::from_le_bytes(word)
    }

    fn write_register(&self, register: Register, value: u32) {
        self.device.write(BAR_REGISTERS, register.offset(), &value.to_le_bytes());
    }

    fn ring(&self, page: u32, offset: u64, value: u32) {
        self.device.write(BAR_UAR, u64::from(page) * PAGE_SIZE + offset, &value.to_le_bytes());
    }

    fn doorbell_pfn(&self) -> u64 {
        DOORBELL_PFN
    }

    fn wait_response(&self) -> bool {
        // Commands are carried out while their register is written.
        self.interrupts.0[Vector::Response as usize].swap(0, Ordering::Relaxed) > 0
    }

    fn alloc_page(&self) -> u64 {
        let page = self.free_pages.lock().pop().expect("memory is not used up");
        self.write(page, &[0; PAGE_SIZE as usize]);
        page
    }

    fn free_page(&self, page: u64) {
        self.free_pages.lock().push(page);
    }

    fn read(&self, address: u64, bytes: &mut [u8]) {
        self.memory().read(address, bytes).expect("address is RAM");
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory().write(address, bytes).expect("address is RAM");
    }

    fn load(&self, address: u64) -> u32 {
        self.memory().load_u32(address, Ordering::Acquire).expect("word is RAM")
    }

    fn store(&self, address: u64, value: u32) {
        self.memory().store_u32(address, value, Ordering::Release).expect("word is RAM");
    }
}
