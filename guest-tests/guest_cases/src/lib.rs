//! Tests of the RDMA device, written once for every machine that has one.
//!
//! A case drives the device through the test driver ([`pvrdma_driver`]) and needs nothing but a [`Machine`]. The tests
//! of this crate run the cases against the device model in process, under virtual time; `guest_bare` runs the same
//! cases in a guest without an operating system, through the whole VMM.
//!
//! All traffic of the cases is from the device to itself, so that one machine is enough. [`load`] is what two machines do
//! to each other.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod load;
mod node;
mod objects;
pub mod polling;
mod traffic;

use alloc::string::String;

use pvrdma_driver::{Driver, Platform};

/// A machine with an RDMA device that is at work while the driver waits.
pub trait Machine: Platform {
    /// Lets the device work. A case calls it again and again until what it waits for is there.
    fn settle(&self);

    /// Lets the device work, if that is possible without stopping the CPU: the device may be at work by itself.
    fn spin(&self);

    /// Times the CPU has been stopped so far; wraps. `None` where nobody counts.
    fn exits(&self) -> Option<u32>;

    /// Ethernet address of the device.
    fn mac(&self) -> [u8; 6];
}

/// What a case gives: nothing, or what was not as it should be.
pub type Outcome = Result<(), String>;

/// One test.
pub struct Case<M> {
    /// Its name.
    pub name: &'static str,
    /// Runs it on a device that is up; it leaves nothing behind.
    pub run: fn(&Driver<M>) -> Outcome,
}

/// All tests.
pub fn cases<M: Machine>() -> [Case<M>; 8] {
    [
        Case { name: "port-is-described", run: objects::port_is_described },
        Case { name: "objects-come-and-go", run: objects::come_and_go },
        Case { name: "sends-arrive", run: traffic::sends_arrive },
        Case { name: "writes-and-reads-move-bytes", run: traffic::writes_and_reads_move_bytes },
        Case { name: "atomics-are-exact", run: traffic::atomics_are_exact },
        Case { name: "armed-queue-notifies", run: traffic::armed_queue_notifies },
        Case { name: "busy-process-stops-no-cpu", run: polling::busy_process_stops_no_cpu },
        Case { name: "polling-and-waiting-in-one-process", run: polling::slice },
    ]
}
