//! Which addresses a guest may use, and what a frame claims.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use device_model::net::{ETHERTYPE_TUNNEL, MacAddr};
use etherparse::icmpv6::{
    TYPE_NEIGHBOR_ADVERTISEMENT, TYPE_NEIGHBOR_SOLICITATION, TYPE_REDIRECT_MESSAGE,
    TYPE_ROUTER_ADVERTISEMENT, TYPE_ROUTER_SOLICITATION,
};
use etherparse::{
    ArpHardwareId, ArpPacketSlice, EtherType, Icmpv6Slice, IpNumber, LaxIpv6Slice, LaxNetSlice,
    LaxSlicedPacket, TransportSlice, ether_type,
};

use crate::headers::is_hidden;

/// Reverse ARP, with which a machine that has moved announces its address to switches (RFC 903).
const REVERSE_ARP: EtherType = EtherType(0x8035);

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Shorter than an Ethernet header.
    Malformed,
    /// Source is another Ethernet address.
    Mac,
    /// Source is an IP address the guest was not given.
    Ip,
    /// ARP or neighbour discovery speaks for an address the guest was not given.
    Neighbour,
    /// Plays the router: router advertisement or redirect.
    Router,
    /// Not IP, not ARP, or built so that its claims cannot be read.
    Unreadable,
}

impl Violation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Mac, Self::Ip, Self::Neighbour, Self::Router, Self::Unreadable];
}

/// The addresses a guest may send from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPolicy {
    mac: MacAddr,
    /// `None` leaves IP addresses to the guest.
    addresses: Option<Vec<IpAddr>>,
}

impl AddressPolicy {
    /// Ties the guest to one Ethernet address and leaves IP addresses to it.
    pub const fn mac_only(mac: MacAddr) -> Self {
        Self { mac, addresses: None }
    }

    /// Ties the guest to one Ethernet address, to these IP addresses and to the link-local IPv6 address that follows
    /// from the Ethernet address. It may still ask for addresses (DHCP), probe them (ARP, duplicate address detection),
    /// and send nothing but IP, ARP and what monitors call each other by.
    pub fn with_addresses(mac: MacAddr, mut addresses: Vec<IpAddr>) -> Self {
        addresses.push(link_local(mac).into());
        Self { mac, addresses: Some(addresses) }
    }

    /// The IP addresses the guest may send from; `None` when they are left to it.
    pub fn addresses(&self) -> Option<&[IpAddr]> {
        self.addresses.as_deref()
    }

    /// Checks a frame by its first bytes, 256 at most.
    ///
    /// # Errors
    ///
    /// The first [`Violation`] found.
    pub fn check(&self, head: &[u8]) -> Result<(), Violation> {
        let source = head.get(6..12).ok_or(Violation::Malformed)?;
        if source != self.mac.0 {
            return Err(Violation::Mac);
        }
        let Some(allowed) = &self.addresses else { return Ok(()) };
        let packet = LaxSlicedPacket::from_ethernet(head).map_err(|_| Violation::Malformed)?;
        let claims = Claims { mac: self.mac, allowed };
        match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => claims.ipv4(ip.header().source_addr(), packet.transport.as_ref()),
            Some(LaxNetSlice::Ipv6(ip)) => claims.ipv6(ip, &packet),
            Some(LaxNetSlice::Arp(arp)) => claims.arp(arp),
            None => claims.other(&packet),
        }
    }
}

/// The link-local address that follows from an Ethernet address (RFC 4291, section 2.5.6 and appendix A).
fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f, g, h] = mac.eui64();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h])
}

struct Claims<'a> {
    mac: MacAddr,
    allowed: &'a [IpAddr],
}

impl Claims<'_> {
    fn may_use(&self, address: impl Into<IpAddr>) -> bool {
        self.allowed.contains(&address.into())
    }

    fn ipv4(&self, source: Ipv4Addr, transport: Option<&TransportSlice<'_>>) -> Result<(), Violation> {
        let asks_for_address = || matches!(transport, Some(TransportSlice::Udp(udp)) if udp.source_port() == 68 && udp.destination_port() == 67);
        if self.may_use(source) || (source.is_unspecified() && asks_for_address()) {
            return Ok(());
        }
        Err(Violation::Ip)
    }

    fn arp(&self, arp: &ArpPacketSlice<'_>) -> Result<(), Violation> {
        let over_ethernet = arp.hw_addr_type() == ArpHardwareId::ETHERNET;
        if !over_ethernet || arp.proto_addr_type() != ether_type::IPV4 {
            return Err(Violation::Unreadable);
        }
        let address: [u8; 4] = arp.sender_protocol_addr().try_into().map_err(|_| Violation::Unreadable)?;
        let address = Ipv4Addr::from(address);
        // An unspecified sender probes an address before it is used (RFC 5227).
        if arp.sender_hw_addr() == self.mac.0 && (address.is_unspecified() || self.may_use(address)) {
            return Ok(());
        }
        Err(Violation::Neighbour)
    }

    fn ipv6(&self, ip: &LaxIpv6Slice<'_>, packet: &LaxSlicedPacket<'_>) -> Result<(), Violation> {
        let source = ip.header().source_addr();
        let is_icmp = ip.payload().ip_number == IpNumber::IPV6_ICMP;
        // Neighbour discovery must not be fragmented (RFC 6980), so nothing else of ICMPv6 needs to be.
        if is_hidden(packet) || (is_icmp && ip.is_payload_fragmented()) {
            return Err(Violation::Unreadable);
        }
        match &packet.transport {
            Some(TransportSlice::Icmpv6(icmp)) => self.icmpv6(source, icmp)?,
            _ if is_icmp => return Err(Violation::Unreadable),
            _ if source.is_unspecified() => return Err(Violation::Ip),
            _ => {}
        }
        // From the unspecified address only ICMPv6 comes this far: duplicate address detection and its reports.
        if source.is_unspecified() || self.may_use(source) { Ok(()) } else { Err(Violation::Ip) }
    }

    fn icmpv6(&self, source: Ipv6Addr, icmp: &Icmpv6Slice<'_>) -> Result<(), Violation> {
        match icmp.type_u8() {
            TYPE_ROUTER_ADVERTISEMENT | TYPE_REDIRECT_MESSAGE => Err(Violation::Router),
            TYPE_ROUTER_SOLICITATION => self.link_addresses(icmp.payload()),
            TYPE_NEIGHBOR_ADVERTISEMENT => self.neighbour(icmp.payload(), true),
            TYPE_NEIGHBOR_SOLICITATION => self.neighbour(icmp.payload(), source.is_unspecified()),
            _ => Ok(()),
        }
    }

    /// The target, where it must be the guest's own, and the options (RFC 4861, sections 4.3 and 4.4).
    fn neighbour(&self, payload: &[u8], target_is_own: bool) -> Result<(), Violation> {
        let (target, options) = payload.split_first_chunk::<16>().ok_or(Violation::Unreadable)?;
        if target_is_own && !self.may_use(Ipv6Addr::from(*target)) {
            return Err(Violation::Neighbour);
        }
        self.link_addresses(options)
    }

    /// The link-layer addresses among the options of neighbour discovery (RFC 4861, section 4.6.1).
    fn link_addresses(&self, mut options: &[u8]) -> Result<(), Violation> {
        /// Bytes per unit of an option's length field.
        const UNIT: usize = 8;
        while let [kind, units, value @ ..] = options {
            let len = usize::from(*units) * UNIT;
            let next = options.get(len..).filter(|_| len > 0).ok_or(Violation::Unreadable)?;
            let is_link_address = matches!(kind, 1 | 2);
            if is_link_address && value.get(..6) != Some(&self.mac.0) {
                return Err(Violation::Neighbour);
            }
            options = next;
        }
        Ok(())
    }

    fn other(&self, packet: &LaxSlicedPacket<'_>) -> Result<(), Violation> {
        match packet.ether_payload() {
            // What they say is vouched for by a key that guests do not have.
            Some(payload) if payload.ether_type == EtherType(ETHERTYPE_TUNNEL) => Ok(()),
            Some(payload) if payload.ether_type == REVERSE_ARP => {
                self.arp(&ArpPacketSlice::from_slice(payload.payload).map_err(|_| Violation::Unreadable)?)
            }
            _ => Err(Violation::Unreadable),
        }
    }
}
