use device_model::net::MacAddr;
use pci::Device;
use vmxnet3::spec::regs::{BAR_CONTROL, BAR_DATA};
use vmxnet3::spec::shared::{EVENTS, QUEUE_STATS, QueueStatus, RxStatsBlock, TxStatsBlock};
use zerocopy::little_endian::{U32, U64};

use crate::driver::*;
use crate::frames::{inbound, outbound};
use crate::machine::{MAC, Machine};

/// Overwrites a field of what the driver prepared and activates.
fn activate_with(offset: u64, value: &[u8]) -> u32 {
    let machine = Machine::new();
    let driver = Driver::prepare(&machine, Options { queues: 2, ..Options::default() });
    machine.ram().write(offset, value).unwrap();
    driver.activate()
}

#[test]
fn shared_area_that_makes_no_sense_is_refused() {
    assert_eq!(activate_with(0, &[]), 0);
    let rx_desc = QUEUES + 2 * 256;
    let cases: &[(&str, u64, &[u8])] = &[
        ("magic", SHARED, &[0]),
        ("no transmit queue", SHARED + 0x3e, &[0]),
        ("255 transmit queues", SHARED + 0x3e, &[255]),
        ("no receive queue", SHARED + 0x3f, &[0]),
        ("9 receive queues", SHARED + 0x3f, &[9]),
        ("queue descriptors unaligned", SHARED + 0x28, &[0x40]),
        ("queue descriptors beyond RAM", SHARED + 0x28, &[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("event vector", SHARED + 0x52, &[255]),
        ("no vectors", SHARED + 0x51, &[0]),
        ("transmit ring unaligned", QUEUES + 0x10, &[1]),
        ("transmit ring beyond RAM", QUEUES + 0x13, &[0xff]),
        ("transmit ring size 0", QUEUES + 0x38, &[0, 0, 0, 0]),
        ("transmit ring size odd", QUEUES + 0x38, &[33, 0, 0, 0]),
        ("transmit ring size 8192", QUEUES + 0x38, &[0, 0x20, 0, 0]),
        ("transmit ring size 4 G", QUEUES + 0x38, &[0xe0, 0xff, 0xff, 0xff]),
        ("transmit completion ring size 0", QUEUES + 0x40, &[0, 0, 0, 0]),
        ("transmit completion ring in the hole", QUEUES + 0x20, &[0, 0, 0x60, 0]),
        ("transmit vector", QUEUES + 256 + 0x48, &[255]),
        ("head ring size 0", rx_desc + 0x38, &[0, 0, 0, 0]),
        ("body ring size odd", rx_desc + 0x3c, &[1, 0, 0, 0]),
        ("receive completion ring size 16384", rx_desc + 0x40, &[0, 0x40, 0, 0]),
        ("receive vector", rx_desc + 0x48, &[3]),
    ];
    for (what, offset, value) in cases {
        assert_ne!(activate_with(*offset, value), 0, "{what}");
    }
}

#[test]
fn shared_area_address_is_checked() {
    let machine = Machine::new();
    let driver = Driver::prepare(&machine, Options::default());
    for (low, high) in [(0x1004, 0), (0xffff_fff8, 0xffff_ffff), (0x5f_fff8, 0), (0x60_0000, 0)] {
        driver.write(BAR_CONTROL, DSAL, low);
        driver.write(BAR_CONTROL, DSAH, high);
        assert_ne!(driver.get(ACTIVATE), 0, "{high:#x} {low:#x}");
    }
    machine.nic.set_bus_master(false);
    assert_ne!(driver.activate(), 0);
    machine.nic.set_bus_master(true);
    assert_eq!(driver.activate(), 0);
}

#[test]
fn commands_answer_what_the_driver_expects() {
    let machine = Machine::new();
    let driver = Driver::prepare(&machine, Options::default());
    assert_eq!(driver.get(GET_LINK), 0x2710_0001);
    assert_eq!(driver.get(0xf00d_0003).to_le_bytes(), [0x52, 0x54, 0, 0x12]);
    assert_eq!(driver.get(0xf00d_0004), 0x5634);
    assert_eq!(driver.get(0xf00d_0005), 0x7b0);
    for accepted in [0xcafe_0006, 0xcafe_0007, 0xcafe_0008, 0xcafe_0009, 0xf00d_0007, 0xf00d_0008] {
        assert_eq!(driver.get(accepted), 0);
    }
    for unknown in [0, 0xcafe_000a, 0xcafe_0010, 0xf00d_000f, 0xf00d_0012, u32::MAX] {
        assert_ne!(driver.get(unknown), 0);
    }
}

#[test]
fn every_register_reads_at_every_width_and_offset() {
    let machine = Machine::new();
    for bar in 0..6 {
        for offset in 0..4096 {
            for len in 1..=8 {
                let mut data = [0xaa; 8];
                machine.nic.read(bar, offset, &mut data[..len]);
                machine.nic.write(bar, offset, &[0xff; 8][..len]);
                assert!(len == 4 || data[..len].iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn mask_register_reads_what_the_vector_is() {
    let machine = Machine::new();
    let driver = Driver::open(&machine, Options::default());
    assert_eq!(driver.read(BAR_DATA, 0), 0);
    driver.write(BAR_DATA, 0, 1);
    assert_eq!(driver.read(BAR_DATA, 0), 1);
    assert_eq!(driver.read(BAR_DATA, 24 * 8), 1);
    assert_eq!(driver.read(BAR_DATA, 25 * 8), 0, "no such register");
}

#[test]
fn address_set_by_the_guest_lasts_until_reset() {
    let machine = Machine::new();
    let driver = Driver::open(&machine, Options::default());
    driver.write(BAR_CONTROL, MACL, 0x0403_0202);
    assert_eq!(machine.nic.mac(), MAC, "half an address is none");
    driver.write(BAR_CONTROL, MACH, 0x0605);
    assert_eq!(machine.nic.mac(), MacAddr([2, 2, 3, 4, 5, 6]));
    assert_eq!(driver.read(BAR_CONTROL, MACL), 0x0403_0202);
    driver.get(RESET);
    assert_eq!(machine.nic.mac(), MAC);
}

#[test]
fn link_change_is_an_event_until_acknowledged() {
    let machine = Machine::new();
    let driver = Driver::open(&machine, Options::default());
    let events = || machine.ram().read_obj::<U32>(SHARED + EVENTS).unwrap().get();
    machine.nic.set_link(true);
    assert_eq!((events(), machine.irqs.take()), (0, vec![]));
    machine.nic.set_link(false);
    assert_eq!((events(), machine.irqs.take()), (4, vec![1]));
    assert_eq!(driver.get(GET_LINK), 0);
    driver.write(BAR_CONTROL, ECR, 4);
    assert_eq!(events(), 0);
    machine.nic.set_link(true);
    driver.unmask(driver.event_vector());
    assert_eq!((events(), machine.irqs.take()), (4, vec![1]));
    assert_eq!(driver.get(GET_LINK), 0x2710_0001);
}

#[test]
fn statistics_are_written_for_every_queue_and_survive_a_reset_by_the_driver() {
    let machine = Machine::new();
    let options = Options { queues: 2, ..Options::default() };
    let mut driver = Driver::open(&machine, options);
    driver.send(1, &outbound(100), 0, Offload::default());
    machine.run_tx();
    machine.receive(&inbound(200));
    driver.get(QUIESCE);
    driver.get(RESET);
    let driver = Driver::open(&machine, options);
    driver.get(GET_STATS);
    let tx: TxStatsBlock = machine.ram().read_obj(tx_desc(1) + QUEUE_STATS).unwrap();
    assert_eq!(tx.map(U64::get), [0, 0, 1, 100, 0, 0, 0, 0, 0, 0]);
    let rx: RxStatsBlock = machine.ram().read_obj(driver.rx_desc(0) + QUEUE_STATS).unwrap();
    assert_eq!(rx.map(U64::get), [0, 0, 1, 200, 0, 0, 0, 0, 0, 0]);
    machine.nic.reset();
    assert_eq!(machine.nic.stats(), vmxnet3::Stats::default());
}

#[test]
fn stopped_device_touches_no_memory() {
    for stop in [QUIESCE, RESET, 0] {
        let machine = Machine::new();
        assert!(!machine.nic.is_active());
        let mut driver = Driver::open(&machine, Options::default());
        assert!(machine.nic.is_active());
        driver.send(0, &outbound(60), 0, Offload::default());
        if stop == 0 {
            machine.nic.reset()
        } else {
            assert_eq!(driver.get(stop), 0)
        }
        assert!(!machine.nic.is_active());
        machine.irqs.take();
        let before = machine.snapshot();
        machine.run_tx();
        machine.receive(&inbound(60));
        machine.nic.set_link(false);
        for command in [GET_STATS, GET_QUEUE_STATUS, UPDATE_MAC_FILTERS, UPDATE_FEATURE] {
            driver.get(command);
        }
        driver.write(BAR_CONTROL, ECR, 0xff);
        driver.unmask(0);
        assert!(machine.snapshot() == before);
        assert!(machine.link.take().is_empty() && machine.irqs.take().is_empty());
        assert_eq!(machine.nic.stats().rx_unwanted, 1);
    }
}

#[test]
fn activating_again_starts_anew() {
    let machine = Machine::new();
    for _ in 0..3 {
        let mut driver = Driver::open(&machine, Options::default());
        driver.send(0, &outbound(60), 0, Offload::default());
        machine.run_tx();
        machine.receive(&inbound(60));
        assert_eq!((driver.complete_tx(0), driver.poll_rx(0).len()), (1, 1));
    }
}

#[test]
fn queue_that_makes_no_sense_stops_and_says_so() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    // Descriptors for ever, no end of packet.
    let [(ring, size), ..] = driver.rings(0);
    for index in 0..u64::from(size) {
        let desc = [0x10_0000u64.to_le_bytes(), u64::from(1u32 << 14 | 60).to_le_bytes()].concat();
        machine.ram().write(ring + index * 16, &desc).unwrap();
    }
    assert!(!machine.nic.process_tx());
    assert_eq!(machine.irqs.take(), [1]);
    assert_eq!(machine.ram().read_obj::<U32>(SHARED + EVENTS).unwrap().get(), 2);
    driver.get(GET_QUEUE_STATUS);
    let status: QueueStatus = machine.ram().read_obj(tx_desc(0) + 0x50).unwrap();
    assert_eq!((status.stopped, status.error.get()), (1, 0x8000_0002));
    let status: QueueStatus = machine.ram().read_obj(driver.rx_desc(0) + 0x50).unwrap();
    assert_eq!(status, QueueStatus::default());
    // Receiving goes on, and a reset undoes it.
    machine.receive(&inbound(60));
    assert_eq!(driver.poll_rx(0).len(), 1);
    let mut driver = Driver::open(&machine, Options::default());
    driver.send(0, &outbound(60), 0, Offload::default());
    machine.run_tx();
    assert_eq!(driver.complete_tx(0), 1);
}
