//! Captures of a port, read back: an independent look at the RoCE v2 frames in them.
//!
//! The check of the invariant CRC is written from the specification and shares no code with the engine that made the
//! frames.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use pcap_file::pcapng::{Block, PcapNgReader};

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
    let file = File::open(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let mut reader = PcapNgReader::new(BufReader::new(file))
        .with_context(|| format!("{} is no pcapng file", path.display()))?;
    let mut counts = Counts::default();
    while let Some(Ok(block)) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block {
            counts.frames += 1;
            if let Some(right) = invariant_crc_is_right(&packet.data) {
                counts.roce += 1;
                counts.wrong_crc += u64::from(!right);
            }
        }
    }
    Ok(counts)
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
