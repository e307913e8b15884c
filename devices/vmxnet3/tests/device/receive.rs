use device_model::net::MacAddr;
use vmxnet3::spec::shared::{RX_FILTER, RxFilterConf};
use vmxnet3::spec::{Features, RxMode};
use zerocopy::little_endian::{U16, U32, U64};

use crate::driver::{
    Driver, MULTICAST, Options, SHARED, UPDATE_FEATURE, UPDATE_MAC_FILTERS, UPDATE_VLAN_FILTERS,
};
use crate::frames::{inbound, payload, raw, tagged, tcp};
use crate::machine::{MAC, Machine, PEER};

fn receive_one(driver: &mut Driver<'_>, frame: &[u8]) -> Option<crate::driver::Received> {
    driver.machine.receive(frame);
    let mut received = driver.poll_rx(0);
    assert!(received.len() <= 1);
    received.pop()
}

#[test]
fn frame_arrives_whole_and_raises_the_queue_vector() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    for len in [14, 60, 1514] {
        let frame = inbound(len);
        machine.receive(&frame);
        assert_eq!(machine.irqs.take(), [0]);
        assert_eq!(driver.poll_rx(0)[0].bytes, frame);
        driver.unmask(0);
    }
    assert_eq!(machine.nic.stats().rx[0].received.unicast_bytes, 14 + 60 + 1514);
}

#[test]
fn burst_costs_one_interrupt_until_the_driver_unmasks() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    for _ in 0..10 {
        machine.receive(&inbound(60));
    }
    assert_eq!(machine.irqs.take(), [0]);
    assert_eq!(driver.poll_rx(0).len(), 10);
    driver.unmask(0);
    assert_eq!(machine.irqs.take(), [0], "what came after the first interrupt");
    driver.unmask(0);
    assert!(machine.irqs.take().is_empty());
}

#[test]
fn event_between_unmask_and_enable_is_not_lost() {
    let machine = Machine::new();
    let driver = Driver::prepare(&machine, Options::default());
    assert_eq!(driver.activate(), 0);
    driver.set_mode(RxMode::UNICAST);
    machine.receive(&inbound(60));
    assert!(machine.irqs.take().is_empty());
    driver.enable_interrupts();
    assert_eq!(machine.irqs.take(), [0]);
}

#[test]
fn jumbo_frame_takes_head_and_body_buffers_and_short_ones_pass_bodies_over() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options { mtu: 9000, ..Options::default() });
    for len in [9014, 60, 3072, 3073, 9014, 60, 60].into_iter().cycle().take(400) {
        let frame = inbound(len);
        assert_eq!(receive_one(&mut driver, &frame).unwrap().bytes, frame);
    }
}

#[test]
fn frame_longer_than_the_mtu_is_dropped_and_its_tag_does_not_count() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    assert_eq!(receive_one(&mut driver, &inbound(1515)), None);
    assert_eq!(receive_one(&mut driver, &tagged(&inbound(1514), 0)).unwrap().bytes.len(), 1514);
    assert_eq!(receive_one(&mut driver, &inbound(14)[..13]), None);
    assert_eq!(receive_one(&mut driver, &tagged(&inbound(14), 0)[..16]), None);
    assert_eq!(machine.nic.stats().rx[0].errors, 3);
}

#[test]
fn frames_without_buffers_are_dropped_until_there_are_some() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    for _ in 0..40 {
        machine.receive(&inbound(60));
    }
    assert_eq!(machine.nic.stats().rx[0].out_of_buffers, 9);
    assert_eq!(driver.poll_rx(0).len(), 31);
    assert!(receive_one(&mut driver, &inbound(60)).is_some());
}

#[test]
fn only_wanted_addresses_pass() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let groups = [MacAddr([0x33, 0x33, 0, 0, 0, 1]), MacAddr([1, 0, 0x5e, 0, 0, 1])];
    let passes = |driver: &mut Driver<'_>, to| receive_one(driver, &raw(to, PEER, 60)).is_some();
    let all = [MAC, PEER, MacAddr::BROADCAST, groups[0], groups[1]];

    machine.ram().write(MULTICAST, &groups[0].0).unwrap();
    let mut conf: RxFilterConf = machine.ram().read_obj(SHARED + RX_FILTER).unwrap();
    // A table whose length is no multiple of an address.
    conf.multicast_len = U16::new(11);
    conf.multicast_table = U64::new(MULTICAST);
    machine.ram().write_obj(SHARED + RX_FILTER, &conf).unwrap();
    driver.get(UPDATE_MAC_FILTERS);

    for (mode, expected) in [
        (RxMode::empty(), [false; 5]),
        (RxMode::UNICAST, [true, false, false, false, false]),
        (RxMode::BROADCAST, [false, false, true, false, false]),
        (RxMode::MULTICAST, [false, false, false, true, false]),
        (RxMode::ALL_MULTICAST, [false, false, false, true, true]),
        (RxMode::PROMISCUOUS, [true; 5]),
    ] {
        driver.set_mode(mode);
        assert_eq!(all.map(|to| passes(&mut driver, to)), expected, "{mode:?}");
    }
}

#[test]
fn multicast_table_that_is_not_ram_is_empty() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let mut conf: RxFilterConf = machine.ram().read_obj(SHARED + RX_FILTER).unwrap();
    conf.multicast_len = U16::new(0xffff);
    conf.multicast_table = U64::new(u64::MAX - 5);
    machine.ram().write_obj(SHARED + RX_FILTER, &conf).unwrap();
    driver.set_mode(RxMode::MULTICAST);
    driver.get(UPDATE_MAC_FILTERS);
    assert!(receive_one(&mut driver, &raw(MacAddr([0x33, 0x33, 0, 0, 0, 1]), PEER, 60)).is_none());
}

#[test]
fn tag_is_stripped_only_on_request_and_filtered_by_the_table() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let frame = tcp(MAC, PEER, &payload(100));
    let with_tag = tagged(&frame, 0xa005);
    assert_eq!(receive_one(&mut driver, &with_tag), None, "VLAN 5 is not in the table");

    let word_of_vlan_5 = SHARED + RX_FILTER + 16;
    machine.ram().write_obj(word_of_vlan_5, &U32::new(1 | 1 << 5)).unwrap();
    driver.get(UPDATE_VLAN_FILTERS);
    let stripped = receive_one(&mut driver, &with_tag).unwrap();
    assert_eq!((stripped.tag, stripped.bytes), (Some(0xa005), frame.clone()));
    assert!(stripped.verdict.tcp() && stripped.verdict.l4_checksum_ok());

    let features = Features::RX_CHECKSUM.bits();
    machine.ram().write_obj(SHARED + 0x18, &U64::new(features)).unwrap();
    driver.get(UPDATE_FEATURE);
    let whole = receive_one(&mut driver, &with_tag).unwrap();
    assert_eq!((whole.tag, whole.bytes), (None, with_tag));
    // With LRO on, the driver takes TCP longer than its MTU for a merged packet; the tag must not make it so.
    assert!(whole.place.checksum_not_calculated() && !whole.verdict.tcp());
}

#[test]
fn checksums_are_reported_as_they_were_found() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let good = tcp(MAC, PEER, &payload(333));
    let found = receive_one(&mut driver, &good).unwrap();
    assert!(!found.place.checksum_not_calculated());
    assert!(found.verdict.ipv4() && found.verdict.tcp() && !found.verdict.udp());
    assert!(found.verdict.ip_checksum_ok() && found.verdict.l4_checksum_ok());

    let mut bad = good.clone();
    bad[100] ^= 1;
    let found = receive_one(&mut driver, &bad).unwrap();
    assert!(found.verdict.ip_checksum_ok() && !found.verdict.l4_checksum_ok());

    let mut bad = good.clone();
    bad[14 + 8] ^= 1;
    assert!(!receive_one(&mut driver, &bad).unwrap().verdict.ip_checksum_ok());

    let mut fragment = good.clone();
    fragment[14 + 6] = 0x20;
    let found = receive_one(&mut driver, &fragment).unwrap();
    assert!(found.verdict.fragment() && !found.verdict.l4_checksum_ok() && !found.verdict.tcp());

    machine.ram().write_obj(SHARED + 0x18, &U64::ZERO).unwrap();
    driver.get(UPDATE_FEATURE);
    assert!(receive_one(&mut driver, &good).unwrap().place.checksum_not_calculated());
}

#[test]
fn a_flow_stays_on_one_queue_and_flows_spread() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options { queues: 4, ..Options::default() });
    let mut used = [false; 4];
    for port in 0..32 {
        let mut frame = tcp(MAC, PEER, &payload(64));
        frame[35] = port;
        machine.receive(&frame);
        machine.receive(&frame);
        let counts: Vec<_> = (0..4).map(|queue| driver.poll_rx(queue).len()).collect();
        let queue = counts.iter().position(|count| *count == 2).expect("both on one queue");
        used[queue] = true;
    }
    assert_eq!(used, [true; 4]);
}
