//! The cases against the device model and the engine in this process, under virtual time.

mod common;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use common::Virtual;
use device_model::net::{Link, MacAddr};
use guest_cases::cases;
use pvrdma::Config;
use pvrdma::test_utils::{Machine as Model, MachineConfig};
use pvrdma_driver::Driver;
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

#[test]
fn every_case_holds_in_process() {
    let config = MachineConfig { device: Config::new(MAC), ram: 32 << 20, ..MachineConfig::default() };
    let guest = Model::boot(config, |ram| {
        Box::new(RoceProvider::new(RoceConfig::new(MAC), ram, Arc::new(NoLink)).expect("engine starts"))
    });
    guest.device.allow_polling(guest.now(), true);
    let driver = Driver::probe(Virtual(guest, MAC), version::QP_HANDLE).expect("driver binds");
    for case in cases() {
        if let Err(reason) = (case.run)(&driver) {
            panic!("{}: {reason}", case.name);
        }
    }
    let guest = driver.remove().0;
    guest.check_free_pages();
}
