//! Telling the network where a machine is now: its switches learn the Ethernet address from any frame, and its peers hear once
//! more which one belongs to its IP addresses.

use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr};

use device_model::net::{Link, MacAddr};
use etherparse::PacketBuilder;
use verbs::Gid;

use super::NicPort;
use crate::inspect::SlotView;

/// EtherTypes.
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
/// Operations of ARP and RARP.
const ARP_REQUEST: u16 = 1;
const RARP_REQUEST: u16 = 3;
/// Shortest Ethernet frame, without its check sequence.
const MIN_FRAME: usize = 60;
/// Neighbour advertisements come with this, so that nobody outside the link can forge them (RFC 4861, section 7.1.2).
const HOP_LIMIT: u8 = 255;
/// A neighbour advertisement, and its flag *override*.
const ADVERTISEMENT: u8 = 136;
const OVERRIDE: [u8; 4] = [0x20, 0, 0, 0];
/// Option with the sender's Ethernet address, eight bytes long.
const TARGET_LINK_LAYER: [u8; 2] = [2, 1];

/// Announces a machine at all its ports, by the addresses that its RDMA devices have.
pub fn announce(ports: &[NicPort], views: &[SlotView]) {
    for (port, view) in ports.iter().zip(views) {
        let gids = view.rdma.iter().flat_map(|rdma| rdma.snapshot(0, 0).gids).map(|row| row.gid);
        for frame in frames(port.mac, gids) {
            // Who misses it learns from the guest's own traffic, later.
            if let Err(error) = port.link.send(&[IoSlice::new(&frame)]) {
                tracing::debug!(%error, port = port.name, "Failed to announce an address");
            }
        }
    }
}

fn frames(mac: MacAddr, gids: impl Iterator<Item = Gid>) -> Vec<Vec<u8>> {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut frames = vec![address_resolution(mac, RARP, RARP_REQUEST, mac, none)];
    for gid in gids {
        frames.extend(match gid.ipv4() {
            Some(ip) => Some(address_resolution(mac, ARP, ARP_REQUEST, MacAddr::default(), ip)),
            None => advertisement(mac, gid.ipv6()),
        });
    }
    frames
}

/// A frame to all of the protocol that finds Ethernet addresses, or the one that finds IP addresses.
fn address_resolution(mac: MacAddr, kind: u16, operation: u16, target: MacAddr, ip: Ipv4Addr) -> Vec<u8> {
    /// Ethernet, IPv4, and the lengths of their addresses.
    const KINDS: [u8; 6] = [0, 1, 8, 0, 6, 4];
    let ethernet = [&MacAddr::BROADCAST.0[..], &mac.0, &kind.to_be_bytes()].concat();
    let from = [&mac.0[..], &ip.octets()].concat();
    let to = [&target.0[..], &ip.octets()].concat();
    let mut frame = [&ethernet[..], &KINDS, &operation.to_be_bytes(), &from, &to].concat();
    frame.resize(MIN_FRAME, 0);
    frame
}

/// An unsolicited neighbour advertisement to all nodes.
fn advertisement(mac: MacAddr, ip: Ipv6Addr) -> Option<Vec<u8>> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let body = [&ip.octets()[..], &TARGET_LINK_LAYER, &mac.0].concat();
    let builder = PacketBuilder::ethernet2(mac.0, [0x33, 0x33, 0, 0, 0, 1])
        .ipv6(ip.octets(), all_nodes.octets(), HOP_LIMIT)
        .icmpv6_raw(ADVERTISEMENT, 0, OVERRIDE);
    let mut frame = Vec::with_capacity(builder.size(body.len()));
    builder.write(&mut frame, &body).ok()?;
    Some(frame)
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

    #[test]
    fn every_address_is_announced_as_its_protocol_wants() {
        let ip = Ipv4Addr::new(192, 0, 2, 1);
        let gids = [Gid(ip.to_ipv6_mapped().octets()), Gid("fe80::1".parse::<Ipv6Addr>().unwrap().octets())];
        let frames = frames(MAC, gids.into_iter());
        assert_eq!(frames.len(), 3);
        assert!(frames.iter().all(|frame| frame[6..12] == MAC.0));
        assert_eq!(frames[0][12..14], [0x80, 0x35]);

        let arp = SlicedPacket::from_ethernet(&frames[1]).unwrap();
        let Some(NetSlice::Arp(arp)) = arp.net else { panic!("{:02x?}", frames[1]) };
        assert_eq!(
            (arp.sender_protocol_addr(), arp.target_protocol_addr()),
            (&ip.octets()[..], &ip.octets()[..])
        );
        assert_eq!(arp.sender_hw_addr(), MAC.0);

        let packet = SlicedPacket::from_ethernet(&frames[2]).unwrap();
        let Some(NetSlice::Ipv6(ipv6)) = &packet.net else { panic!("{:02x?}", frames[2]) };
        let Some(TransportSlice::Icmpv6(icmp)) = &packet.transport else { panic!("{:02x?}", frames[2]) };
        assert_eq!(ipv6.header().hop_limit(), 255);
        assert!(icmp.is_checksum_valid(ipv6.header().source(), ipv6.header().destination()));
        assert_eq!((icmp.type_u8(), icmp.bytes5to8()), (136, OVERRIDE));
        assert_eq!(icmp.payload()[16..], [2, 1, 0x52, 0x54, 0, 0, 0, 1]);
    }
}
