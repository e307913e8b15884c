//! The codec against independent witnesses: frames captured from hardware, a CRC written down naively, and Wireshark.

mod common;

use std::process::Command;

use common::node::HEAP;
use common::scenario::{Scenario, check};
use common::wr::SEND;
use common::{Connection, World, edit};
use roce::psn::Psn;
use roce::wire::{Family, Frame, FrameError, Header, Opcode, Packet, Path, Pdu, icrc::Icrc};
use verbs::{Gid, Mtu, QpId, QpType, Qpn, SendOp, UdAddress};

/// A congestion notification as a ConnectX-4 Lx sends it, without padding after the CRC.
const CNP: &str = "e41d2dab2bc2 7cfe90643b32 0800 45c2003c718c4000401191610a0011010a001201 000012b700280000 \
                   8100ffff4000011800000000 00000000000000000000000000000000 82fd002a";

/// An unreliable-connection send, also captured, with congestion bits in its type of service.
const UC_SEND: &str = "248a07a8fa22 248a07a8fa22 0800 4501004004784000 4011b4d5c0a80007c0a80007 c00012b7002caca2 \
                       2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(pair).collect()
}

#[test]
fn notification_captured_from_hardware_parses() {
    let frame = Frame::parse(&bytes(CNP)).unwrap();
    assert_eq!(frame.packet.pdu, Pdu::Cnp);
    assert_eq!((frame.packet.dest, frame.packet.becn), (Qpn(0x118), true));
    assert!(frame.payload.is_empty());
}

#[test]
fn service_that_is_not_spoken_is_refused_but_its_crc_is_right() {
    let frame = bytes(UC_SEND);
    assert_eq!(Frame::parse(&frame), Err(FrameError::Opcode));
    let end = frame.len() - 4;
    assert_eq!(Icrc::new(Family::V4, &frame[14..end]).finish(), frame[end..]);
}

/// The CRC, bit by bit, over a copy with the variant fields set to ones.
fn naive_icrc(frame: &[u8]) -> [u8; 4] {
    let mut ip = frame[14..frame.len() - 4].to_vec();
    let (header, mask): (usize, &[usize]) = match frame[12] {
        0x08 => (20, &[1, 8, 10, 11]),
        _ => (40, &[1, 2, 3, 7]),
    };
    if header == 40 {
        ip[0] |= 0x0f;
    }
    for at in mask.iter().copied().chain([header + 6, header + 7, header + 8 + 4]) {
        ip[at] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in [0xff; 8].iter().chain(&ip) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// One of all frames a pair of devices exchanges, over both IP versions.
fn all_frames() -> Vec<Vec<u8>> {
    let mut frames = vec![];
    for gid_index in [0, 1] {
        let mut world = World::new();
        world.recording = Some(vec![]);
        let every = Scenario::every_kind(Mtu::B1024, &[0, 1, 2, 3, 1023, 2500], 1);
        let connection = Connection { gid_index, ..every.connection };
        check(&mut world, &Scenario { connection, early_receives: 1, ..every }).unwrap();
        world.nodes[1].recv(1, 900, HEAP, 4096);
        world.nodes[0].send(1, 901, SEND, HEAP, 5000);
        world.run();
        send_datagrams(&mut world, gid_index);
        frames.append(&mut world.recording.take().unwrap());
    }
    frames
}

fn send_datagrams(world: &mut World, gid_index: u8) {
    let now = world.now;
    let qpns = [0, 1].map(|n: usize| world.nodes[n].create_ud(now, QpId(5), QpType::Ud, 7));
    let av = verbs::AddressVector {
        traffic_class: 0xb9,
        flow_label: 0xabcde,
        hop_limit: 3,
        ..world.nodes[0].av(&world.nodes[1], gid_index)
    };
    let to = UdAddress { av, qpn: qpns[1], qkey: 7 };
    for imm in [None, Some([1, 2, 3, 4])] {
        world.nodes[0].send(5, 902, SendOp::UdSend { to, imm }, HEAP, 77);
    }
    world.run();
}

#[test]
fn crc_of_every_frame_agrees_with_the_naive_one() {
    for frame in all_frames() {
        assert_eq!(frame[frame.len() - 4..], naive_icrc(&frame));
    }
}

#[test]
fn every_opcode_is_sent_and_survives_parsing_and_encoding() {
    let mut opcodes: Vec<u8> = all_frames().iter().map(|frame| edit::packet(frame).pdu.opcode().0).collect();
    opcodes.sort_unstable();
    opcodes.dedup();
    // All but the sends that invalidate, which fast_reg.rs covers, and the notification.
    let rc = (Opcode::RC_SEND_FIRST.0..=Opcode::RC_FETCH_ADD.0).chain([0x64, 0x65]);
    assert_eq!(opcodes, rc.collect::<Vec<_>>());
    for sent in all_frames() {
        let frame = Frame::parse(&sent).unwrap();
        let path = Path { src: frame.src, dst: frame.dst, ..Path::default() };
        let payload = frame.payload.len() as u32;
        let header = Header::encode(device_model::net::MacAddr::default(), &path, &frame.packet, payload);
        let transport = edit::bth(&sent);
        assert_eq!(header.bytes()[transport..], sent[transport..frame.payload.start]);
        assert_eq!(header.pad(), sent.len() - 4 - frame.payload.end);
    }
}

#[test]
fn ipv4_packets_cannot_be_fragmented_and_need_no_identification() {
    let path = Path {
        src: Gid::from(std::net::Ipv4Addr::new(1, 2, 3, 4)),
        dst: Gid::from(std::net::Ipv4Addr::new(5, 6, 7, 8)),
        src_port: 0xc001,
        hop_limit: 64,
        ..Path::default()
    };
    let packet = Packet::new(Qpn(7), Psn::new(9), Pdu::Cnp);
    let header = Header::encode(device_model::net::MacAddr::default(), &path, &packet, 0);
    assert_eq!(header.bytes()[14..24], [0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17]);
    assert_eq!(header.bytes()[34..42], [0xc0, 0x01, 0x12, 0xb7, 0, 40, 0, 0]);
}

#[test]
fn every_truncation_and_every_flipped_bit_is_noticed() {
    let frame = all_frames().into_iter().find(|frame| frame.len() > 80 && frame.len() < 120).unwrap();
    for len in 0..frame.len() {
        Frame::parse(&frame[..len]).unwrap_err();
    }
    let good = Frame::parse(&frame).unwrap();
    for bit in 14 * 8..frame.len() * 8 {
        let mut bad = frame.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        match Frame::parse(&bad) {
            Err(_) => {}
            // Only what routers may change can change.
            Ok(parsed) => {
                let becn = good.packet.becn;
                let packet = Packet { becn, ..parsed.packet };
                assert_eq!((packet, parsed.payload), (good.packet, good.payload.clone()));
            }
        }
    }
    let mut padded = frame.clone();
    padded.extend([0; 30]);
    assert_eq!(Frame::parse(&padded), Ok(good));
}

/// A capture file of Ethernet frames (the classic format: magic, version 2.4, link type 1).
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![];
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend(word.to_le_bytes());
    }
    for (i, frame) in (0u32..).zip(frames) {
        for word in [0, i, frame.len() as u32, frame.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    out
}

#[test]
fn wireshark_reads_every_frame_as_it_was_meant() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let frames = all_frames();
    let file = std::env::temp_dir().join(format!("roce-{}.pcap", std::process::id()));
    std::fs::write(&file, capture(&frames)).unwrap();
    let fields = ["_ws.malformed", "infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.invariant.crc"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields"]);
    // These would try to find themselves in random payload.
    for guesses in ["rpcordma", "smb_direct", "lnet", "iser", "nvme-rdma", "smc"] {
        tshark.args(["--disable-protocol", guesses]);
    }
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), frames.len());
    for (line, frame) in text.lines().zip(&frames) {
        let [malformed, opcode, psn, crc] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("unexpected output {line:?}")
        };
        let packet = edit::packet(frame);
        assert_eq!((malformed, psn), ("", &*packet.psn.get().to_string()));
        assert_eq!(opcode, packet.pdu.opcode().0.to_string());
        let wire = u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap());
        assert_eq!(crc, format!("0x{wire:08x}"));
    }
}
