//! Where a queue pair's packets go.

use device_model::net::MacAddr;
use serde::{Deserialize, Serialize};
use verbs::{AddressVector, Gid, Qpn};

/// Time to live of packets whose address vector leaves it open.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// The two bits of the traffic class that are for congestion notification (RFC 3168).
const ECN: u8 = 0b11;
/// Value of those bits by which a sender says that it heeds notifications.
const ECN_CAPABLE: u8 = 0b10;

/// A resolved path: what the headers below the transport header need to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Next hop.
    pub dmac: MacAddr,
    /// Own address.
    pub src: Gid,
    /// The peer's address. IPv4 goes out when both are mapped IPv4 addresses.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
}

impl Path {
    /// The path of an address vector whose source row holds `src`.
    pub fn new(src: Gid, av: &AddressVector, own: Qpn, peer: Qpn) -> Self {
        Self {
            dmac: av.dmac,
            src,
            dst: av.dgid,
            src_port: source_port(av.flow_label, own, peer),
            flow_label: av.flow_label & 0xf_ffff,
            traffic_class: av.traffic_class,
            hop_limit: if av.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { av.hop_limit },
        }
    }

    /// The path of packets whose sender heeds congestion notifications.
    #[must_use]
    pub const fn with_ecn(self) -> Self {
        Self { traffic_class: self.traffic_class & !ECN | ECN_CAPABLE, ..self }
    }

    /// The path of packets that must not be marked.
    #[must_use]
    pub const fn without_ecn(self) -> Self {
        Self { traffic_class: self.traffic_class & !ECN, ..self }
    }
}

/// The UDP source port of a flow, 0xc000 and up: entropy for the network's path choice (IBTA annex A17.9.4.2 leaves it
/// open; this is the choice of the Linux RDMA core). A flow label of zero is replaced by one made of both numbers.
pub fn source_port(flow_label: u32, own: Qpn, peer: Qpn) -> u16 {
    let label = if flow_label & 0xf_ffff != 0 { flow_label & 0xf_ffff } else { flow_label_of(own, peer) };
    let port = (label & 0x3fff) ^ ((label & 0xf_c000) >> 14) | 0xc000;
    port as u16
}

fn flow_label_of(own: Qpn, peer: Qpn) -> u32 {
    let product = u64::from(own.0) * u64::from(peer.0);
    ((product ^ product >> 20 ^ product >> 40) & 0xf_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_port_is_in_range_and_symmetric_without_a_flow_label() {
        for (own, peer) in [(0x11, 0x12), (0xff_ffff, 0xff_fffe), (2, 1)] {
            let port = source_port(0, Qpn(own), Qpn(peer));
            assert!(port >= 0xc000);
            assert_eq!(port, source_port(0, Qpn(peer), Qpn(own)));
        }
    }

    #[test]
    fn source_port_follows_the_flow_label() {
        assert_eq!(source_port(0x12345, Qpn(1), Qpn(1)), 0xc000 | (0x2345 ^ 0x4));
    }
}
