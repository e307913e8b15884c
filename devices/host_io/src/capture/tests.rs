//! Captured files, read back by an independent reader and by tshark.

use std::fs::{self, File};
use std::io::{IoSlice, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use device_model::net::Link;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::fs::{CWD, FileType, OFlags};

use super::{Capture, CaptureFile, Direction};
use crate::pair::pair;
use crate::testing::{frame, mac, recv, send, wait_until};

struct Lab {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("link.pcapng");
        Self { _dir: dir, path }
    }

    fn file(&self, max_bytes: Option<u64>) -> CaptureFile {
        CaptureFile::create(&self.path, max_bytes).unwrap()
    }
}

/// Who has 10.0.0.2?
const ARP_REQUEST: &[u8] = &[
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06, // Ethernet
    0, 1, 0x08, 0, 6, 4, 0, 1, // ARP request, Ethernet and IPv4
    2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
];

/// RC acknowledge with PSN 0x010203.
const ROCE_ACK: &[u8] = &[
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbb, 10, 0, 0, 2, 10, 0, 0, 1, // IPv4
    0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0, // UDP to port 4791
    17, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 1, 2, 3, // BTH
    0x1f, 0, 0, 1, // AETH
    0, 0, 0, 0, // invariant CRC, which no one checks here
];

/// Interface, flags, drop count and bytes of each packet in a file.
fn packets(file: impl Read) -> Vec<(u32, u32, u64, Vec<u8>)> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let (mut flags, mut dropped) = (0, 0);
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(f) => flags = *f,
                EnhancedPacketOption::DropCount(n) => dropped = *n,
                other => panic!("{other:?}"),
            }
        }
        packets.push((packet.interface_id, flags, dropped, packet.data.to_vec()));
    }
    packets
}

#[test]
fn both_directions_of_two_links_are_in_one_private_file() {
    let lab = Lab::new();
    let file = Arc::new(lab.file(None));
    let (a, b) = pair(1500).unwrap();
    let a = Capture::new(a, Arc::clone(&file), "vm0/net0", "switch:/x");
    let b = Capture::new(b, Arc::clone(&file), "vm1/net0", "switch:/x");
    let (question, answer) = (frame(mac(2), mac(1), 60, 1), frame(mac(1), mac(2), 61, 2));
    a.send(&[IoSlice::new(&question[..14]), IoSlice::new(&question[14..])]).unwrap();
    recv(&b);
    send(&b, &answer);
    recv(&a);
    file.flush();
    let (inbound, outbound) = (Direction::Inbound as u32, Direction::Outbound as u32);
    let expected = vec![
        (0, outbound, 0, question.clone()),
        (1, inbound, 0, question),
        (1, outbound, 0, answer.clone()),
        (0, inbound, 0, answer),
    ];
    assert_eq!(packets(File::open(&lab.path).unwrap()), expected);
    assert_eq!(fs::metadata(&lab.path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn file_stops_at_its_limit_and_counts_what_it_lacks() {
    let lab = Lab::new();
    let limit = 4096;
    let file = lab.file(Some(limit));
    let id = file.add_interface("net0", "");
    for _ in 0..100 {
        file.record(id, Direction::Outbound, &[IoSlice::new(&[0; 200])]);
    }
    let counters = file.counters();
    assert_eq!(counters.frames + counters.dropped, 100);
    drop(file);
    assert!(fs::metadata(&lab.path).unwrap().len() <= limit);
    assert_eq!(packets(File::open(&lab.path).unwrap()).len() as u64, counters.frames);
}

#[test]
fn frames_beyond_the_buffer_are_left_out_and_the_next_one_says_how_many() {
    let lab = Lab::new();
    // A pipe that nobody reads takes the part of a disk that does not keep up.
    rustix::fs::mknodat(CWD, &lab.path, FileType::Fifo, 0o600.into(), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut reader = File::options().read(true).custom_flags(nonblocking).open(&lab.path).unwrap();
    let file = lab.file(None);
    rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
    let id = file.add_interface("net0", "");
    for _ in 0..3000 {
        file.record(id, Direction::Inbound, &[IoSlice::new(&[7; 9000])]);
    }
    let counters = file.counters();
    assert!(counters.dropped > 0 && counters.frames > 500, "{counters:?}");

    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    });
    wait_until("room in the buffer", || {
        file.record(id, Direction::Inbound, &[IoSlice::new(&[8; 60])]);
        file.counters().frames > counters.frames
    });
    drop(file);
    let bytes = reading.join().unwrap().unwrap();
    let packets = packets(&bytes[..]);
    assert_eq!(packets.last().unwrap().3, [8; 60]);
    // Room may have come and gone before the last frame: then an earlier one tells of some.
    assert!(packets.iter().map(|(_, _, left_out, _)| left_out).sum::<u64>() >= counters.dropped);
}

#[test]
fn tshark_reads_the_growing_file_and_dissects_roce() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("not run: tshark is not installed");
        return;
    }
    let lab = Lab::new();
    let file = lab.file(None);
    let id = file.add_interface("vm0/net0", "port of the switch");
    file.record(id, Direction::Outbound, &[IoSlice::new(ARP_REQUEST)]);
    file.record(id, Direction::Inbound, &[IoSlice::new(ROCE_ACK)]);
    file.flush();
    let fields = [
        "frame.interface_name",
        "frame.interface_description",
        "frame.packet_flags_direction",
        "arp.opcode",
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "_ws.malformed",
    ];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&lab.path).args(["-T", "fields", "-E", "separator=|"]);
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split('|').collect()).collect();
    // Releases differ in how they print a number in hexadecimal.
    let direction = |row: &[&str]| row[2].trim_start_matches("0x").parse::<u8>();
    assert_eq!(rows.len(), 2, "{text}");
    assert_eq!(rows[0][..2], ["vm0/net0", "port of the switch"]);
    assert_eq!((direction(&rows[0]), &rows[0][3..]), (Ok(2), &["1", "", "", ""][..]));
    assert_eq!((direction(&rows[1]), &rows[1][3..]), (Ok(1), &["", "17", "66051", ""][..]));
}
