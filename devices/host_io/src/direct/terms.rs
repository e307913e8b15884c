//! What each side of a channel tells the other, once: a message with two files, little-endian.

use std::net::IpAddr;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::memory::Range;

/// First bytes of the message.
const MAGIC: [u8; 8] = *b"VRBN-DC\0";
/// Both sides must speak the same.
const VERSION: u16 = 1;
/// Most parts of memory.
const MAX_RANGES: usize = 16;
/// Most addresses.
const MAX_ADDRESSES: usize = 16;
/// Instead of a number of addresses: the guest may use any.
const ANY: u8 = u8::MAX;
/// Longest message.
pub(super) const MAX_TERMS: usize =
    size_of::<RawTerms>() + MAX_RANGES * size_of::<RawRange>() + MAX_ADDRESSES * 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTerms {
    magic: [u8; 8],
    version: U16,
    ranges: u8,
    addresses: u8,
    reserved: [u8; 4],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRange {
    gpa: U64,
    len: U64,
    offset: U64,
}

/// Where a machine's memory is in the file that comes along first, and by which addresses it may send. The file that comes
/// along second is the ring it writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Memory.
    pub ranges: Vec<Range>,
    /// `None`: any.
    pub addresses: Option<Vec<IpAddr>>,
}

/// An address as it stands in a GID.
fn to_bytes(address: &IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Terms {
    /// Writes the message. `None` when it has more parts or addresses than a message holds.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let ranges = u8::try_from(self.ranges.len()).ok().filter(|n| usize::from(*n) <= MAX_RANGES)?;
        let addresses = match &self.addresses {
            None => ANY,
            Some(list) => u8::try_from(list.len()).ok().filter(|n| usize::from(*n) <= MAX_ADDRESSES)?,
        };
        let start = RawTerms { magic: MAGIC, version: VERSION.into(), ranges, addresses, reserved: [0; 4] };
        let mut out = start.as_bytes().to_vec();
        for Range { gpa, len, offset } in self.ranges.iter().copied() {
            out.extend(RawRange { gpa: gpa.into(), len: len.into(), offset: offset.into() }.as_bytes());
        }
        self.addresses.iter().flatten().for_each(|address| out.extend(to_bytes(address)));
        Some(out)
    }

    /// Reads the message; `None` when it is of another version or makes no sense.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (start, rest) = RawTerms::read_from_prefix(message).ok()?;
        let ranges = usize::from(start.ranges);
        if start.magic != MAGIC || start.version.get() != VERSION || !(1..=MAX_RANGES).contains(&ranges) {
            return None;
        }
        let (raw, rest) = <[RawRange]>::ref_from_prefix_with_elems(rest, ranges).ok()?;
        let range =
            |raw: &RawRange| Range { gpa: raw.gpa.get(), len: raw.len.get(), offset: raw.offset.get() };
        let addresses = match start.addresses {
            ANY => None,
            count if usize::from(count) <= MAX_ADDRESSES => {
                let (raw, _) = <[[u8; 16]]>::ref_from_prefix_with_elems(rest, usize::from(count)).ok()?;
                Some(raw.iter().map(|bytes| IpAddr::from(*bytes).to_canonical()).collect())
            }
            _ => return None,
        };
        Some(Self { ranges: raw.iter().map(range).collect(), addresses })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terms_are_read_as_they_were_written() {
        let range = Range { gpa: 1 << 32, len: 4096, offset: 8192 };
        for addresses in
            [None, Some(vec![]), Some(vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()])]
        {
            let terms = Terms { ranges: vec![range; 2], addresses };
            assert_eq!(Terms::parse(&terms.encode().unwrap()), Some(terms));
        }
        assert_eq!(Terms { ranges: vec![range; 17], addresses: None }.encode(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(
            head in prop::sample::select(vec![&MAGIC[..], b"xxxxxxxx"]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = Terms::parse(&[head, &VERSION.to_le_bytes(), &rest].concat());
        }
    }
}
