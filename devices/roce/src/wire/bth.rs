//! Base transport header (IBTA 9.2).

use verbs::Qpn;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, Pdu};
use crate::psn::Psn;

/// Bytes of the header.
pub(super) const BTH: usize = size_of::<RawBth>();

/// The only partition key: the default partition, full membership.
pub const P_KEY_DEFAULT: u16 = 0xffff;

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 0x3;
const VERSION_MASK: u8 = 0x0f;
const FECN: u32 = 1 << 31;
const BECN: u32 = 1 << 30;
const ACK_REQ: u32 = 1 << 31;

/// The header as it stands on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawBth {
    opcode: u8,
    flags: u8,
    p_key: U16,
    dest_qp: U32,
    psn: U32,
}

/// A transport packet without its payload: base transport header and extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Receiving queue pair.
    pub dest: Qpn,
    /// Sequence number.
    pub psn: Psn,
    /// The receiver should raise a solicited event.
    pub solicited: bool,
    /// The receiver should acknowledge.
    pub ack_req: bool,
    /// Partition.
    pub p_key: u16,
    /// Backward congestion notification.
    pub becn: bool,
    /// Kind and operands.
    pub pdu: Pdu,
}

impl Packet {
    /// A packet in the default partition that asks for nothing.
    pub const fn new(dest: Qpn, psn: Psn, pdu: Pdu) -> Self {
        Self { dest, psn, solicited: false, ack_req: false, p_key: P_KEY_DEFAULT, becn: false, pdu }
    }

    pub(super) fn raw(&self, pad: u8) -> RawBth {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let word = |set: bool, bit: u32| if set { bit } else { 0 };
        RawBth {
            opcode: self.pdu.opcode().0,
            // Automatic path migration is not used, which the specification and hardware express by a set bit.
            flags: flag(self.solicited, SOLICITED) | MIG_REQ | (pad & PAD_MASK) << PAD_SHIFT,
            p_key: U16::new(self.p_key),
            dest_qp: U32::new(word(self.becn, BECN) | self.dest.0 & Qpn::MASK),
            psn: U32::new(word(self.ack_req, ACK_REQ) | self.psn.get()),
        }
    }
}

impl RawBth {
    pub(super) const fn opcode(&self) -> Opcode {
        Opcode(self.opcode)
    }

    pub(super) const fn pad(&self) -> usize {
        (self.flags >> PAD_SHIFT & PAD_MASK) as usize
    }

    pub(super) const fn version(&self) -> u8 {
        self.flags & VERSION_MASK
    }

    pub(super) fn packet(&self, pdu: Pdu) -> Packet {
        let (dest, psn) = (self.dest_qp.get(), self.psn.get());
        Packet {
            dest: Qpn(dest & Qpn::MASK),
            psn: Psn::new(psn),
            solicited: self.flags & SOLICITED != 0,
            ack_req: psn & ACK_REQ != 0,
            p_key: self.p_key.get(),
            becn: dest & (FECN | BECN) == BECN,
            pdu,
        }
    }
}
