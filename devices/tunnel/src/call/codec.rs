//! Frames by which two ends of a channel find each other.
//!
//! ```text
//! 0    Ethernet header: receiver's and sender's address, ethertype 0x88b5 (IEEE 802 local experimental)
//! 14   "VTUN", version, kind, two bytes of zero
//! 22   16 random bytes of the caller
//! 38   16 random bytes of who answers; zero in a CALL
//! 54   ANSWER, ACCEPT: terms
//! ...  HMAC-SHA-256 of all before, by the key that both have
//! ```
//!
//! Numbers of terms are little-endian.

use std::net::IpAddr;

use device_model::net::{ETHERNET_HEADER, ETHERTYPE_TUNNEL, MacAddr};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::channel::Region;

const MAGIC: [u8; 4] = *b"VTUN";
const VERSION: u8 = 1;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
const ACCEPT: u8 = 3;
/// Bytes of the authentication code.
const TAG: usize = 32;
/// Most regions of memory.
pub const MAX_REGIONS: usize = 16;
/// Most addresses.
pub const MAX_ADDRESSES: usize = 16;
/// Instead of a number of addresses: the guest may use any.
const ANY: u8 = u8::MAX;

/// Random bytes by which a side knows that an answer is one to it.
pub type Nonce = [u8; 16];

/// What each side tells the other of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Address of the host's device.
    pub gid: [u8; 16],
    /// Number of the queue pair there.
    pub qpn: u32,
    /// First sequence number it sends.
    pub psn: u32,
    /// Largest path MTU, as verbs number them.
    pub mtu: u8,
    /// READs that it answers at a time.
    pub reads: u8,
    /// The machine's memory, each region with the key by which it may be read.
    pub regions: Vec<(Region, u32)>,
    /// Addresses that the guest may send from; `None`: any.
    pub addresses: Option<Vec<IpAddr>>,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A channel is wanted.
    Call {
        /// Of the caller.
        caller: Nonce,
    },
    /// This end is ready.
    Answer {
        /// As in the call.
        caller: Nonce,
        /// Of who answers.
        answerer: Nonce,
        /// Its end.
        terms: Terms,
    },
    /// So is the caller's.
    Accept {
        /// As in the call.
        caller: Nonce,
        /// As in the answer.
        answerer: Nonce,
        /// The caller's end.
        terms: Terms,
    },
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    dst: [u8; 6],
    src: [u8; 6],
    ethertype: [u8; 2],
    magic: [u8; 4],
    version: u8,
    kind: u8,
    zero: [u8; 2],
    caller: Nonce,
    answerer: Nonce,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTerms {
    gid: [u8; 16],
    qpn: U32,
    psn: U32,
    mtu: u8,
    reads: u8,
    regions: u8,
    addresses: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRegion {
    gpa: U64,
    len: U64,
    rkey: U32,
}

/// The key that both sides have.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl Key {
    /// Fewest bytes of a secret.
    pub const MIN: usize = 16;

    /// A key of a secret. `None` when that is too short.
    pub fn new(secret: &[u8]) -> Option<Self> {
        Hmac::new_from_slice(secret).ok().filter(|_| secret.len() >= Self::MIN).map(Self)
    }
}

/// Whether a frame is one of these, to whomever.
pub fn is_call(frame: &[u8]) -> bool {
    let ethertype = frame.get(ETHERNET_HEADER - 2..ETHERNET_HEADER);
    ethertype == Some(&ETHERTYPE_TUNNEL.to_be_bytes())
        && frame.get(ETHERNET_HEADER..).is_some_and(|rest| rest.starts_with(&MAGIC))
}

/// An address as it stands in a GID.
fn to_bytes(address: &IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Terms {
    /// Whether they fit a frame.
    pub fn fit(&self) -> bool {
        self.regions.len() <= MAX_REGIONS && self.addresses.iter().all(|list| list.len() <= MAX_ADDRESSES)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let addresses = self.addresses.as_ref().map_or(ANY, |list| list.len() as u8);
        let Self { gid, qpn, psn, mtu, reads, .. } = *self;
        let regions = self.regions.len() as u8;
        out.extend(
            RawTerms { gid, qpn: qpn.into(), psn: psn.into(), mtu, reads, regions, addresses }.as_bytes(),
        );
        for (Region { gpa, len }, rkey) in self.regions.iter().copied() {
            out.extend(RawRegion { gpa: gpa.into(), len: len.into(), rkey: rkey.into() }.as_bytes());
        }
        self.addresses.iter().flatten().for_each(|address| out.extend(to_bytes(address)));
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (start, rest) = RawTerms::read_from_prefix(bytes).ok()?;
        let regions = usize::from(start.regions);
        if !(1..=MAX_REGIONS).contains(&regions) {
            return None;
        }
        let (raw, rest) = <[RawRegion]>::ref_from_prefix_with_elems(rest, regions).ok()?;
        let region = |raw: &RawRegion| (Region { gpa: raw.gpa.get(), len: raw.len.get() }, raw.rkey.get());
        let addresses = match start.addresses {
            ANY if rest.is_empty() => None,
            count if usize::from(count) <= MAX_ADDRESSES => {
                let raw = <[[u8; 16]]>::ref_from_bytes_with_elems(rest, usize::from(count)).ok()?;
                Some(raw.iter().map(|bytes| IpAddr::from(*bytes).to_canonical()).collect())
            }
            _ => return None,
        };
        Some(Self {
            gid: start.gid,
            qpn: start.qpn.get(),
            psn: start.psn.get(),
            mtu: start.mtu,
            reads: start.reads,
            regions: raw.iter().map(region).collect(),
            addresses,
        })
    }
}

impl Message {
    /// Writes a frame.
    pub fn encode(&self, dst: MacAddr, src: MacAddr, key: &Key) -> Vec<u8> {
        let (kind, caller, answerer, terms) = match self {
            Self::Call { caller } => (CALL, *caller, [0; 16], None),
            Self::Answer { caller, answerer, terms } => (ANSWER, *caller, *answerer, Some(terms)),
            Self::Accept { caller, answerer, terms } => (ACCEPT, *caller, *answerer, Some(terms)),
        };
        let head = RawHead {
            dst: dst.0,
            src: src.0,
            ethertype: ETHERTYPE_TUNNEL.to_be_bytes(),
            magic: MAGIC,
            version: VERSION,
            kind,
            zero: [0; 2],
            caller,
            answerer,
        };
        let mut out = head.as_bytes().to_vec();
        if let Some(terms) = terms {
            terms.encode(&mut out);
        }
        let tag = key.0.clone().chain_update(&out).finalize().into_bytes();
        out.extend_from_slice(&tag);
        out
    }

    /// Reads a frame to `own`, and who sent it. `None` when it is to someone else, of another version, not made with the key,
    /// or makes no sense.
    pub fn parse(frame: &[u8], own: MacAddr, key: &Key) -> Option<(MacAddr, Self)> {
        let (signed, tag) = frame.split_at_checked(frame.len().checked_sub(TAG)?)?;
        let (head, rest) = RawHead::read_from_prefix(signed).ok()?;
        if !is_call(frame) || head.dst != own.0 || head.version != VERSION {
            return None;
        }
        key.0.clone().chain_update(signed).verify_slice(tag).ok()?;
        let RawHead { kind, caller, answerer, .. } = head;
        let message = match kind {
            CALL if rest.is_empty() => Self::Call { caller },
            ANSWER => Self::Answer { caller, answerer, terms: Terms::parse(rest)? },
            ACCEPT => Self::Accept { caller, answerer, terms: Terms::parse(rest)? },
            _ => return None,
        };
        Some((MacAddr(head.src), message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn key() -> Key {
        Key::new(b"a secret of some length").unwrap()
    }

    fn terms(addresses: Option<Vec<IpAddr>>) -> Terms {
        let regions = vec![(Region { gpa: 0, len: 1 << 30 }, 7), (Region { gpa: 1 << 32, len: 4096 }, 8)];
        Terms { gid: [9; 16], qpn: 17, psn: 0xff_fff0, mtu: 5, reads: 16, regions, addresses }
    }

    fn messages() -> Vec<Message> {
        let (caller, answerer) = ([1; 16], [2; 16]);
        let some = Some(vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()]);
        vec![
            Message::Call { caller },
            Message::Answer { caller, answerer, terms: terms(None) },
            Message::Accept { caller, answerer, terms: terms(some) },
            Message::Accept { caller, answerer, terms: terms(Some(vec![])) },
        ]
    }

    #[test]
    fn frame_is_read_as_it_was_written_by_who_has_the_key() {
        for message in messages() {
            let frame = message.encode(B, A, &key());
            assert!(is_call(&frame) && frame.len() >= 60);
            assert_eq!(Message::parse(&frame, B, &key()), Some((A, message)));
            assert_eq!(Message::parse(&frame, A, &key()), None);
            assert_eq!(Message::parse(&frame, B, &Key::new(&[0; 16]).unwrap()), None);
        }
        assert!(Key::new(&[1; 15]).is_none());
    }

    #[test]
    fn largest_terms_fit_the_smallest_mtu() {
        let terms = Terms {
            regions: vec![(Region { gpa: 0, len: 1 }, 0); MAX_REGIONS],
            addresses: Some(vec![[10, 0, 0, 1].into(); MAX_ADDRESSES]),
            ..terms(None)
        };
        assert!(terms.fit());
        let frame = Message::Accept { caller: [1; 16], answerer: [2; 16], terms }.encode(B, A, &key());
        assert!(frame.len() <= ETHERNET_HEADER + 1500 && Message::parse(&frame, B, &key()).is_some());
    }

    #[test]
    fn frame_with_any_bit_flipped_is_refused() {
        for message in messages() {
            let frame = message.encode(B, A, &key());
            for bit in 0..frame.len() * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Message::parse(&changed, B, &key()), None, "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_signed_bytes_are_parsed_without_panic(
            kind in 0u8..5,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut frame = Message::Call { caller: [1; 16] }.encode(B, A, &key());
            frame.truncate(size_of::<RawHead>());
            frame[19] = kind;
            frame.extend(body);
            let tag = key().0.chain_update(&frame).finalize().into_bytes();
            frame.extend_from_slice(&tag);
            let _ = Message::parse(&frame, B, &key());
        }
    }
}
