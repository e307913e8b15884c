//! The device model's machine as one for the cases.

use std::time::Duration;

use device_model::net::MacAddr;
use guest_cases::Machine;
use pvrdma::test_utils::Guest;
use pvrdma_driver::Platform;
use pvrdma_spec::register::Register;

/// The model's machine with time that passes while a case waits.
pub struct Virtual(pub Guest, pub MacAddr);

impl Machine for Virtual {
    fn settle(&self) {
        let next = self.0.serve();
        if !next.more {
            self.0.pass(Duration::from_micros(50));
        }
    }

    fn spin(&self) {
        if !self.0.serve().more {
            self.0.pass(Duration::from_micros(1));
        }
    }

    fn exits(&self) -> Option<u32> {
        Some(self.0.stops() as u32)
    }

    fn mac(&self) -> [u8; 6] {
        self.1.0
    }
}

impl Platform for Virtual {
    fn read_register(&self, register: Register) -> u32 {
        self.0.read_register(register)
    }

    fn write_register(&self, register: Register, value: u32) {
        self.0.write_register(register, value);
    }

    fn ring(&self, page: u32, offset: u64, value: u32) {
        self.0.ring(page, offset, value);
    }

    fn doorbell_pfn(&self) -> u64 {
        self.0.doorbell_pfn()
    }

    fn wait_response(&self) -> bool {
        self.0.wait_response()
    }

    fn alloc_page(&self) -> u64 {
        self.0.alloc_page()
    }

    fn free_page(&self, page: u64) {
        self.0.free_page(page);
    }

    fn read(&self, address: u64, bytes: &mut [u8]) {
        self.0.read(address, bytes);
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.0.write(address, bytes);
    }

    fn load(&self, address: u64) -> u32 {
        self.0.load(address)
    }

    fn store(&self, address: u64, value: u32) {
        self.0.store(address, value);
    }
}
