//! Finding the IP and TCP or UDP headers of a frame.

use std::ops::Range;

use device_model::net::ETHERNET_HEADER;

use super::checksum::Sum;

/// Bytes of a VLAN tag.
pub(crate) const TAG_LEN: usize = 4;
/// EtherType of a tagged frame (802.1Q).
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// IP protocol number of UDP.
pub(crate) const UDP: u8 = 17;

/// TCP flags (RFC 9293, section 3.1).
pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const CWR: u8 = 0x80;

const IPV6_HEADER: usize = 40;
/// Extension headers looked through before a packet counts as neither TCP nor UDP.
const MAX_EXTENSIONS: usize = 8;

/// IP version, as far as offloads differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

/// Where the headers of an IP packet are; every range lies inside the frame it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpPacket {
    pub(crate) version: IpVersion,
    /// The IP header with its options, without IPv6 extension headers.
    pub(crate) header: Range<usize>,
    /// Everything after the IP and extension headers, as long as the IP header says (Ethernet padding excluded).
    pub(crate) payload: Range<usize>,
    /// Protocol of the payload.
    pub(crate) protocol: u8,
    /// One of several fragments: the payload's checksum cannot be known.
    pub(crate) fragment: bool,
}

/// EtherType at `offset`, or `None` if the frame ends before.
pub(crate) fn ethertype(frame: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(offset..offset + 2)?.try_into().ok()?))
}

/// Bytes in front of the network header: the Ethernet header and a tag if there is one.
pub(crate) fn link_header_len(frame: &[u8]) -> usize {
    match ethertype(frame, ETHERNET_HEADER - 2) {
        Some(ETHERTYPE_VLAN) => ETHERNET_HEADER + TAG_LEN,
        _ => ETHERNET_HEADER,
    }
}

impl IpPacket {
    /// Parses the IP packet in `frame`. `None` if it holds none, or one whose lengths contradict the frame.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let start = link_header_len(frame);
        match ethertype(frame, start - 2)? {
            ETHERTYPE_IPV4 => Self::parse_v4(frame, start),
            ETHERTYPE_IPV6 => Self::parse_v6(frame, start),
            _ => None,
        }
    }

    fn parse_v4(frame: &[u8], start: usize) -> Option<Self> {
        let fixed: &[u8; 20] = frame.get(start..start + 20)?.try_into().ok()?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_len < fixed.len() || total < header_len || start + total > frame.len()
        {
            return None;
        }
        Some(Self {
            version: IpVersion::V4,
            header: start..start + header_len,
            payload: start + header_len..start + total,
            protocol: fixed[9],
            // More fragments, or an offset.
            fragment: u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0,
        })
    }

    fn parse_v6(frame: &[u8], start: usize) -> Option<Self> {
        let fixed: &[u8; IPV6_HEADER] = frame.get(start..start + IPV6_HEADER)?.try_into().ok()?;
        let end = start + IPV6_HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if fixed[0] >> 4 != 6 || end > frame.len() {
            return None;
        }
        let mut packet = Self {
            version: IpVersion::V6,
            header: start..start + IPV6_HEADER,
            payload: start + IPV6_HEADER..end,
            protocol: fixed[6],
            fragment: false,
        };
        packet.skip_extensions(frame)?;
        Some(packet)
    }

    /// Moves past IPv6 extension headers (RFC 8200, section 4) that leave the payload as it is.
    fn skip_extensions(&mut self, frame: &[u8]) -> Option<()> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const DESTINATION: u8 = 60;
        for _ in 0..MAX_EXTENSIONS {
            let len = match self.protocol {
                FRAGMENT => 8,
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    8 * (1 + usize::from(*frame.get(self.payload.start + 1)?))
                }
                _ => return Some(()),
            };
            self.fragment |= self.protocol == FRAGMENT;
            self.protocol = *frame.get(self.payload.start)?;
            if len > self.payload.len() {
                return None;
            }
            self.payload.start += len;
        }
        None
    }

    /// Whether the IPv4 header's own checksum is right; true for IPv6, which has none.
    pub(crate) fn header_checksum_ok(&self, frame: &[u8]) -> bool {
        self.version == IpVersion::V6
            || frame.get(self.header.clone()).is_some_and(|header| Sum::default().add(header).is_valid())
    }

    /// Sum of the pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1) for a payload of `len` bytes.
    pub(crate) fn pseudo_header(&self, frame: &[u8], len: usize) -> Sum {
        let addresses = match self.version {
            IpVersion::V4 => self.header.start + 12..self.header.start + 20,
            IpVersion::V6 => self.header.start + 8..self.header.start + IPV6_HEADER,
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Sum::default()
            .add(frame.get(addresses).unwrap_or_default())
            .add(&len.to_be_bytes())
            .add_u16(u16::from(self.protocol))
    }

    /// Whether the TCP or UDP checksum was verified to be right; false also if there is none to verify.
    pub(crate) fn l4_checksum_ok(&self, frame: &[u8]) -> bool {
        let Some(payload) = frame.get(self.payload.clone()) else { return false };
        let field = match self.protocol {
            TCP => 16,
            UDP => 6,
            _ => return false,
        };
        // A UDP datagram over IPv4 may go without (RFC 768).
        let present =
            payload.get(field..field + 2).is_some_and(|checksum| self.protocol == TCP || checksum != [0; 2]);
        !self.fragment && present && self.pseudo_header(frame, payload.len()).add(payload).is_valid()
    }

    /// A number that is the same for all packets of a flow, for choosing a receive queue.
    pub(crate) fn flow(&self, frame: &[u8]) -> u16 {
        let ports = match self.protocol {
            TCP | UDP if !self.fragment => frame.get(self.payload.start..self.payload.start + 4),
            _ => None,
        };
        self.pseudo_header(frame, 0).add(ports.unwrap_or_default()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ipv4_udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_HEADER];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        let total = u16::try_from(28 + payload.len()).unwrap().to_be_bytes();
        frame.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let len = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
        frame.extend([0x12, 0xb7, 0x12, 0xb7, len[0], len[1], 0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut frame = ipv4_udp(b"abc");
        frame.extend([0; 15]);
        let packet = IpPacket::parse(&frame).unwrap();
        assert_eq!(packet.payload, 34..45);
        assert_eq!((packet.version, packet.protocol, packet.fragment), (IpVersion::V4, UDP, false));
    }

    #[test]
    fn udp_checksum_is_verified_and_its_absence_is_no_success() {
        let mut frame = ipv4_udp(b"abcde");
        let packet = IpPacket::parse(&frame).unwrap();
        assert!(!packet.l4_checksum_ok(&frame));
        let checksum = packet.pseudo_header(&frame, 13).add(&frame[34..47]).finish();
        frame[40..42].copy_from_slice(&checksum.to_be_bytes());
        assert!(packet.l4_checksum_ok(&frame));
        frame[44] ^= 1;
        assert!(!packet.l4_checksum_ok(&frame));
    }

    #[test]
    fn ipv6_extension_headers_are_looked_through() {
        let mut frame = vec![0; ETHERNET_HEADER];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
        frame.extend([0x60, 0, 0, 0, 0, 8 + 20, 60, 64]);
        frame.extend([0; 32]);
        frame.extend([TCP, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 20]);
        let packet = IpPacket::parse(&frame).unwrap();
        assert_eq!((packet.protocol, packet.payload.clone()), (TCP, 62..82));

        frame[14 + 5] = 7;
        assert_eq!(IpPacket::parse(&frame), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_to_ranges_inside_the_frame(mut frame in proptest::collection::vec(any::<u8>(), 0..200),
                                                      kind in 0usize..3) {
            if frame.len() >= 15 {
                let (ethertype, version) = [(ETHERTYPE_IPV4, 0x45), (ETHERTYPE_IPV6, 0x60), (ETHERTYPE_VLAN, 0)][kind];
                frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
                frame[14] = version;
            }
            if let Some(packet) = IpPacket::parse(&frame) {
                prop_assert!(packet.header.end <= packet.payload.start && packet.payload.end <= frame.len());
                packet.l4_checksum_ok(&frame);
                packet.flow(&frame);
            }
        }
    }
}
