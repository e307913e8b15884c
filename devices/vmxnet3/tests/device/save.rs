//! The device's state, taken out and put back while the driver is at work.

use device_model::save::RestoreError;
use pci::Device;

use crate::driver::{Driver, Offload, Options};
use crate::frames::{inbound, outbound};
use crate::machine::Machine;

/// Takes the state out, and puts it back into a device that knows nothing any more.
fn round_trip(machine: &Machine) {
    let record = machine.nic.save().unwrap();
    machine.nic.reset();
    machine.nic.set_bus_master(true);
    machine.nic.restore(&record).unwrap();
}

#[test]
fn frames_go_on_in_both_directions_around_the_rings() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options { queues: 2, ..Options::default() });
    for round in 0..200 {
        let frame = outbound(60 + round);
        driver.send(1, &frame, 1, Offload::default());
        round_trip(&machine);
        machine.run_tx();
        assert_eq!(machine.link.take(), [frame]);
        assert_eq!(driver.complete_tx(1), 1);

        let frame = inbound(60 + round);
        machine.receive(&frame);
        round_trip(&machine);
        let received: Vec<_> = (0..2).flat_map(|queue| driver.poll_rx(queue)).collect();
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].bytes, frame);
    }
    assert_eq!(machine.nic.stats().tx[1].sent.unicast_frames, 200, "counters do not start again");
}

#[test]
fn pending_vector_fires_when_it_is_unmasked() {
    let machine = Machine::new();
    let driver = Driver::open(&machine, Options::default());
    machine.receive(&inbound(60));
    assert_eq!(machine.irqs.take(), [0]);
    machine.receive(&inbound(60));
    round_trip(&machine);
    assert!(machine.irqs.take().is_empty(), "it is masked");
    driver.unmask(0);
    assert_eq!(machine.irqs.take(), [0]);
}

#[test]
fn inactive_device_comes_back_inactive() {
    let machine = Machine::new();
    round_trip(&machine);
    assert!(!machine.nic.is_active());
}

#[test]
fn state_whose_rings_are_not_ram_is_refused() {
    let machine = Machine::new();
    let _driver = Driver::open(&machine, Options::default());
    let record = machine.nic.save().unwrap();
    let bytes = postcard::to_allocvec(&record).unwrap();
    let (mut refused, mut taken) = (0, 0);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        let Ok(record) = postcard::from_bytes(&bad) else { continue };
        machine.nic.reset();
        machine.nic.set_bus_master(true);
        match machine.nic.restore(&record) {
            Ok(()) => taken += 1,
            Err(RestoreError::Unsupported(why)) => panic!("{why}"),
            Err(_) => refused += 1,
        }
        machine.run_tx();
        machine.receive(&inbound(60));
    }
    assert!(refused > 20 && taken > 20, "{refused} refused, {taken} taken");
}
