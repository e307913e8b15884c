use std::sync::atomic::Ordering;

use pci::Device;
use vmxnet3::spec::desc::{OFFLOAD_CHECKSUM, OFFLOAD_TSO};

use crate::driver::{Driver, Offload, Options};
use crate::frames::{TCP_HEADERS, TCP_OFFSET, outbound, payload, tagged, tcp, tcp_partial};
use crate::machine::{MAC, Machine, PEER};

fn send_one(driver: &mut Driver<'_>, frame: &[u8], pieces: usize, offload: Offload) -> Vec<Vec<u8>> {
    driver.send(0, frame, pieces, offload);
    driver.machine.run_tx();
    assert_eq!(driver.complete_tx(0), 1);
    driver.machine.link.take()
}

#[test]
fn frame_is_gathered_from_its_descriptors() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    for (len, pieces) in [(14, 0), (60, 0), (1514, 1), (1514, 3), (9014, 16)] {
        let frame = outbound(len);
        assert_eq!(send_one(&mut driver, &frame, pieces, Offload::default()), [frame]);
    }
    assert_eq!(machine.nic.stats().tx[0].sent.unicast_frames, 5);
}

#[test]
fn kick_rings_the_bell_and_completion_raises_the_queue_vector() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options { queues: 2, ..Options::default() });
    driver.send(1, &outbound(60), 0, Offload::default());
    driver.send(1, &outbound(61), 0, Offload::default());
    // Bus mastering rang it once before.
    assert_eq!(machine.bell.rings.load(Ordering::Relaxed), 3);
    machine.run_tx();
    assert_eq!(machine.irqs.take(), [1], "one interrupt for the batch");
    assert_eq!(driver.complete_tx(1), 2);
}

#[test]
fn checksum_is_completed() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let offload = Offload {
        mode: OFFLOAD_CHECKSUM,
        header_len: TCP_OFFSET as u16,
        mss_or_offset: TCP_OFFSET as u16 + 16,
        tag: None,
    };
    let data = payload(1001);
    assert_eq!(send_one(&mut driver, &tcp_partial(&data), 2, offload), [tcp(PEER, MAC, &data)]);
}

#[test]
fn large_packet_becomes_segments_of_the_size_asked_for() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let offload =
        Offload { mode: OFFLOAD_TSO, header_len: TCP_HEADERS as u16, mss_or_offset: 1460, tag: None };
    let data = payload(40_000);
    let frames = send_one(&mut driver, &tcp_partial(&data), 10, offload);
    assert_eq!(frames.len(), 40_000usize.div_ceil(1460));
    let received: Vec<u8> = frames.iter().flat_map(|frame| frame[TCP_HEADERS..].to_vec()).collect();
    assert_eq!(received, data);
    let stats = machine.nic.stats().tx[0];
    assert_eq!((stats.tso_frames, stats.sent.unicast_frames), (28, 28));
    assert_eq!(stats.tso_bytes, 40_000 + 28 * TCP_HEADERS as u64);
}

#[test]
fn tag_is_inserted_into_every_frame() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let frame = outbound(100);
    let tag = Some(0x6005);
    let sent = send_one(&mut driver, &frame, 0, Offload { tag, ..Offload::default() });
    assert_eq!(sent, [tagged(&frame, 0x6005)]);

    let offload = Offload { mode: OFFLOAD_TSO, header_len: TCP_HEADERS as u16, mss_or_offset: 1000, tag };
    let sent = send_one(&mut driver, &tcp_partial(&payload(2500)), 1, offload);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1058, 1058, 558]);
    assert!(sent.iter().all(|frame| frame[12..16] == [0x81, 0, 0x60, 5]));
}

#[test]
fn frame_the_link_cannot_take_is_discarded_and_completed() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    machine.link.mtu.store(1500, Ordering::Relaxed);
    assert!(send_one(&mut driver, &outbound(1515), 1, Offload::default()).is_empty());
    let tag_is_no_payload = tagged(&outbound(1514), 1);
    assert_eq!(send_one(&mut driver, &tag_is_no_payload, 1, Offload::default()).len(), 1);
    machine.link.full.store(true, Ordering::Relaxed);
    assert!(send_one(&mut driver, &outbound(60), 1, Offload::default()).is_empty());
    machine.link.full.store(false, Ordering::Relaxed);
    machine.nic.set_link(false);
    assert!(send_one(&mut driver, &outbound(60), 1, Offload::default()).is_empty());
    assert_eq!(machine.nic.stats().tx[0].discarded, 3);
}

#[test]
fn impossible_offloads_are_counted_and_completed() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let offload = |mode, header_len, mss_or_offset| Offload { mode, header_len, mss_or_offset, tag: None };
    let bad = [
        offload(1, 0, 0),
        offload(OFFLOAD_CHECKSUM, 1023, 1039),
        offload(OFFLOAD_CHECKSUM, 34, 33),
        offload(OFFLOAD_CHECKSUM, 34, 16_383),
        offload(OFFLOAD_TSO, 54, 0),
        offload(OFFLOAD_TSO, 53, 1000),
        offload(OFFLOAD_TSO, 100, 1000),
    ];
    for offload in bad {
        assert!(send_one(&mut driver, &tcp_partial(&payload(200)), 1, offload).is_empty(), "{offload:?}");
    }
    assert!(send_one(&mut driver, &[0; 13], 0, Offload::default()).is_empty());
    assert_eq!(machine.nic.stats().tx[0].errors, bad.len() as u64 + 1);
    // The queue still works.
    assert_eq!(send_one(&mut driver, &outbound(60), 0, Offload::default()).len(), 1);
}

#[test]
fn one_call_does_a_bounded_amount_of_work() {
    let machine = Machine::new();
    let options = Options { tx_ring: 512, ..Options::default() };
    let mut driver = Driver::open(&machine, options);
    for _ in 0..200 {
        driver.send(0, &outbound(60), 0, Offload::default());
    }
    assert!(machine.nic.process_tx());
    assert_eq!(machine.link.take().len(), 64);
    assert_eq!(1 + machine.run_tx(), 4);
    assert_eq!(driver.complete_tx(0), 200);
}

#[test]
fn nothing_is_read_or_signalled_without_bus_mastering() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    machine.nic.set_bus_master(false);
    driver.send(0, &outbound(60), 0, Offload::default());
    machine.run_tx();
    machine.nic.set_link(false);
    assert!(machine.link.take().is_empty());
    assert!(machine.irqs.take().is_empty());
    machine.nic.set_link(true);
    machine.nic.set_bus_master(true);
    machine.run_tx();
    assert_eq!(machine.link.take().len(), 1);
    assert_eq!(machine.irqs.take(), [0]);
}
