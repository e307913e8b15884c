//! Headers of outgoing frames.

use device_model::net::MacAddr;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

use super::bth::BTH;
use super::ext;
use super::frame::Family;
use super::icrc::{self, Icrc};
use super::ip::{self, RawEthernet, RawIpv4, RawIpv6, RawUdp};
use super::pdu::Writer;
use super::{Packet, Path, UDP_PORT};

/// Most bytes of headers before a payload.
pub const MAX_HEADER: usize = ip::ETHERNET + ip::IPV6_HEADER + ip::UDP_HEADER + BTH + ext::LONGEST;

/// All headers of a frame: Ethernet, IP, UDP, base and extension transport headers.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; MAX_HEADER],
    len: usize,
    family: Family,
    pad: usize,
}

impl Header {
    /// The headers of `packet` with `payload` bytes of payload, sent from `smac` along `path`.
    ///
    /// `payload` must not exceed a path MTU; what passes the length fields of IP is cut off there.
    pub fn encode(smac: MacAddr, path: &Path, packet: &Packet, payload: u32) -> Self {
        let pad = payload.wrapping_neg() as usize & 3;
        let mut ext = Writer::new();
        packet.pdu.emit(&mut ext);
        let udp_len = ip::UDP_HEADER + BTH + ext.bytes().len() + payload as usize + pad + icrc::LEN;
        let udp_len = u16::try_from(udp_len).unwrap_or(u16::MAX);

        let v4 = path.src.ipv4().zip(path.dst.ipv4());
        let family = if v4.is_some() { Family::V4 } else { Family::V6 };
        let mut out = Self { bytes: [0; MAX_HEADER], len: 0, family, pad };
        out.put(&RawEthernet { dst: path.dmac.0, src: smac.0, ethertype: U16::new(family.ethertype()) });
        match v4 {
            Some((src, dst)) => out.put(&ipv4(path, src.octets(), dst.octets(), udp_len)),
            None => out.put(&ipv6(path, udp_len)),
        }
        out.put(&RawUdp {
            src_port: U16::new(path.src_port),
            dst_port: U16::new(UDP_PORT),
            len: U16::new(udp_len),
            // The ICRC covers more than the checksum would, which RoCE v2 therefore leaves out.
            checksum: U16::new(0),
        });
        out.put(&packet.raw(pad as u8));
        out.put(ext.bytes());
        out
    }

    fn put(&mut self, header: &(impl IntoBytes + Immutable + ?Sized)) {
        let bytes = header.as_bytes();
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Zero bytes between payload and CRC.
    pub const fn pad(&self) -> usize {
        self.pad
    }

    /// Starts the CRC of the frame.
    pub fn icrc(&self) -> Icrc {
        Icrc::new(self.family, self.bytes().get(ip::ETHERNET..).unwrap_or_default())
    }
}

fn ipv4(path: &Path, src: [u8; 4], dst: [u8; 4], udp_len: u16) -> RawIpv4 {
    let mut raw = RawIpv4 {
        version_ihl: ip::IPV4_VERSION_IHL,
        tos: path.traffic_class,
        total_len: U16::new(udp_len.saturating_add(ip::IPV4_HEADER as u16)),
        // The ICRC covers the identification. Never fragmented, the packet needs none, and zero survives offloads that
        // would count it up.
        id: U16::new(0),
        flags_fragment: U16::new(ip::IPV4_DONT_FRAGMENT),
        ttl: path.hop_limit,
        protocol: ip::PROTOCOL_UDP,
        checksum: U16::new(0),
        src,
        dst,
    };
    raw.checksum = U16::new(raw.checksum());
    raw
}

fn ipv6(path: &Path, udp_len: u16) -> RawIpv6 {
    let class_flow = u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
    RawIpv6 {
        version_class_flow: U32::new(ip::IPV6_VERSION | class_flow),
        payload_len: U16::new(udp_len),
        next_header: ip::PROTOCOL_UDP,
        hop_limit: path.hop_limit,
        src: path.src.0,
        dst: path.dst.0,
    }
}
