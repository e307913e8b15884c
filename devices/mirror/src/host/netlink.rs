//! Addresses of a network interface, by rtnetlink.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::gids::{Addresses, Holder, LIFETIME};

/// Addresses of one interface.
pub struct InterfaceAddresses {
    socket: Socket,
    interface: u32,
    sequence: u32,
}

impl InterfaceAddresses {
    /// Those of the interface with that index.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left.
    pub fn new(interface: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, interface, sequence: 0 })
    }

    /// Sends a request and collects the addresses in its answer.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<AddressMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            if self.parse(&datagram, &mut answer)? {
                return Ok(answer);
            }
        }
    }

    /// Reads one datagram of an answer. Returns whether it was the last.
    fn parse(&self, mut datagram: &[u8], answer: &mut Vec<AddressMessage>) -> io::Result<bool> {
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while !datagram.is_empty() {
            let message: NetlinkMessage<RouteNetlinkMessage> =
                NetlinkMessage::deserialize(datagram).map_err(malformed)?;
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            datagram = datagram.get(length..).unwrap_or_default();
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => {
                    answer.push(address);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// Whether the interface has the address for good.
    fn is_permanent(&mut self, address: IpAddr) -> io::Result<bool> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        let all = self.request(RouteNetlinkMessage::GetAddress(message), NLM_F_DUMP)?;
        let interface = self.interface;
        Ok(all.iter().any(|found| {
            let attributes = &found.attributes;
            let is_it = |a: &AddressAttribute| {
                matches!(a, AddressAttribute::Local(at) | AddressAttribute::Address(at) if *at == address)
            };
            let forever =
                |a: &AddressAttribute| matches!(a, AddressAttribute::Flags(f) if f.contains(AddressFlags::Permanent));
            found.header.index == interface && attributes.iter().any(is_it) && attributes.iter().any(forever)
        }))
    }

    /// The address, alone in its subnet. Deprecated from the start, so that no program of the host sends from it.
    fn message(&self, address: IpAddr) -> AddressMessage {
        let mut lifetime = CacheInfo::default();
        lifetime.ifa_valid = u32::try_from(LIFETIME.as_secs()).unwrap_or(u32::MAX);
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = if address.is_ipv4() { 32 } else { 128 };
        message.header.index = self.interface;
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            message.header.scope = AddressScope::Link;
        }
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
            // The guest has looked for duplicates itself.
            AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute),
            AddressAttribute::CacheInfo(lifetime),
        ];
        message
    }
}

const fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

impl Addresses for InterfaceAddresses {
    fn hold(&mut self, address: IpAddr) -> io::Result<Holder> {
        if self.is_permanent(address)? {
            return Ok(Holder::Host);
        }
        let message = RouteNetlinkMessage::NewAddress(self.message(address));
        self.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE)?;
        Ok(Holder::Us)
    }

    fn release(&mut self, address: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::DelAddress(self.message(address));
        self.request(message, NLM_F_ACK).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Index of the loopback interface, in every network namespace.
    const LOOPBACK: u32 = 1;

    #[test]
    fn addresses_come_stay_for_a_while_and_go() {
        let mut interface = InterfaceAddresses::new(LOOPBACK).unwrap();
        for address in ["198.51.100.77", "2001:db8::77"].map(|text| text.parse::<IpAddr>().unwrap()) {
            match interface.hold(address) {
                Ok(holder) => assert_eq!(holder, Holder::Us),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("SKIP: this user may not add addresses");
                    return;
                }
                // A host without IPv6.
                Err(error) if address.is_ipv6() => return eprintln!("SKIP: {error}"),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(interface.hold(address).unwrap(), Holder::Us, "renewed");
            interface.release(address).unwrap();
            assert!(interface.release(address).is_err(), "it was there, once");
        }
    }

    #[test]
    fn an_address_for_good_is_the_hosts() {
        let mut interface = InterfaceAddresses::new(LOOPBACK).unwrap();
        if interface.is_permanent("127.0.0.1".parse().unwrap()).unwrap() {
            assert_eq!(interface.hold("127.0.0.1".parse().unwrap()).unwrap(), Holder::Host);
        } else {
            eprintln!("SKIP: this host's loopback interface has no address");
        }
        assert!(!interface.is_permanent("198.51.100.78".parse().unwrap()).unwrap());
    }
}
