//! The invariant CRC (IBTA 7.8.1 and annex A17.3.3).
//!
//! CRC-32 of IEEE 802.3 over eight bytes of ones (in place of the link header of InfiniBand) and the packet from its IP
//! header on, with all fields a router may change read as ones. It goes on the wire least significant byte first.

use super::frame::Family;

/// Bytes of the CRC.
pub const LEN: usize = 4;

/// Bytes of ones that stand for the absent local route header.
const LRH: usize = 8;
/// Header bytes that hold masked fields: IP, UDP, and the base transport header up to its reserved byte.
const MASKED_V4: usize = LRH + 20 + 8 + 5;
const MASKED_V6: usize = LRH + 40 + 8 + 5;

/// Offsets of masked bytes from the IP header on. IPv4: type of service, time to live, header checksum; UDP checksum; the
/// byte with the congestion bits.
const MASK_V4: [usize; 7] = [1, 8, 10, 11, 26, 27, 32];
/// IPv6: traffic class and flow label (but for the version, handled apart), hop limit; UDP checksum; congestion bits.
const MASK_V6: [usize; 7] = [1, 2, 3, 7, 46, 47, 52];

/// A CRC being computed over a packet in pieces.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Starts with `head`, the packet from its IP header up to any point after its base transport header.
    pub fn new(family: Family, head: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        let rest = match family {
            Family::V4 => masked::<MASKED_V4>(&mut hasher, head, &MASK_V4, 0),
            Family::V6 => masked::<MASKED_V6>(&mut hasher, head, &MASK_V6, 0x0f),
        };
        hasher.update(rest);
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

/// Hashes the part of `head` that holds masked fields and returns the rest of it.
fn masked<'a, const N: usize>(
    hasher: &mut crc32fast::Hasher,
    head: &'a [u8],
    mask: &[usize],
    first: u8,
) -> &'a [u8] {
    let (fields, rest) = head.split_at_checked(N - LRH).unwrap_or((head, &[]));
    let mut bytes = [0xff; N];
    for (to, from) in bytes.iter_mut().skip(LRH).zip(fields) {
        *to = *from;
    }
    bytes[LRH] |= first;
    for at in mask {
        bytes[LRH + at] = 0xff;
    }
    hasher.update(bytes.get(..LRH + fields.len()).unwrap_or(&bytes));
    rest
}
