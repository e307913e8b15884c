//! What a guest may and may not claim, frame by frame.

use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr};

use device_model::net::{Link, MacAddr};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, IpNumber, PacketBuilder, PacketBuilderStep, VlanId,
};
use proptest::prelude::*;

use super::{AddressPolicy, Guard, Violation};
use crate::pair::pair;
use crate::testing::{is_silent, recv, send};

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe00, 1);
const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const NONE_V6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

fn policy() -> AddressPolicy {
    AddressPolicy::with_addresses(MAC, vec![V4.into(), V6.into()])
}

fn ethernet() -> PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(MAC.0, OTHER.0)
}

fn udp4(source: Ipv4Addr, from: u16, to: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    ethernet().ipv4(source.octets(), PEER_V4.octets(), 64).udp(from, to).write(&mut frame, &[0; 20]).unwrap();
    frame
}

fn udp6(source: Ipv6Addr) -> Vec<u8> {
    let mut frame = Vec::new();
    ethernet().ipv6(source.octets(), PEER_V6.octets(), 64).udp(1, 2).write(&mut frame, &[0; 20]).unwrap();
    frame
}

fn icmp6(source: Ipv6Addr, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let ip = ethernet().ipv6(source.octets(), PEER_V6.octets(), 255);
    ip.icmpv6_raw(kind, 0, [0; 4]).write(&mut frame, payload).unwrap();
    frame
}

/// Target and one link-layer address option, as neighbour solicitation and advertisement carry them.
fn discovery(target: Ipv6Addr, kind: u8, mac: MacAddr) -> Vec<u8> {
    [&target.octets()[..], &[kind, 1], &mac.0].concat()
}

fn arp(sender: MacAddr, address: Ipv4Addr) -> Vec<u8> {
    let (ip, target) = (address.octets(), PEER_V4.octets());
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        ArpOperation::REQUEST,
        &sender.0,
        &ip,
        &[0; 6],
        &target,
    );
    let mut frame = Vec::new();
    ethernet().arp(packet.unwrap()).write(&mut frame).unwrap();
    frame
}

fn with_ether_type(mut frame: Vec<u8>, ether_type: u16) -> Vec<u8> {
    frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
    frame
}

#[test]
fn frames_with_the_guests_own_addresses_pass() {
    let mut tagged = Vec::new();
    let vlan = ethernet().single_vlan(VlanId::try_new(5).unwrap()).ipv4(V4.octets(), PEER_V4.octets(), 64);
    vlan.udp(1, 2).write(&mut tagged, &[]).unwrap();
    let cases = [
        ("IPv4", udp4(V4, 1, 2)),
        ("tagged IPv4", tagged),
        ("IPv6", udp6(V6)),
        ("link-local IPv6", udp6(LINK_LOCAL)),
        ("DHCP before an address is known", udp4(Ipv4Addr::UNSPECIFIED, 68, 67)),
        ("ARP", arp(MAC, V4)),
        ("ARP probe", arp(MAC, Ipv4Addr::UNSPECIFIED)),
        ("reverse ARP announcement", with_ether_type(arp(MAC, Ipv4Addr::UNSPECIFIED), 0x8035)),
        ("neighbour solicitation", icmp6(V6, 135, &discovery(PEER_V6, 1, MAC))),
        ("neighbour advertisement", icmp6(V6, 136, &discovery(V6, 2, MAC))),
        ("duplicate address detection", icmp6(NONE_V6, 135, &V6.octets())),
        ("router solicitation", icmp6(LINK_LOCAL, 133, &[1, 1, 0x52, 0x54, 0, 0, 0, 1])),
        ("ping", icmp6(V6, 128, &[1, 2, 3])),
    ];
    for (what, frame) in cases {
        assert_eq!(policy().check(&frame[..frame.len().min(256)]), Ok(()), "{what}");
    }
}

#[test]
fn frames_with_addresses_of_others_are_named_by_their_violation() {
    let mut stolen_mac = udp4(V4, 1, 2);
    stolen_mac[6..12].copy_from_slice(&OTHER.0);
    let mut broken_v6 = udp6(V6);
    broken_v6[14] = 0x40;
    let mut fragmented_discovery = icmp6(V6, 135, &discovery(PEER_V6, 1, OTHER));
    // A fragment header in place of the ICMPv6 header, which then starts later.
    fragmented_discovery[20] = 44;
    fragmented_discovery[54..62].copy_from_slice(&[58, 0, 0, 1, 0, 0, 0, 9]);
    let stolen_link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
    use Violation as V;
    let cases = [
        ("short", vec![0; 11], V::Malformed),
        ("another MAC", stolen_mac, V::Mac),
        ("another IPv4 address", udp4(PEER_V4, 1, 2), V::Ip),
        ("no IPv4 address", udp4(Ipv4Addr::UNSPECIFIED, 1, 2), V::Ip),
        ("answer of a DHCP server", udp4(Ipv4Addr::UNSPECIFIED, 67, 68), V::Ip),
        ("another IPv6 address", udp6(PEER_V6), V::Ip),
        ("another link-local address", udp6(stolen_link_local), V::Ip),
        ("no IPv6 address", udp6(NONE_V6), V::Ip),
        ("ARP for another address", arp(MAC, PEER_V4), V::Neighbour),
        ("ARP for another MAC", arp(OTHER, V4), V::Neighbour),
        ("reverse ARP for another MAC", with_ether_type(arp(OTHER, V4), 0x8035), V::Neighbour),
        ("advertisement for another address", icmp6(V6, 136, &discovery(PEER_V6, 2, MAC)), V::Neighbour),
        ("advertisement of another MAC", icmp6(V6, 136, &discovery(V6, 2, OTHER)), V::Neighbour),
        ("solicitation from another MAC", icmp6(V6, 135, &discovery(PEER_V6, 1, OTHER)), V::Neighbour),
        ("detection of another address", icmp6(NONE_V6, 135, &PEER_V6.octets()), V::Neighbour),
        ("option without length", icmp6(V6, 136, &[&V6.octets()[..], &[2, 0]].concat()), V::Unreadable),
        (
            "option beyond the packet",
            icmp6(V6, 136, &[&V6.octets()[..], &[14, 9, 0]].concat()),
            V::Unreadable,
        ),
        ("router advertisement", icmp6(LINK_LOCAL, 134, &[0; 8]), V::Router),
        ("redirect", icmp6(LINK_LOCAL, 137, &[0; 32]), V::Router),
        ("IPv6 that is not", broken_v6, V::Unreadable),
        ("fragmented neighbour discovery", fragmented_discovery, V::Unreadable),
        ("another protocol", with_ether_type(udp4(V4, 1, 2), 0x88cc), V::Unreadable),
    ];
    for (what, frame, violation) in cases {
        assert_eq!(policy().check(&frame[..frame.len().min(256)]), Err(violation), "{what}");
    }
}

#[test]
fn policy_without_addresses_checks_the_mac_alone() {
    let policy = AddressPolicy::mac_only(MAC);
    assert_eq!(policy.check(&udp4(PEER_V4, 1, 2)), Ok(()));
    assert_eq!(policy.check(&with_ether_type(udp4(V4, 1, 2), 0x88cc)), Ok(()));
    assert_eq!(AddressPolicy::mac_only(OTHER).check(&udp4(V4, 1, 2)), Err(Violation::Mac));
}

#[test]
fn guard_drops_and_counts_what_it_does_not_send() {
    let (near, far) = pair(1500).unwrap();
    let guard = Guard::new(near, policy());
    send(&guard, &udp4(PEER_V4, 1, 2));
    send(&guard, &arp(MAC, PEER_V4));
    assert!(is_silent(&far));
    send(&guard, &udp4(V4, 1, 2));
    assert_eq!(recv(&far), udp4(V4, 1, 2));
    // What arrives is not checked.
    send(&far, &udp4(V4, 1, 2));
    assert_eq!(recv(&guard), udp4(V4, 1, 2));
    let counted: Vec<_> = guard.counters().into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(counted, [(Violation::Ip, 1), (Violation::Neighbour, 1)]);
}

#[test]
fn guard_sends_what_is_allowed_of_a_batch() {
    let (near, far) = pair(1500).unwrap();
    let guard = Guard::new(near, policy());
    let (good, bad) = (udp4(V4, 1, 2), udp4(PEER_V4, 1, 2));
    let batch = [&good, &bad, &good, &good, &bad].map(|frame| IoSlice::new(frame));
    assert_eq!(guard.send_batch(&batch).unwrap(), batch.len());
    (0..3).for_each(|_| assert_eq!(recv(&far), good));
    assert!(is_silent(&far));
    assert_eq!(guard.counters().iter().map(|(_, n)| n).sum::<u64>(), 2);
}

proptest! {
    #[test]
    fn any_bytes_are_judged_without_panic(
        kind in prop_oneof![Just(0x0800_u16), Just(0x86dd), Just(0x0806), Just(0x8100), any::<u16>()],
        rest in proptest::collection::vec(any::<u8>(), 0..256),
        next in any::<u8>(),
    ) {
        let mut head = [&OTHER.0[..], &MAC.0, &kind.to_be_bytes(), &rest].concat();
        for (at, byte) in [(14, if kind == 0x86dd { 0x60 } else { 0x45 }), (20, next)] {
            head.get_mut(at).into_iter().for_each(|b| *b = byte);
        }
        head.truncate(256);
        let _ = policy().check(&head);
    }

    #[test]
    fn no_chain_of_extension_headers_hides_an_advertisement_for_another_address(
        chain in proptest::collection::vec((0_u8..3, 0_u8..3), 0..8),
    ) {
        let kinds = [
            IpNumber::IPV6_HEADER_HOP_BY_HOP,
            IpNumber::IPV6_ROUTE_HEADER,
            IpNumber::IPV6_DESTINATION_OPTIONS,
        ];
        let numbers = chain.iter().map(|(kind, _)| kinds[usize::from(*kind)]).chain([IpNumber::IPV6_ICMP]);
        let numbers: Vec<u8> = numbers.map(|number| number.0).collect();
        let mut body = Vec::new();
        for (next, (_, units)) in numbers[1..].iter().zip(&chain) {
            body.extend_from_slice(&[*next, *units]);
            body.resize(body.len() + 6 + usize::from(*units) * 8, 0);
        }
        body.extend_from_slice(&[136, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&discovery(PEER_V6, 2, MAC));
        let mut frame = Vec::new();
        let ip = ethernet().ipv6(V6.octets(), PEER_V6.octets(), 255);
        ip.write(&mut frame, IpNumber::IPV6_ICMP, &body).unwrap();
        frame[20] = numbers[0];
        let verdict = policy().check(&frame[..frame.len().min(256)]);
        prop_assert!(matches!(verdict, Err(Violation::Neighbour | Violation::Unreadable)), "{:?}", verdict);
    }
}
