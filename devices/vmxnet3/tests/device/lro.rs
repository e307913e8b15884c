//! Segments that arrive together are merged, and nothing else is.

use std::slice;

use proptest::prelude::*;
use vmxnet3::spec::Features;

use crate::driver::{Driver, Options, Received};
use crate::frames::{
    TCP_HEADERS, TCP_OFFSET, changed, inbound, payload, segment, tagged, tcp, with_tcp_checksum,
};
use crate::machine::{MAC, Machine, PEER};

const MSS: usize = 1460;

fn options() -> Options {
    Options { rx_ring: 64, body_ring: 64, ..Options::default() }
}

/// Gives frames to the device in one batch.
fn receive_together(driver: &mut Driver<'_>, frames: &[Vec<u8>]) -> Vec<Received> {
    driver.machine.nic.receive(frames.iter().map(Vec::as_slice));
    driver.poll_rx(0)
}

fn bytes(received: Vec<Received>) -> Vec<Vec<u8>> {
    received.into_iter().map(|packet| packet.bytes).collect()
}

/// `data` in segments, as [`tcp`] would send it whole.
fn segments(data: &[u8], mss: usize) -> Vec<Vec<u8>> {
    data.chunks(mss).enumerate().map(|(n, data)| segment(n * mss, data)).collect()
}

#[test]
fn segments_become_the_packet_they_were_cut_from() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    for (len, mss) in [(2 * MSS, MSS), (60_000, MSS), (65_495, MSS), (1461, MSS), (999, 7), (1000, 333)] {
        let data = payload(len);
        let received = receive_together(&mut driver, &segments(&data, mss));
        assert_eq!(machine.irqs.take(), [0]);
        driver.unmask(0);
        let verdict = received[0].verdict;
        assert!(verdict.tcp() && verdict.ip_checksum_ok() && verdict.l4_checksum_ok());
        assert_eq!(bytes(received), [tcp(MAC, PEER, &data)], "{len} bytes in segments of {mss}");
    }
    let stats = machine.nic.stats().rx[0];
    assert_eq!(stats.merged_frames, stats.received.unicast_frames);
    assert_eq!(stats.merged_bytes, stats.received.unicast_bytes);
}

#[test]
fn packet_that_would_outgrow_its_length_field_is_followed_by_another() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let frames = segments(&payload(65_496), MSS);
    let received = bytes(receive_together(&mut driver, &frames));
    let last = frames.last().unwrap();
    assert_eq!(received, [tcp(MAC, PEER, &payload(65_496 - (last.len() - TCP_HEADERS))), last.clone()]);
}

#[test]
fn frames_are_merged_only_with_those_of_their_batch() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let frames = segments(&payload(3 * MSS), MSS);
    for frame in &frames {
        assert_eq!(&bytes(receive_together(&mut driver, slice::from_ref(frame))), slice::from_ref(frame));
    }
    assert_eq!(machine.nic.stats().rx[0].merged_frames, 0);
}

#[test]
fn flags_of_all_segments_are_those_of_the_packet() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let frames = segments(&payload(3 * MSS), MSS);
    let quiet = |frame: &Vec<u8>| changed(frame.clone(), |frame| frame[TCP_OFFSET + 13] = 0x10);
    let merged = receive_together(&mut driver, &[quiet(&frames[0]), frames[1].clone(), quiet(&frames[2])]);
    assert_eq!(bytes(merged), [tcp(MAC, PEER, &payload(3 * MSS))]);
}

#[test]
fn what_differs_in_more_than_its_place_is_not_merged() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let [first, second] = &segments(&payload(2 * MSS), MSS)[..] else { panic!("two segments") };
    let with = |offset: usize, value: u8| changed(second.clone(), |frame| frame[offset] = value);
    let mut wrong_checksum = second.clone();
    wrong_checksum[100] ^= 1;
    let mut no_data = changed(second[..TCP_HEADERS].to_vec(), |frame| frame[17] = 40);
    no_data.truncate(TCP_HEADERS);
    let others = [
        with(11, 0xee),              // source address
        with(15, 3),                 // congestion experienced
        with(20, 0x20),              // fragment
        with(22, 63),                // time to live
        with(29, 9),                 // IP address
        with(TCP_OFFSET + 1, 9),     // port
        with(TCP_OFFSET + 7, 0),     // sequence number
        with(TCP_OFFSET + 11, 9),    // acknowledgement
        with(TCP_OFFSET + 13, 0x11), // FIN
        with(TCP_OFFSET + 13, 0x12), // SYN
        with(TCP_OFFSET + 13, 0x14), // RST
        with(TCP_OFFSET + 13, 0x30), // URG
        with(TCP_OFFSET + 13, 0x50), // ECE
        with(TCP_OFFSET + 13, 0x90), // CWR
        with(TCP_OFFSET + 13, 0x08), // no ACK
        with(TCP_OFFSET + 15, 1),    // window
        wrong_checksum,
        no_data,
        first.clone(),
        segment(MSS + 1, &payload(10)),
        tagged(second, 0),
        inbound(60),
    ];
    for (number, other) in others.into_iter().enumerate() {
        let untagged = if other[12..14] == [0x81, 0] { second.clone() } else { other.clone() };
        let received = bytes(receive_together(&mut driver, &[first.clone(), other]));
        assert_eq!(received, [first.clone(), untagged], "other frame {number}");
    }
    let both = bytes(receive_together(&mut driver, &[first.clone(), second.clone()]));
    assert_eq!(both, [tcp(MAC, PEER, &payload(2 * MSS))]);
}

#[test]
fn driver_that_did_not_ask_gets_segments() {
    let frames = segments(&payload(3 * MSS), MSS);
    for features in [Features::LRO, Features::RX_CHECKSUM, Features::empty()] {
        let machine = Machine::new();
        let mut driver = Driver::open(&machine, Options { features, ..options() });
        assert_eq!(bytes(receive_together(&mut driver, &frames)), frames, "{features:?}");
    }
}

#[test]
fn packet_that_buffers_do_not_hold_is_given_as_segments() {
    let machine = Machine::new();
    // Without body buffers, a packet is as long as a head buffer at most.
    let mut driver = Driver::open(&machine, Options { body_ring: 0, ..options() });
    let frames = segments(&payload(20 * MSS), MSS);
    assert_eq!(bytes(receive_together(&mut driver, &frames)), frames);
    let small = segments(&payload(1000), 100);
    assert_eq!(bytes(receive_together(&mut driver, &small)), [tcp(MAC, PEER, &payload(1000))]);
    assert_eq!(machine.nic.stats().rx[0].merged_frames, 10);
}

#[test]
fn tag_that_is_stripped_does_not_keep_segments_apart() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let frames: Vec<_> = segments(&payload(5000), MSS).iter().map(|frame| tagged(frame, 0xa000)).collect();
    let received = receive_together(&mut driver, &frames);
    assert_eq!(received[0].tag, Some(0xa000));
    assert_eq!(bytes(received), [tcp(MAC, PEER, &payload(5000))]);
}

#[test]
fn segments_over_ipv6_are_merged_unless_there_are_extension_headers() {
    /// An IPv6 packet with TCP behind `extension`.
    fn tcp6(sequence: u8, extension: &[u8], data: &[u8]) -> Vec<u8> {
        let len = u16::try_from(extension.len() + 20 + data.len()).unwrap().to_be_bytes();
        let next = if extension.is_empty() { 6 } else { 60 };
        let mut frame =
            [&MAC.0[..], &PEER.0, &[0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], next, 64]].concat();
        frame.extend((0..32).chain(extension.iter().copied()));
        let tcp = frame.len();
        frame.extend([0, 80, 1, 1, 0, 0, 0, sequence, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.extend(data);
        with_tcp_checksum(frame, 22..54, tcp)
    }
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, options());
    let received = receive_together(&mut driver, &[tcp6(7, &[], &[1; 90]), tcp6(97, &[], &[2; 50])]);
    assert!(received[0].verdict.ipv6() && received[0].verdict.l4_checksum_ok());
    assert_eq!(bytes(received), [tcp6(7, &[], &[[1; 90].as_slice(), &[2; 50]].concat())]);

    let extension = [6, 0, 1, 4, 0, 0, 0, 0];
    let frames = [tcp6(7, &extension, &[1; 90]), tcp6(97, &extension, &[2; 50])];
    assert_eq!(bytes(receive_together(&mut driver, &frames)), frames);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is merged, each connection's bytes arrive once, in order, under right checksums.
    #[test]
    fn data_of_every_connection_is_exact(
        steps in proptest::collection::vec((0u8..2, 0usize..1460, any::<bool>()), 1..200),
    ) {
        let machine = Machine::new();
        let mut driver = Driver::open(&machine, options());
        let (mut sent, mut received) = <([Vec<u8>; 2], [Vec<u8>; 2])>::default();
        let mut batch = Vec::new();
        for (number, (flow, len, ends)) in steps.iter().copied().enumerate() {
            let data: Vec<u8> = (0..len).map(|n| (n + number) as u8).collect();
            let frame = segment(sent[usize::from(flow)].len(), &data);
            batch.push(changed(frame, |frame| frame[TCP_OFFSET] = flow));
            sent[usize::from(flow)].extend(data);
            if !ends && number + 1 < steps.len() && batch.len() < 30 {
                continue;
            }
            for packet in receive_together(&mut driver, &std::mem::take(&mut batch)) {
                prop_assert!(packet.verdict.l4_checksum_ok() && packet.verdict.ip_checksum_ok());
                let same = changed(packet.bytes.clone(), |_| {});
                prop_assert!(same == packet.bytes, "checksums are right");
                let data = &mut received[usize::from(packet.bytes[TCP_OFFSET])];
                let expected = segment(data.len(), &[])[TCP_OFFSET + 4..][..4].to_vec();
                prop_assert_eq!(&packet.bytes[TCP_OFFSET + 4..][..4], &expected[..]);
                data.extend(&packet.bytes[TCP_HEADERS..]);
            }
        }
        prop_assert!(sent == received);
        prop_assert_eq!(machine.nic.stats().rx[0].out_of_buffers, 0);
    }
}
