//! The invariant CRC (IBTA 7.8.1 and annex A17.3.3).
//!
//! CRC-32 of IEEE 802.3 over eight bytes of ones (in place of the link header of InfiniBand) and the packet from its IP
//! header on, with all fields a router may change read as ones. It goes on the wire least significant byte first.

use super::bth::BTH;
use super::ext;
use super::frame::Family;
use super::ip;

/// Bytes of the CRC.
pub const LEN: usize = 4;

/// The CRC of eight bytes of ones.
const START: u32 = 0x2144_df1c;
/// Room for all headers from the IP header on.
const HEAD: usize = ip::IPV6_HEADER + ip::UDP_HEADER + BTH + ext::LONGEST;

/// Offsets of masked bytes from the IP header on. IPv4: type of service, time to live, header checksum; UDP checksum; the
/// byte with the congestion bits.
const MASK_V4: [usize; 7] = [1, 8, 10, 11, 26, 27, 32];
/// IPv6: traffic class and flow label (but for the half byte next to the version), hop limit; UDP checksum; congestion bits.
const MASK_V6: [usize; 7] = [1, 2, 3, 7, 46, 47, 52];

/// A CRC being computed over a packet in pieces.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Starts with `head`, the packet from its IP header up to any point after its base transport header.
    pub fn new(family: Family, head: &[u8]) -> Self {
        let (fields, rest) = head.split_at_checked(HEAD).unwrap_or((head, &[]));
        let mut masked = [0; HEAD];
        masked[..fields.len()].copy_from_slice(fields);
        let mask = match family {
            Family::V4 => &MASK_V4,
            Family::V6 => {
                masked[0] |= 0x0f;
                &MASK_V6
            }
        };
        for at in mask {
            masked[*at] = 0xff;
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(START);
        hasher.update(&masked[..fields.len()]);
        if !rest.is_empty() {
            hasher.update(rest);
        }
        Self(hasher)
    }

    /// Goes on with the next piece of extension headers, payload or padding.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The bytes that end the packet.
    pub fn finish(self) -> [u8; LEN] {
        self.0.finalize().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), START);
    }

    #[test]
    fn pieces_may_end_anywhere_after_the_base_header() {
        let packet: Vec<u8> = (0..=255).collect();
        for family in [Family::V4, Family::V6] {
            let whole = Icrc::new(family, &packet).finish();
            for at in 60..packet.len() {
                let mut pieces = Icrc::new(family, &packet[..at]);
                pieces.update(&packet[at..]);
                assert_eq!(pieces.finish(), whole);
            }
        }
    }
}
