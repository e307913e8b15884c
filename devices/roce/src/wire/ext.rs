//! Extended transport headers (IBTA 9.3).

use serde::{Deserialize, Serialize};
use verbs::Qpn;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most bytes of extension headers before a payload: RETH and immediate data.
pub(super) const LONGEST_WITH_PAYLOAD: usize = size_of::<RawReth>() + size_of::<U32>();
/// Most bytes of extension headers at all.
pub(super) const LONGEST: usize = size_of::<RawAtomicEth>();

/// RDMA extended transport header: what a READ or WRITE is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reth {
    /// First address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawReth {
    va: U64,
    rkey: U32,
    len: U32,
}

impl From<RawReth> for Reth {
    fn from(raw: RawReth) -> Self {
        Self { va: raw.va.get(), rkey: raw.rkey.get(), len: raw.len.get() }
    }
}

impl From<Reth> for RawReth {
    fn from(reth: Reth) -> Self {
        Self { va: U64::new(reth.va), rkey: U32::new(reth.rkey), len: U32::new(reth.len) }
    }
}

/// An atomic operation on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Store `swap` if the value is `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd(u64),
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Operation.
    pub kind: AtomicKind,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawAtomicEth {
    va: U64,
    rkey: U32,
    swap_add: U64,
    compare: U64,
}

impl RawAtomicEth {
    pub(super) fn decode(self, swap: bool) -> AtomicEth {
        let (swap_add, compare) = (self.swap_add.get(), self.compare.get());
        let kind = if swap {
            AtomicKind::CompareSwap { compare, swap: swap_add }
        } else {
            AtomicKind::FetchAdd(swap_add)
        };
        AtomicEth { va: self.va.get(), rkey: self.rkey.get(), kind }
    }
}

impl From<AtomicEth> for RawAtomicEth {
    fn from(eth: AtomicEth) -> Self {
        let (swap_add, compare) = match eth.kind {
            AtomicKind::CompareSwap { compare, swap } => (swap, compare),
            AtomicKind::FetchAdd(add) => (add, 0),
        };
        Self {
            va: U64::new(eth.va),
            rkey: U32::new(eth.rkey),
            swap_add: U64::new(swap_add),
            compare: U64::new(compare),
        }
    }
}

/// Why a request was refused for good or for now (IBTA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NakCode {
    /// A packet is missing before this one.
    Sequence,
    /// The request makes no sense here.
    InvalidRequest,
    /// A key does not grant what was asked.
    RemoteAccess,
    /// The responder cannot carry it out.
    RemoteOperation,
}

/// Meaning of an acknowledgement (IBTA table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to the packet's sequence number is done. Carries the encoded end-to-end credit count.
    Ack(u8),
    /// No receive is posted; try again after the time the 5-bit code stands for.
    RnrNak(u8),
    /// Refused.
    Nak(NakCode),
    /// Reserved values.
    Reserved(u8),
}

impl Syndrome {
    /// Acknowledgement by a responder that does not count credits.
    pub const ACK: Self = Self::Ack(0x1f);

    const fn decode(byte: u8) -> Self {
        match (byte >> 5, byte & 0x1f) {
            (0, credits) => Self::Ack(credits),
            (1, timer) => Self::RnrNak(timer),
            (3, 0) => Self::Nak(NakCode::Sequence),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccess),
            (3, 3) => Self::Nak(NakCode::RemoteOperation),
            _ => Self::Reserved(byte),
        }
    }

    const fn encode(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(NakCode::Sequence) => 0x60,
            Self::Nak(NakCode::InvalidRequest) => 0x61,
            Self::Nak(NakCode::RemoteAccess) => 0x62,
            Self::Nak(NakCode::RemoteOperation) => 0x63,
            Self::Reserved(byte) => byte,
        }
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Meaning.
    pub syndrome: Syndrome,
    /// Messages the responder has completed, 24 bits.
    pub msn: u32,
}

impl From<U32> for Aeth {
    fn from(raw: U32) -> Self {
        let [syndrome, ..] = raw.to_bytes();
        Self { syndrome: Syndrome::decode(syndrome), msn: raw.get() & 0xff_ffff }
    }
}

impl From<Aeth> for U32 {
    fn from(aeth: Aeth) -> Self {
        Self::new(u32::from(aeth.syndrome.encode()) << 24 | aeth.msn & 0xff_ffff)
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Sending queue pair.
    pub src: Qpn,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawDeth {
    qkey: U32,
    src: U32,
}

impl From<RawDeth> for Deth {
    fn from(raw: RawDeth) -> Self {
        Self { qkey: raw.qkey.get(), src: Qpn(raw.src.get() & Qpn::MASK) }
    }
}

impl From<Deth> for RawDeth {
    fn from(deth: Deth) -> Self {
        Self { qkey: U32::new(deth.qkey), src: U32::new(deth.src.0 & Qpn::MASK) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives_decoding() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::decode(byte).encode(), byte);
        }
    }

    #[test]
    fn headers_have_the_sizes_of_the_specification() {
        assert_eq!((size_of::<RawReth>(), size_of::<RawAtomicEth>(), size_of::<RawDeth>()), (16, 28, 8));
    }
}
