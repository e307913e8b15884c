//! Captures of a port, read back: an independent look at the RoCE v2 frames in them.
//!
//! The check of the invariant CRC is written from the specification and shares no code with the engine that made the
//! frames.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};

/// UDP destination port of RoCE v2.
const ROCE_PORT: [u8; 2] = 4791u16.to_be_bytes();
const ETHERNET: usize = 14;
const UDP: usize = 8;
/// Base transport header and invariant CRC: the least a frame holds.
const SHORTEST: usize = 12 + CRC;
const CRC: usize = 4;

/// What a capture holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames of any kind.
    pub frames: u64,
    /// RoCE v2 frames.
    pub roce: u64,
    /// Of these, those whose invariant CRC is wrong.
    pub wrong_crc: u64,
}

/// Counts the frames of a pcapng file. A last block that is still being written is left out.
///
/// # Errors
///
/// When the file is none.
pub fn count(path: &Path) -> Result<Counts> {
    let mut counts = Counts::default();
    for_each_frame(path, |frame| {
        counts.frames += 1;
        if let Some(right) = invariant_crc_is_right(frame) {
            counts.roce += 1;
            counts.wrong_crc += u64::from(!right);
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Copies the first `each` RoCE v2 frames of every kind (IP version and opcode) of a pcapng file into a new one. Gives how
/// many there were of each kind.
///
/// # Errors
///
/// When the file is none, or the new one cannot be written.
pub fn sample(path: &Path, each: u32, new: &Path) -> Result<BTreeMap<Kind, u32>> {
    let cannot = || format!("Cannot write {}", new.display());
    let file = File::create(new).with_context(cannot)?;
    let mut writer = PcapNgWriter::new(BufWriter::new(file)).with_context(cannot)?;
    writer
        .write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![],
        })
        .with_context(cannot)?;
    let mut kinds = BTreeMap::new();
    for_each_frame(path, |frame| {
        let Some(kind) = Kind::of(frame) else { return Ok(()) };
        let taken = kinds.entry(kind).or_insert(0);
        if *taken == each {
            return Ok(());
        }
        *taken += 1;
        writer.write_pcapng_block(block(frame)).with_context(cannot).map(drop)
    })?;
    Ok(kinds)
}

fn block(frame: &[u8]) -> EnhancedPacketBlock<'_> {
    let original_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let (timestamp, options) = (Duration::ZERO, Vec::new());
    EnhancedPacketBlock { interface_id: 0, timestamp, original_len, data: Cow::Borrowed(frame), options }
}

/// Calls `see` with every frame of a pcapng file.
fn for_each_frame(path: &Path, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let mut reader = PcapNgReader::new(BufReader::new(file))
        .with_context(|| format!("{} is no pcapng file", path.display()))?;
    while let Some(Ok(block)) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block {
            see(&packet.data)?;
        }
    }
    Ok(())
}

/// What a RoCE v2 frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// 4 or 6.
    pub ip_version: u8,
    /// Opcode of its base transport header.
    pub opcode: u8,
}

impl Kind {
    /// The kind of a frame; nothing for other frames than RoCE v2.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let mut packet = frame.get(ETHERNET..)?.to_vec();
        let (ip_version, (udp, end)) = match frame.get(12..ETHERNET)? {
            [0x08, 0x00] => (4, mask_ipv4(&mut packet)?),
            [0x86, 0xdd] => (6, mask_ipv6(&mut packet)?),
            _ => return None,
        };
        let long_enough = end >= udp + UDP + SHORTEST;
        (long_enough && packet[udp + 2..udp + 4] == ROCE_PORT)
            .then(|| Self { ip_version, opcode: packet[udp + UDP] })
    }
}

/// Whether the invariant CRC of a RoCE v2 frame is right; nothing for other frames.
///
/// The CRC (InfiniBand Architecture Specification, Annex A17) is CRC-32 over eight bytes of ones, then the IP packet
/// with the fields that routers change set to ones.
pub fn invariant_crc_is_right(frame: &[u8]) -> Option<bool> {
    let mut packet = frame.get(ETHERNET..)?.to_vec();
    let (udp, end) = match frame.get(12..ETHERNET)? {
        [0x08, 0x00] => mask_ipv4(&mut packet)?,
        [0x86, 0xdd] => mask_ipv6(&mut packet)?,
        _ => return None,
    };
    packet.truncate(end);
    if packet.len() < udp + UDP + SHORTEST || packet[udp + 2..udp + 4] != ROCE_PORT {
        return None;
    }
    packet[udp + 6..udp + 8].fill(0xff);
    // The byte of the base transport header with the congestion bits.
    packet[udp + UDP + 4] = 0xff;
    let (covered, crc) = packet.split_last_chunk::<CRC>()?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0xff; 8]);
    hasher.update(covered);
    Some(hasher.finalize() == u32::from_le_bytes(*crc))
}

/// Sets type of service, time to live and checksum to ones. Gives where UDP starts and the packet ends.
fn mask_ipv4(packet: &mut [u8]) -> Option<(usize, usize)> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    if packet.len() < header.max(20) || packet[9] != 17 {
        return None;
    }
    let end = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    packet[1] = 0xff;
    packet[8] = 0xff;
    packet[10..12].fill(0xff);
    (header >= 20 && end <= packet.len()).then_some((header, end))
}

/// Sets traffic class, flow label and hop limit to ones. Gives where UDP starts and the packet ends.
fn mask_ipv6(packet: &mut [u8]) -> Option<(usize, usize)> {
    const HEADER: usize = 40;
    if packet.len() < HEADER || packet[6] != 17 {
        return None;
    }
    let end = HEADER + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    packet[0] |= 0x0f;
    packet[1..4].fill(0xff);
    packet[7] = 0xff;
    (end <= packet.len()).then_some((HEADER, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A congestion notification as a ConnectX-4 Lx sent it.
    const CNP: [u8; 74] = [
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, 0x45, 0xc2, 0x00,
        0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x82, 0xfd, 0x00, 0x2a,
    ];

    #[test]
    fn crc_of_a_hardware_frame_is_right() {
        assert_eq!(invariant_crc_is_right(&CNP), Some(true));
        assert_eq!(Kind::of(&CNP), Some(Kind { ip_version: 4, opcode: 0x81 }));
    }

    #[test]
    fn sample_has_so_many_of_each_kind() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, part) = (dir.path().join("whole"), dir.path().join("part"));
        let mut writer = PcapNgWriter::new(File::create(&whole).unwrap()).unwrap();
        let interface =
            InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options: vec![] };
        writer.write_pcapng_block(interface).unwrap();
        let mut other = CNP;
        other[42] = 4;
        for frame in [&CNP[..], &other, &CNP, &CNP[..50], &CNP, &other] {
            writer.write_pcapng_block(block(frame)).unwrap();
        }
        drop(writer);
        let kind = |opcode| Kind { ip_version: 4, opcode };
        assert_eq!(sample(&whole, 2, &part).unwrap(), BTreeMap::from([(kind(4), 2), (kind(0x81), 2)]));
        assert_eq!(count(&part).unwrap(), Counts { frames: 4, roce: 4, wrong_crc: 2 });
    }

    #[test]
    fn what_routers_change_does_not_matter_and_all_else_does() {
        let with = |place: usize| {
            let mut frame = CNP;
            frame[place] ^= 0x04;
            invariant_crc_is_right(&frame)
        };
        // Type of service, time to live, header checksum, UDP checksum, congestion bits.
        for place in [15, 22, 24, 40, 46] {
            assert_eq!(with(place), Some(true), "byte {place}");
        }
        // IP identification, source address, partition key, queue pair, payload, the CRC itself.
        for place in [18, 29, 45, 49, 60, 71] {
            assert_eq!(with(place), Some(false), "byte {place}");
        }
    }

    #[test]
    fn other_and_cut_frames_are_no_roce() {
        assert_eq!(invariant_crc_is_right(&CNP[..50]), None);
        assert_eq!(invariant_crc_is_right(&[]), None);
        let mut other_port = CNP;
        other_port[37] = 0;
        assert_eq!(invariant_crc_is_right(&other_port), None);
    }
}
