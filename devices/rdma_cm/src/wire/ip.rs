//! The header that `rdma_cm` puts before the private data of a request (IBTA annex A11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
const HEADER: usize = 36;
/// Bytes that are left for whoever connects.
pub const REQUEST_PRIVATE: usize = 92 - HEADER;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    version: u8,
    ip_version: u8,
    port: U16,
    src: [u8; 16],
    dst: [u8; 16],
}

const _: () = assert!(size_of::<Layout>() == HEADER);

/// Who connects, by IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender's port.
    pub port: u16,
    /// The sender's address.
    pub src: IpAddr,
    /// The receiver's address, of the same family.
    pub dst: IpAddr,
}

impl IpHeader {
    /// Takes the header off private data; `None` when there is none.
    pub fn parse(private: &[u8; 92]) -> Option<(Self, &[u8; REQUEST_PRIVATE])> {
        let (header, rest) = private.split_first_chunk::<HEADER>()?;
        let layout = Layout::ref_from_bytes(header).ok()?;
        let address = |bytes: &[u8; 16]| match layout.ip_version >> 4 {
            4 => bytes.last_chunk::<4>().map(|v4| IpAddr::V4(Ipv4Addr::from(*v4))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes))),
            _ => None,
        };
        let header = Self { port: layout.port.get(), src: address(&layout.src)?, dst: address(&layout.dst)? };
        (layout.version == 0).then_some((header, rest.try_into().ok()?))
    }

    /// Private data of this header and what follows it, cut off where there is no more room.
    pub fn emit(&self, rest: &[u8]) -> [u8; 92] {
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[12..].copy_from_slice(&v4.octets());
                bytes
            }
            IpAddr::V6(v6) => v6.octets(),
        };
        let layout = Layout {
            version: 0,
            ip_version: if self.src.is_ipv4() { 4 << 4 } else { 6 << 4 },
            port: self.port.into(),
            src: bytes(self.src),
            dst: bytes(self.dst),
        };
        let mut private = [0; 92];
        private[..HEADER].copy_from_slice(layout.as_bytes());
        let len = rest.len().min(REQUEST_PRIVATE);
        private[HEADER..HEADER + len].copy_from_slice(&rest[..len]);
        private
    }
}
