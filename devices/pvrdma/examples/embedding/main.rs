//! Another virtual machine monitor's view of [`pvrdma`].
//!
//! This program is a monitor that shares nothing with Verbena's own: it has a memory type of its own ([`memory`]), waits for
//! events with `mio` on a thread of its own ([`event_loop`]), and has neither KVM nor a PCI bus. In place of a guest it runs a
//! driver that pokes at registers and rings ([`guest`]): the cases that are also run in process and in bare guests.
//! `docs/embedding.md` explains what is done here and why.
//!
//!     cargo run -p pvrdma --example embedding

#![forbid(unsafe_code)]

mod event_loop;
mod guest;
mod memory;

use std::error::Error;
use std::sync::Arc;

use device_model::doorbell::NoDoorbells;
use device_model::net::{Link, MacAddr};
use pci::Device;
use pvrdma::{Bells, Config, Parts, Pvrdma};
use pvrdma_driver::Driver;
use pvrdma_spec::version;
use roce::{RoceConfig, RoceProvider};

use crate::event_loop::{EventLoop, Events, MonotonicClock, Wake};
use crate::guest::{Guest, Pending};
use crate::memory::FlatMemory;

/// The port's Ethernet address.
const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0xe, 0xb, 1]);
/// Bytes of guest memory.
const MEMORY: usize = 32 << 20;
/// IP packets that fit the port.
const MTU: u16 = 1500;

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// Makes a machine with one device and runs every case on it.
fn run() -> Result<(), Box<dyn Error>> {
    let (port, _cable) = host_io::pair::pair(MTU)?;
    let link: Arc<dyn Link> = Arc::new(port);
    let memory = Arc::new(FlatMemory::new(MEMORY)?);
    let interrupts = Arc::new(Pending::default());
    let (work, group) = (Arc::new(Wake::new()?), Arc::new(Wake::new()?));
    let clock = MonotonicClock::start();

    let parts = Parts {
        provider: Box::new(RoceProvider::new(RoceConfig::new(MAC), memory.clone(), link.clone())?),
        ram: memory.clone(),
        interrupts: interrupts.clone(),
        // A monitor on KVM registers ioeventfds here. Without them every doorbell is an ordinary register write.
        doorbells: Arc::new(NoDoorbells),
        bells: Bells { work: work.clone(), groups: vec![group.clone()], unread: Arc::new(Wake::new()?) },
        clock: Box::new(move || clock.now()),
        // The function's driver asks whether the network interface beside it is up. There is none, so it is.
        interface_up: Box::new(|| true),
    };
    let device = Arc::new(Pvrdma::new(Config::new(MAC), parts)?);
    device.set_bus_master(true);

    let events = Events { device: device.clone(), link, work, groups: vec![group], clock };
    let io_thread = EventLoop::start(events)?;

    let guest = Guest::new(device, memory, interrupts, MAC);
    let driver = Driver::probe(guest, version::QP_HANDLE).map_err(|error| format!("{error:?}"))?;
    for case in guest_cases::cases() {
        (case.run)(&driver).map_err(|reason| format!("{}: {reason}", case.name))?;
        println!("{} ok", case.name);
    }
    driver.remove();
    io_thread.stop()?;
    Ok(())
}

#[test]
fn every_case_holds_in_a_foreign_monitor() {
    run().unwrap();
}
