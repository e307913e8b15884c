//! The cases against the device model and the engine in this process, under virtual time.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use device_model::net::{Link, MacAddr};
use guest_cases::{Machine, cases};
use pvrdma::Config;
use pvrdma::test_utils::{Guest, Machine as Model, MachineConfig};
use pvrdma_driver::{Driver, Platform};
use pvrdma_spec::register::Register;
use pvrdma_spec::version;
use roce::{RoceConfig, RoceProvider};

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

/// A cable that leads nowhere: these cases talk to themselves.
struct NoLink;

impl Link for NoLink {
    fn send(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        1500
    }
}

/// The model's machine with time that passes while a case waits.
struct Virtual(Guest);

impl Machine for Virtual {
    fn settle(&self) {
        let next = self.0.serve();
        if !next.more {
            self.0.pass(Duration::from_micros(50));
        }
    }

    fn mac(&self) -> [u8; 6] {
        MAC.0
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

#[test]
fn every_case_holds_in_process() {
    let config = MachineConfig { device: Config::new(MAC), ram: 32 << 20, ..MachineConfig::default() };
    let guest = Model::boot(config, |ram| {
        Box::new(RoceProvider::new(RoceConfig::new(MAC), ram, Arc::new(NoLink)).expect("engine starts"))
    });
    let driver = Driver::probe(Virtual(guest), version::QP_HANDLE).expect("driver binds");
    for case in cases() {
        if let Err(reason) = (case.run)(&driver) {
            panic!("{}: {reason}", case.name);
        }
    }
    let guest = driver.remove().0;
    guest.check_free_pages();
}
