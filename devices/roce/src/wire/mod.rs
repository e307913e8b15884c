//! The RoCE v2 wire format: InfiniBand transport packets in UDP over IPv4 or IPv6.
//!
//! Sources: IBTA Architecture Specification volume 1, chapter 9 (transport headers) and annex A17 (RoCE v2).
//!
//! The codec is pure: bytes in, types out, and back. [`Frame::parse`] accepts any bytes without panicking and checks every
//! length and the invariant CRC; what it returns may be believed to be well formed, and nothing more.

mod address;
mod bth;
mod encode;
mod ext;
mod frame;
pub mod icrc;
mod ip;
pub mod message;
mod opcode;
mod pdu;

pub use address::{Path, source_port};
pub use bth::{P_KEY_DEFAULT, Packet};
pub use encode::{Header, MAX_HEADER};
pub use ext::{Aeth, AtomicEth, AtomicKind, Deth, NakCode, Reth, Syndrome};
pub use frame::{Family, Frame, FrameError, GrhSource, destination};
pub use message::{MAX_CHUNK, Message};
pub use opcode::{Opcode, Position, Service};
pub use pdu::Pdu;

/// UDP destination port of RoCE v2.
pub const UDP_PORT: u16 = 4791;

/// Bytes that IP, UDP, transport headers and ICRC take of an IP packet at most: what a path MTU must leave of a link MTU.
pub const MAX_OVERHEAD: u32 =
    (ip::IPV6_HEADER + ip::UDP_HEADER + bth::BTH + ext::LONGEST_WITH_PAYLOAD + icrc::LEN) as u32;
