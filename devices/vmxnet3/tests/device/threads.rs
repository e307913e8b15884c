//! Stopping while an I/O thread is at work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pci::Device;
use vmxnet3::spec::RxMode;

use crate::driver::{Driver, Offload, Options, QUIESCE};
use crate::frames::{inbound, outbound};
use crate::machine::Machine;

/// Ends the worker, also when an assertion failed.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends and receives without pause until told to end.
fn work(machine: &Machine, end: &AtomicBool) {
    let frame = inbound(1514);
    while !end.load(Ordering::Relaxed) {
        machine.nic.process_tx();
        machine.receive(&frame);
        machine.link.take();
    }
}

/// Activates, waits until the worker is at it, stops, and compares memory around a pause.
fn memory_is_still_after(stop: impl Fn(&Driver<'_>)) {
    let machine = Machine::new();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| work(&machine, &end));
        let _end = EndOnDrop(&end);
        for round in 0..15 {
            machine.nic.set_bus_master(true);
            let mut driver = Driver::prepare(&machine, Options::default());
            assert_eq!(driver.activate(), 0);
            driver.set_mode(RxMode::UNICAST);
            driver.enable_interrupts();
            for _ in 0..round {
                driver.send(0, &outbound(1514), 1, Offload::default());
            }
            while driver.poll_rx(0).is_empty() {
                thread::yield_now();
            }
            stop(&driver);
            machine.irqs.take();
            let before = machine.snapshot();
            thread::yield_now();
            assert!(machine.snapshot() == before, "memory written after the stop");
            assert!(machine.irqs.take().is_empty());
        }
    });
}

#[test]
fn nothing_moves_after_quiesce() {
    memory_is_still_after(|driver| assert_eq!(driver.get(QUIESCE), 0));
}

#[test]
fn nothing_moves_after_reset() {
    memory_is_still_after(|driver| driver.machine.nic.reset());
}

#[test]
fn nothing_moves_after_bus_mastering_ends() {
    memory_is_still_after(|driver| driver.machine.nic.set_bus_master(false));
}
