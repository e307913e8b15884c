//! Changing frames on the wire.

use roce::wire::{Family, Frame, Packet, icrc::Icrc};

const ETHERNET: usize = 14;

/// The parsed headers of a frame a device sent.
pub fn packet(frame: &[u8]) -> Packet {
    Frame::parse(frame).unwrap().packet
}

/// Offset of the base transport header.
pub fn bth(frame: &[u8]) -> usize {
    ETHERNET + 8 + if frame[12..14] == [0x08, 0x00] { 20 } else { 40 }
}

/// Offset of the first extension header.
pub fn ext(frame: &[u8]) -> usize {
    bth(frame) + 12
}

/// Puts the right CRC at the end of a frame that was changed.
pub fn seal(frame: &mut [u8]) {
    let family = if frame[12..14] == [0x08, 0x00] { Family::V4 } else { Family::V6 };
    let at = frame.len() - 4;
    let crc = Icrc::new(family, &frame[ETHERNET..at]).finish();
    frame[at..].copy_from_slice(&crc);
}

/// Marks a frame as a congested router does.
pub fn mark(frame: &mut [u8]) {
    if frame[12..14] != [0x08, 0x00] {
        frame[ETHERNET + 1] |= 0b11 << 4;
        return;
    }
    frame[ETHERNET + 1] |= 0b11;
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let words = frame[ETHERNET..ETHERNET + 20].chunks(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// Traffic class of a frame.
pub fn traffic_class(frame: &[u8]) -> u8 {
    if frame[12..14] == [0x08, 0x00] {
        frame[ETHERNET + 1]
    } else {
        frame[ETHERNET] << 4 | frame[ETHERNET + 1] >> 4
    }
}
