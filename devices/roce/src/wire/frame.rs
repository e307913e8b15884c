//! Received frames.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use verbs::Gid;
use zerocopy::FromBytes;

use super::bth::RawBth;
use super::icrc::{self, Icrc};
use super::ip::{self, RawEthernet, RawIpv4, RawIpv6, RawUdp};
use super::{Packet, Pdu, UDP_PORT};

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(super) const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => ip::ETHERTYPE_IPV4,
            Self::V6 => ip::ETHERTYPE_IPV6,
        }
    }
}

/// Why a frame is not a packet for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not UDP to port 4791 over plain IPv4 or IPv6.
    #[error("Frame is not RoCE v2")]
    NotRoce,
    /// Shorter than its headers say, or header lengths that contradict each other.
    #[error("Frame is truncated or its lengths contradict each other")]
    Length,
    /// A fragment, or a damaged IP header.
    #[error("IP header is damaged or a fragment's")]
    Ip,
    /// A transport header version other than 0.
    #[error("Unknown transport header version")]
    Version,
    /// An opcode this engine does not know.
    #[error("Unknown opcode")]
    Opcode,
    /// The invariant CRC does not match.
    #[error("Invariant CRC mismatch")]
    Icrc,
}

/// What a datagram's receiver finds in the 40 bytes before the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrhSource {
    /// IP version.
    pub family: Family,
    /// Bytes of the IP header inside the frame.
    pub header: Range<usize>,
}

/// A well-formed RoCE v2 frame, with ranges into the bytes it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Sender.
    pub src: Gid,
    /// Receiver.
    pub dst: Gid,
    /// IP header.
    pub grh: GrhSource,
    /// Whether a router on the way saw congestion (ECN, RFC 3168).
    pub congestion: bool,
    /// Transport headers.
    pub packet: Packet,
    /// Payload without padding.
    pub payload: Range<usize>,
}

impl Frame {
    /// Parses and checks a whole Ethernet frame. Bytes after the end of the IP packet (Ethernet padding) are ignored.
    ///
    /// # Errors
    ///
    /// [`FrameError`]; checks are made in the order of its variants.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let ip = IpPacket::parse(bytes)?;
        let packet_end = ip.udp.end;
        let transport = ip.udp.start + ip::UDP_HEADER;
        let (udp, _) = RawUdp::read_from_prefix(span(bytes, &ip.udp)?).map_err(|_| FrameError::Length)?;
        if usize::from(udp.len.get()) != ip.udp.len() {
            return Err(FrameError::Length);
        }
        let icrc_at = packet_end.checked_sub(icrc::LEN).ok_or(FrameError::Length)?;
        let covered = span(bytes, &(transport..icrc_at))?;
        let (bth, rest) = RawBth::read_from_prefix(covered).map_err(|_| FrameError::Length)?;
        if bth.version() != 0 {
            return Err(FrameError::Version);
        }
        let (pdu, rest) = Pdu::parse(bth.opcode(), rest).ok_or(FrameError::Opcode)?;
        let payload_len = rest.len().checked_sub(bth.pad()).ok_or(FrameError::Length)?;
        let icrc = Icrc::new(ip.grh.family, span(bytes, &(ip.grh.header.start..icrc_at))?);
        if span(bytes, &(icrc_at..packet_end))? != icrc.finish() {
            return Err(FrameError::Icrc);
        }
        let payload_at = icrc_at - rest.len();
        Ok(Self {
            src: ip.src,
            dst: ip.dst,
            grh: ip.grh,
            congestion: ip.traffic_class & 3 == 3,
            packet: bth.packet(pdu),
            payload: payload_at..payload_at + payload_len,
        })
    }
}

/// The receiver's address of a frame that is, by its first headers, RoCE v2.
pub fn destination(bytes: &[u8]) -> Option<Gid> {
    IpPacket::parse(bytes).ok().map(|ip| ip.dst)
}

/// A UDP packet to the RoCE port.
struct IpPacket {
    src: Gid,
    dst: Gid,
    traffic_class: u8,
    grh: GrhSource,
    /// UDP header and all after it.
    udp: Range<usize>,
}

impl IpPacket {
    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let (eth, rest) = RawEthernet::read_from_prefix(bytes).map_err(|_| FrameError::NotRoce)?;
        let parsed = match eth.ethertype.get() {
            ip::ETHERTYPE_IPV4 => Self::parse_v4(rest)?,
            ip::ETHERTYPE_IPV6 => Self::parse_v6(rest)?,
            _ => return Err(FrameError::NotRoce),
        };
        let udp = span(bytes, &parsed.udp)?;
        let (udp, _) = RawUdp::read_from_prefix(udp).map_err(|_| FrameError::Length)?;
        if udp.dst_port.get() == UDP_PORT { Ok(parsed) } else { Err(FrameError::NotRoce) }
    }

    fn parse_v4(rest: &[u8]) -> Result<Self, FrameError> {
        let (raw, _) = RawIpv4::read_from_prefix(rest).map_err(|_| FrameError::NotRoce)?;
        if raw.version_ihl != ip::IPV4_VERSION_IHL || raw.protocol != ip::PROTOCOL_UDP {
            return Err(FrameError::NotRoce);
        }
        if raw.flags_fragment.get() & ip::IPV4_FRAGMENT_MASK != 0 || raw.checksum() != 0 {
            return Err(FrameError::Ip);
        }
        let start = ip::ETHERNET + ip::IPV4_HEADER;
        Ok(Self {
            src: Ipv4Addr::from(raw.src).into(),
            dst: Ipv4Addr::from(raw.dst).into(),
            traffic_class: raw.tos,
            grh: GrhSource { family: Family::V4, header: ip::ETHERNET..start },
            udp: start..ip::ETHERNET + usize::from(raw.total_len.get()),
        })
    }

    fn parse_v6(rest: &[u8]) -> Result<Self, FrameError> {
        let (raw, _) = RawIpv6::read_from_prefix(rest).map_err(|_| FrameError::NotRoce)?;
        let word = raw.version_class_flow.get();
        if word & 0xf << 28 != ip::IPV6_VERSION || raw.next_header != ip::PROTOCOL_UDP {
            return Err(FrameError::NotRoce);
        }
        let start = ip::ETHERNET + ip::IPV6_HEADER;
        Ok(Self {
            src: Ipv6Addr::from(raw.src).into(),
            dst: Ipv6Addr::from(raw.dst).into(),
            traffic_class: (word >> 20 & 0xff) as u8,
            grh: GrhSource { family: Family::V6, header: ip::ETHERNET..start },
            udp: start..start + usize::from(raw.payload_len.get()),
        })
    }
}

/// The bytes of a range that may be reversed or pass the end.
fn span<'a>(bytes: &'a [u8], range: &Range<usize>) -> Result<&'a [u8], FrameError> {
    bytes.get(range.clone()).ok_or(FrameError::Length)
}
