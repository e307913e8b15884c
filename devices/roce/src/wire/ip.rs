//! Ethernet, IPv4, IPv6 and UDP headers, as far as RoCE v2 uses them.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const ETHERNET: usize = size_of::<RawEthernet>();
pub(super) const IPV4_HEADER: usize = size_of::<RawIpv4>();
pub(super) const IPV6_HEADER: usize = size_of::<RawIpv6>();
pub(super) const UDP_HEADER: usize = size_of::<RawUdp>();

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const PROTOCOL_UDP: u8 = 17;
/// Version 4, five words: options would shift what the ICRC masks.
pub(super) const IPV4_VERSION_IHL: u8 = 0x45;
pub(super) const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments flag and fragment offset.
pub(super) const IPV4_FRAGMENT_MASK: u16 = 0x3fff;
pub(super) const IPV6_VERSION: u32 = 6 << 28;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawEthernet {
    pub dst: [u8; 6],
    pub src: [u8; 6],
    pub ethertype: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv4 {
    pub version_ihl: u8,
    pub tos: u8,
    pub total_len: U16,
    pub id: U16,
    pub flags_fragment: U16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: U16,
    pub src: [u8; 4],
    pub dst: [u8; 4],
}

impl RawIpv4 {
    /// The internet checksum over the header, whose checksum field counts as it stands: zero over a good header.
    pub(super) fn checksum(&self) -> u16 {
        let words = self.as_bytes().chunks_exact(2);
        let sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !(((folded & 0xffff) + (folded >> 16)) as u16)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv6 {
    pub version_class_flow: U32,
    pub payload_len: U16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub src: [u8; 16],
    pub dst: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawUdp {
    pub src_port: U16,
    pub dst_port: U16,
    pub len: U16,
    pub checksum: U16,
}
