//! What a transport packet says: opcode and extension headers as one type.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::ext::{self, RawAtomicEth, RawDeth, RawReth};
use super::{Aeth, AtomicEth, AtomicKind, Deth, Opcode, Position, Reth};

/// Kind of a packet with the operands its extension headers carry. Values that exist are encodable and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Part of a send.
    Send {
        /// Part.
        at: Position,
        /// Immediate data, on the part that ends the message.
        imm: Option<[u8; 4]>,
    },
    /// The end of a send that invalidates a key of the receiver.
    SendInv {
        /// [`Position::Last`] or [`Position::Only`].
        at: Position,
        /// Key.
        rkey: u32,
    },
    /// Part of an RDMA write.
    Write {
        /// Part.
        at: Position,
        /// Target, on the part that starts the message.
        reth: Option<Reth>,
        /// Immediate data, on the part that ends the message.
        imm: Option<[u8; 4]>,
    },
    /// Request for data.
    ReadRequest(Reth),
    /// Part of the data.
    ReadResponse {
        /// Part.
        at: Position,
        /// Acknowledgement, on all but middle parts.
        aeth: Option<Aeth>,
    },
    /// Acknowledgement.
    Ack(Aeth),
    /// Request for an atomic operation.
    Atomic(AtomicEth),
    /// Its result.
    AtomicAck {
        /// Acknowledgement.
        aeth: Aeth,
        /// The value before.
        original: u64,
    },
    /// Datagram.
    Datagram {
        /// Key and sender.
        deth: Deth,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// Congestion notification.
    Cnp,
}

/// Bytes of a congestion notification after the base header, all reserved.
const CNP_RESERVED: usize = 16;

/// Takes extension headers off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn reth(&mut self) -> Option<Reth> {
        self.take::<RawReth>().map(Reth::from)
    }

    fn aeth(&mut self) -> Option<Aeth> {
        self.take::<U32>().map(Aeth::from)
    }

    fn optional<T: FromBytes>(&mut self, present: bool) -> Option<Option<T>> {
        if present { self.take().map(Some) } else { Some(None) }
    }
}

impl Pdu {
    /// Reads the extension headers that `opcode` announces off the front of `bytes`; returns the rest too. `None` when the
    /// opcode is unknown or `bytes` too short.
    pub(super) fn parse(opcode: Opcode, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut r = Reader(bytes);
        let pdu = match opcode {
            Opcode::RC_SEND_FIRST => Self::Send { at: Position::First, imm: None },
            Opcode::RC_SEND_MIDDLE => Self::Send { at: Position::Middle, imm: None },
            Opcode::RC_SEND_LAST => Self::Send { at: Position::Last, imm: None },
            Opcode::RC_SEND_LAST_IMM => Self::Send { at: Position::Last, imm: Some(r.take()?) },
            Opcode::RC_SEND_ONLY => Self::Send { at: Position::Only, imm: None },
            Opcode::RC_SEND_ONLY_IMM => Self::Send { at: Position::Only, imm: Some(r.take()?) },
            Opcode::RC_SEND_LAST_INV => Self::SendInv { at: Position::Last, rkey: r.take::<U32>()?.get() },
            Opcode::RC_SEND_ONLY_INV => Self::SendInv { at: Position::Only, rkey: r.take::<U32>()?.get() },
            Opcode::RC_WRITE_FIRST => Self::write(&mut r, Position::First, false)?,
            Opcode::RC_WRITE_MIDDLE => Self::write(&mut r, Position::Middle, false)?,
            Opcode::RC_WRITE_LAST => Self::write(&mut r, Position::Last, false)?,
            Opcode::RC_WRITE_LAST_IMM => Self::write(&mut r, Position::Last, true)?,
            Opcode::RC_WRITE_ONLY => Self::write(&mut r, Position::Only, false)?,
            Opcode::RC_WRITE_ONLY_IMM => Self::write(&mut r, Position::Only, true)?,
            Opcode::RC_READ_REQUEST => Self::ReadRequest(r.reth()?),
            Opcode::RC_READ_RESPONSE_FIRST => Self::read_response(&mut r, Position::First)?,
            Opcode::RC_READ_RESPONSE_MIDDLE => Self::read_response(&mut r, Position::Middle)?,
            Opcode::RC_READ_RESPONSE_LAST => Self::read_response(&mut r, Position::Last)?,
            Opcode::RC_READ_RESPONSE_ONLY => Self::read_response(&mut r, Position::Only)?,
            Opcode::RC_ACKNOWLEDGE => Self::Ack(r.aeth()?),
            Opcode::RC_ATOMIC_ACKNOWLEDGE => {
                Self::AtomicAck { aeth: r.aeth()?, original: r.take::<U64>()?.get() }
            }
            Opcode::RC_COMPARE_SWAP => Self::Atomic(r.take::<RawAtomicEth>()?.decode(true)),
            Opcode::RC_FETCH_ADD => Self::Atomic(r.take::<RawAtomicEth>()?.decode(false)),
            Opcode::UD_SEND_ONLY => Self::datagram(&mut r, false)?,
            Opcode::UD_SEND_ONLY_IMM => Self::datagram(&mut r, true)?,
            Opcode::CNP => {
                r.take::<[u8; CNP_RESERVED]>()?;
                Self::Cnp
            }
            _ => return None,
        };
        Some((pdu, r.0))
    }

    fn write(r: &mut Reader<'_>, at: Position, imm: bool) -> Option<Self> {
        let reth = r.optional::<RawReth>(at.starts())?.map(Reth::from);
        Some(Self::Write { at, reth, imm: r.optional(imm)? })
    }

    fn read_response(r: &mut Reader<'_>, at: Position) -> Option<Self> {
        let aeth = r.optional::<U32>(at != Position::Middle)?.map(Aeth::from);
        Some(Self::ReadResponse { at, aeth })
    }

    fn datagram(r: &mut Reader<'_>, imm: bool) -> Option<Self> {
        let deth = r.take::<RawDeth>()?.into();
        Some(Self::Datagram { deth, imm: r.optional(imm)? })
    }

    /// The opcode that stands for it.
    pub const fn opcode(&self) -> Opcode {
        use Position::{First, Last, Middle, Only};
        match self {
            Self::Send { at: First, .. } => Opcode::RC_SEND_FIRST,
            Self::Send { at: Middle, .. } => Opcode::RC_SEND_MIDDLE,
            Self::Send { at: Last, imm: None } => Opcode::RC_SEND_LAST,
            Self::Send { at: Last, imm: Some(_) } => Opcode::RC_SEND_LAST_IMM,
            Self::Send { at: Only, imm: None } => Opcode::RC_SEND_ONLY,
            Self::Send { at: Only, imm: Some(_) } => Opcode::RC_SEND_ONLY_IMM,
            Self::SendInv { at: Only | First, .. } => Opcode::RC_SEND_ONLY_INV,
            Self::SendInv { at: Last | Middle, .. } => Opcode::RC_SEND_LAST_INV,
            Self::Write { at: First, .. } => Opcode::RC_WRITE_FIRST,
            Self::Write { at: Middle, .. } => Opcode::RC_WRITE_MIDDLE,
            Self::Write { at: Last, imm: None, .. } => Opcode::RC_WRITE_LAST,
            Self::Write { at: Last, imm: Some(_), .. } => Opcode::RC_WRITE_LAST_IMM,
            Self::Write { at: Only, imm: None, .. } => Opcode::RC_WRITE_ONLY,
            Self::Write { at: Only, imm: Some(_), .. } => Opcode::RC_WRITE_ONLY_IMM,
            Self::ReadRequest(_) => Opcode::RC_READ_REQUEST,
            Self::ReadResponse { at: First, .. } => Opcode::RC_READ_RESPONSE_FIRST,
            Self::ReadResponse { at: Middle, .. } => Opcode::RC_READ_RESPONSE_MIDDLE,
            Self::ReadResponse { at: Last, .. } => Opcode::RC_READ_RESPONSE_LAST,
            Self::ReadResponse { at: Only, .. } => Opcode::RC_READ_RESPONSE_ONLY,
            Self::Ack(_) => Opcode::RC_ACKNOWLEDGE,
            Self::AtomicAck { .. } => Opcode::RC_ATOMIC_ACKNOWLEDGE,
            Self::Atomic(AtomicEth { kind: AtomicKind::CompareSwap { .. }, .. }) => Opcode::RC_COMPARE_SWAP,
            Self::Atomic(AtomicEth { kind: AtomicKind::FetchAdd(_), .. }) => Opcode::RC_FETCH_ADD,
            Self::Datagram { imm: None, .. } => Opcode::UD_SEND_ONLY,
            Self::Datagram { imm: Some(_), .. } => Opcode::UD_SEND_ONLY_IMM,
            Self::Cnp => Opcode::CNP,
        }
    }

    /// Appends the extension headers.
    pub(super) fn emit(&self, out: &mut Writer) {
        match *self {
            Self::Send { at, imm } => out.optional(at.ends(), imm),
            Self::SendInv { rkey, .. } => out.put(&U32::new(rkey)),
            Self::Write { at, reth, imm } => {
                out.optional(at.starts(), reth.map(RawReth::from));
                out.optional(at.ends(), imm);
            }
            Self::ReadRequest(reth) => out.put(&RawReth::from(reth)),
            Self::ReadResponse { aeth, at } => out.optional(at != Position::Middle, aeth.map(U32::from)),
            Self::Ack(aeth) => out.put(&U32::from(aeth)),
            Self::AtomicAck { aeth, original } => {
                out.put(&U32::from(aeth));
                out.put(&U64::new(original));
            }
            Self::Atomic(eth) => out.put(&RawAtomicEth::from(eth)),
            Self::Datagram { deth, imm } => {
                out.put(&RawDeth::from(deth));
                out.optional(true, imm);
            }
            Self::Cnp => out.put(&[0u8; CNP_RESERVED]),
        }
    }
}

/// Extension headers being written.
pub(super) struct Writer {
    bytes: [u8; ext::LONGEST],
    len: usize,
}

impl Writer {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; ext::LONGEST], len: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn put(&mut self, header: &(impl IntoBytes + Immutable)) {
        let bytes = header.as_bytes();
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn optional(&mut self, wanted: bool, header: Option<impl IntoBytes + Immutable>) {
        if let (true, Some(header)) = (wanted, header) {
            self.put(&header);
        }
    }
}
