//! Messages of the connection manager: management datagrams of 256 bytes.
//!
//! Parsers take bytes of anybody: they never panic and ignore what is reserved.

mod ip;
mod messages;

use verbs::Qpn;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use ip::{IpHeader, REQUEST_PRIVATE};
pub use messages::{Ids, MoreTime, Reason, Reject, Reply, Request};

/// Bytes of a management datagram.
pub const MAD: usize = 256;
/// Bytes of its header.
const HEADER: usize = 24;
/// Bytes behind the header.
const BODY: usize = MAD - HEADER;

/// The queue key of queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Why bytes are not a message of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not 256 bytes.
    #[error("Not 256 bytes")]
    Length,
    /// A management datagram of another class, version or method.
    #[error("Not a connection manager's datagram")]
    Class,
    /// A message that this manager does not have.
    #[error("Unknown attribute {0:#06x}")]
    Attribute(u16),
    /// A request for another transport than the reliable connection.
    #[error("Not a reliable connection")]
    Transport,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ: asks for a connection.
    Request(Request),
    /// MRA: asks for patience.
    MoreTime(MoreTime),
    /// REJ: refuses a request or a reply.
    Reject(Reject),
    /// REP: accepts a request.
    Reply(Reply),
    /// RTU: the connection is ready to use.
    ReadyToUse(Ids),
    /// DREQ: ends a connection, and which queue pair of the receiver's it means.
    Disconnect(Ids, Qpn),
    /// DREP: agrees.
    Disconnected(Ids),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderLayout {
    base_version: u8,
    mgmt_class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    tid: U64,
    attr_id: U16,
    reserved: U16,
    attr_mod: U32,
}

const CLASS_CM: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
}

impl Message {
    /// Parses a datagram: its transaction and the message.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn parse(mad: &[u8]) -> Result<(u64, Self), Error> {
        let mad: &[u8; MAD] = mad.try_into().map_err(|_| Error::Length)?;
        let (header, body) = mad.split_first_chunk::<HEADER>().ok_or(Error::Length)?;
        let header = HeaderLayout::ref_from_bytes(header).map_err(|_| Error::Length)?;
        let body: &[u8; BODY] = body.try_into().map_err(|_| Error::Length)?;
        let kind = (header.base_version, header.mgmt_class, header.class_version, header.method);
        if kind != (1, CLASS_CM, CLASS_VERSION, METHOD_SEND) {
            return Err(Error::Class);
        }
        let message = match header.attr_id.get() {
            attribute::REQ => Self::Request(Request::parse(body)?),
            attribute::MRA => Self::MoreTime(MoreTime::parse(body)),
            attribute::REJ => Self::Reject(Reject::parse(body)),
            attribute::REP => Self::Reply(Reply::parse(body)),
            attribute::RTU => Self::ReadyToUse(Ids::parse(body)),
            attribute::DREQ => {
                let qpn = messages::disconnect_qpn(body);
                Self::Disconnect(Ids::parse(body), qpn)
            }
            attribute::DREP => Self::Disconnected(Ids::parse(body)),
            other => return Err(Error::Attribute(other)),
        };
        Ok((header.tid.get(), message))
    }

    /// The datagram.
    pub fn emit(&self, tid: u64) -> [u8; MAD] {
        let mut body = [0; BODY];
        let attr_id = match self {
            Self::Request(request) => {
                request.emit(&mut body);
                attribute::REQ
            }
            Self::MoreTime(more) => {
                more.emit(&mut body);
                attribute::MRA
            }
            Self::Reject(reject) => {
                reject.emit(&mut body);
                attribute::REJ
            }
            Self::Reply(reply) => {
                reply.emit(&mut body);
                attribute::REP
            }
            Self::ReadyToUse(ids) => {
                ids.emit(&mut body);
                attribute::RTU
            }
            Self::Disconnect(ids, qpn) => {
                ids.emit(&mut body);
                messages::set_disconnect_qpn(&mut body, *qpn);
                attribute::DREQ
            }
            Self::Disconnected(ids) => {
                ids.emit(&mut body);
                attribute::DREP
            }
        };
        let header = HeaderLayout {
            base_version: 1,
            mgmt_class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0.into(),
            class_specific: 0.into(),
            tid: tid.into(),
            attr_id: attr_id.into(),
            reserved: 0.into(),
            attr_mod: 0.into(),
        };
        let mut mad = [0; MAD];
        let (head, rest) = mad.split_at_mut(HEADER);
        head.copy_from_slice(header.as_bytes());
        rest.copy_from_slice(&body);
        mad
    }

    /// The identifiers of the sender and, as far as it knows it, of the receiver.
    pub const fn ids(&self) -> Ids {
        match self {
            Self::Request(request) => Ids { local: request.comm_id, remote: 0 },
            Self::MoreTime(MoreTime { ids, .. })
            | Self::Reject(Reject { ids, .. })
            | Self::Reply(Reply { ids, .. })
            | Self::ReadyToUse(ids)
            | Self::Disconnect(ids, _)
            | Self::Disconnected(ids) => *ids,
        }
    }
}
