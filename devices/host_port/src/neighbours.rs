//! Ethernet addresses of neighbours: ARP (RFC 826) and neighbour discovery (RFC 4861) of a host with one address.
//!
//! Frames and time in, frames out. All peers are on the link: there are no routers.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use device_model::net::MacAddr;
use device_model::time::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

/// How long an answer is believed.
const LIFE: Duration = Duration::from_secs(60);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);
/// Questions until an address counts as absent.
const TRIES: u8 = 5;
/// Neighbours that are known at most.
const MAX: usize = 1024;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Hop limit that proves that a message did not pass a router.
const ON_LINK: u8 = 255;

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Known(MacAddr, Instant),
    Asking { again: Instant, left: u8 },
    Absent(Instant),
}

/// Whether an Ethernet address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It is.
    Known(MacAddr),
    /// It is being asked for.
    Asked,
    /// Nobody has that address.
    Absent,
}

/// The neighbours of one address.
#[derive(Debug)]
pub struct Neighbours {
    mac: MacAddr,
    own: IpAddr,
    entries: BTreeMap<IpAddr, Entry>,
    frames: VecDeque<Vec<u8>>,
}

impl Neighbours {
    /// Knows nobody, and answers for `own`.
    pub fn new(mac: MacAddr, own: IpAddr) -> Self {
        Self { mac, own, entries: BTreeMap::new(), frames: VecDeque::new() }
    }

    /// The next frame to send.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// The Ethernet address of a neighbour; asks for it if it is not known.
    pub fn look_up(&mut self, now: Instant, address: IpAddr) -> Lookup {
        match self.entries.get(&address) {
            Some(Entry::Known(mac, until)) if now < *until => return Lookup::Known(*mac),
            Some(Entry::Asking { .. }) => return Lookup::Asked,
            Some(Entry::Absent(until)) if now < *until => return Lookup::Absent,
            _ => {}
        }
        if !self.make_room() || address.is_ipv4() != self.own.is_ipv4() {
            return Lookup::Absent;
        }
        self.entries.insert(address, Entry::Asking { again: now + PAUSE, left: TRIES - 1 });
        self.ask(address);
        Lookup::Asked
    }

    /// Somebody who sends from `address` has this Ethernet address: good enough if nothing better is known.
    pub fn hint(&mut self, now: Instant, address: IpAddr, mac: MacAddr) {
        let known = self.entries.get(&address);
        let known = known.is_some_and(|entry| matches!(entry, Entry::Known(_, until) if now < *until));
        if !known && !mac.is_multicast() && self.make_room() {
            self.entries.insert(address, Entry::Known(mac, now + LIFE));
        }
    }

    /// Takes a frame; others than those of ARP and neighbour discovery mean nothing.
    pub fn receive(&mut self, now: Instant, frame: &[u8]) {
        let Ok(frame) = EthernetFrame::new_checked(frame) else { return };
        // What is no message of these means nothing.
        let _ = match frame.ethertype() {
            EthernetProtocol::Arp => self.arp(now, frame.payload()),
            EthernetProtocol::Ipv6 => self.ipv6(now, frame.payload()),
            _ => None,
        };
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        let mut ask = Vec::new();
        for (address, entry) in &mut self.entries {
            if let Entry::Asking { again, left } = entry
                && *again <= now
            {
                if *left == 0 {
                    *entry = Entry::Absent(now + PAUSE);
                } else {
                    (*again, *left) = (now + PAUSE, *left - 1);
                    ask.push(*address);
                }
            }
        }
        ask.into_iter().for_each(|address| self.ask(address));
    }

    /// When [`Neighbours::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let asking = self.entries.values().filter_map(|entry| match entry {
            Entry::Asking { again, .. } => Some(*again),
            _ => None,
        });
        asking.min()
    }

    /// Makes room for one more; whether there is.
    fn make_room(&mut self) -> bool {
        if self.entries.len() >= MAX {
            let old = self.entries.iter().find(|(_, entry)| !matches!(entry, Entry::Asking { .. }));
            if let Some((address, _)) = old {
                let address = *address;
                self.entries.remove(&address);
            }
        }
        self.entries.len() < MAX
    }

    /// Who answered, or asked, is known.
    fn learn(&mut self, now: Instant, address: IpAddr, mac: MacAddr) {
        if !mac.is_multicast() && (self.entries.contains_key(&address) || self.make_room()) {
            self.entries.insert(address, Entry::Known(mac, now + LIFE));
        }
    }

    fn arp(&mut self, now: Instant, packet: &[u8]) -> Option<()> {
        let packet = ArpPacket::new_checked(packet).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } = ArpRepr::parse(&packet).ok()?
        else {
            return None;
        };
        // What is said to others, or by somebody without an address, is not for this host to believe.
        if IpAddr::V4(target_protocol_addr) != self.own {
            return None;
        }
        let (address, mac) = (IpAddr::V4(source_protocol_addr), MacAddr(source_hardware_addr.0));
        if !source_protocol_addr.is_unspecified() {
            self.learn(now, address, mac);
        }
        if operation == ArpOperation::Request {
            self.send_arp(ArpOperation::Reply, mac, address);
        }
        Some(())
    }

    fn ipv6(&mut self, now: Instant, packet: &[u8]) -> Option<()> {
        let packet = Ipv6Packet::new_checked(packet).ok()?;
        let ip = Ipv6Repr::parse(&packet).ok()?;
        if ip.next_header != IpProtocol::Icmpv6 || ip.hop_limit != ON_LINK {
            return None;
        }
        let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        let checks = ChecksumCapabilities::default();
        let Icmpv6Repr::Ndisc(ndisc) = Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &icmp, &checks).ok()?
        else {
            return None;
        };
        let mac = |raw: smoltcp::wire::RawHardwareAddress| Some(MacAddr(raw.as_bytes().try_into().ok()?));
        match ndisc {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } if IpAddr::V6(target_addr) == self.own => {
                let source = lladdr.and_then(mac)?;
                self.learn(now, IpAddr::V6(ip.src_addr), source);
                let answer = NdiscRepr::NeighborAdvert {
                    flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
                    target_addr,
                    lladdr: Some(EthernetAddress(self.mac.0).into()),
                };
                self.send_ndisc(answer, ip.src_addr, source);
            }
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                let address = IpAddr::V6(target_addr);
                if self.entries.contains_key(&address) {
                    self.learn(now, address, lladdr.and_then(mac)?);
                }
            }
            _ => {}
        }
        Some(())
    }

    fn ask(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(_) => self.send_arp(ArpOperation::Request, MacAddr::BROADCAST, address),
            IpAddr::V6(target_addr) => {
                let question = NdiscRepr::NeighborSolicit {
                    target_addr,
                    lladdr: Some(EthernetAddress(self.mac.0).into()),
                };
                // The solicited-node group (RFC 4291, section 2.7.1).
                let [.., b, c, d] = target_addr.octets();
                let (high, low) = (0xff00 | u16::from(b), u16::from_be_bytes([c, d]));
                let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low);
                self.send_ndisc(question, group, MacAddr([0x33, 0x33, 0xff, b, c, d]));
            }
        }
    }

    fn send_arp(&mut self, operation: ArpOperation, to: MacAddr, target: IpAddr) {
        let (IpAddr::V4(own), IpAddr::V4(target)) = (self.own, target) else { return };
        let unknown = operation == ArpOperation::Request;
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.mac.0),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress(if unknown { [0; 6] } else { to.0 }),
            target_protocol_addr: target,
        };
        let mut frame = self.frame(to, EthernetProtocol::Arp, repr.buffer_len());
        if let Some(payload) = frame.get_mut(ETHERNET..) {
            repr.emit(&mut ArpPacket::new_unchecked(payload));
        }
        self.frames.push_back(frame);
    }

    fn send_ndisc(&mut self, ndisc: NdiscRepr<'_>, to: Ipv6Addr, to_mac: MacAddr) {
        let IpAddr::V6(own) = self.own else { return };
        let icmp = Icmpv6Repr::Ndisc(ndisc);
        let ip = Ipv6Repr {
            src_addr: own,
            dst_addr: to,
            next_header: IpProtocol::Icmpv6,
            payload_len: icmp.buffer_len(),
            hop_limit: ON_LINK,
        };
        let mut frame = self.frame(to_mac, EthernetProtocol::Ipv6, ip.buffer_len() + ip.payload_len);
        if let Some(bytes) = frame.get_mut(ETHERNET..) {
            let mut packet = Ipv6Packet::new_unchecked(bytes);
            ip.emit(&mut packet);
            let checks = ChecksumCapabilities::default();
            icmp.emit(&own, &to, &mut Icmpv6Packet::new_unchecked(packet.payload_mut()), &checks);
        }
        self.frames.push_back(frame);
    }

    /// A frame with its header.
    fn frame(&self, to: MacAddr, ethertype: EthernetProtocol, payload: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + payload];
        let repr = EthernetRepr {
            src_addr: EthernetAddress(self.mac.0),
            dst_addr: EthernetAddress(to.0),
            ethertype,
        };
        repr.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
        frame
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn pair(v6: bool) -> [(IpAddr, Neighbours); 2] {
        [1, 2].map(|n: u8| {
            let address = if v6 { format!("fe80::{n}") } else { format!("10.0.0.{n}") };
            let address: IpAddr = address.parse().unwrap();
            (address, Neighbours::new(mac(n), address))
        })
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn neighbours_find_each_other() {
        for v6 in [false, true] {
            let [(a_address, mut a), (b_address, mut b)] = pair(v6);
            assert_eq!(a.look_up(at(0), b_address), Lookup::Asked);
            // The first question is lost.
            a.poll().unwrap();
            assert_eq!((a.look_up(at(1), b_address), a.poll()), (Lookup::Asked, None));
            a.tick(a.deadline().unwrap());
            let question = a.poll().unwrap();
            b.receive(at(300), &question);
            // Who asks is known at once.
            assert_eq!(b.look_up(at(300), a_address), Lookup::Known(mac(1)));
            let answer = b.poll().unwrap();
            assert_eq!((&answer[..6], b.poll()), (&mac(1).0[..], None));
            a.receive(at(300), &answer);
            assert_eq!(a.look_up(at(300), b_address), Lookup::Known(mac(2)));
            // Not for ever.
            assert_eq!(a.look_up(at(61_000), b_address), Lookup::Asked);
        }
    }

    #[test]
    fn nobody_is_found_out() {
        let [(_, mut a), (b_address, _)] = pair(false);
        a.look_up(at(0), b_address);
        while let Some(deadline) = a.deadline() {
            a.tick(deadline);
        }
        assert_eq!(a.frames.len(), usize::from(TRIES));
        assert_eq!(a.look_up(at(1000), b_address), Lookup::Absent);
        assert_eq!(a.look_up(at(2000), b_address), Lookup::Asked);
        assert_eq!(a.look_up(at(0), "::1".parse().unwrap()), Lookup::Absent);
    }

    #[test]
    fn hints_do_not_outdo_answers() {
        let [(_, mut a), (b_address, _)] = pair(false);
        a.hint(at(0), b_address, mac(7));
        a.hint(at(0), b_address, mac(8));
        assert_eq!(a.look_up(at(0), b_address), Lookup::Known(mac(7)));
    }

    proptest! {
        #[test]
        fn any_frame_is_taken_without_panic(mut frame: Vec<u8>, kind in 0..3_usize, at_byte: usize, value: u8) {
            let [(_, mut a), (b_address, mut b)] = pair(kind == 2);
            a.receive(at(0), &frame);
            if kind > 0 {
                b.look_up(at(0), a.own);
                frame = b.poll().unwrap();
                let len = frame.len();
                frame[at_byte % len] = value;
                a.receive(at(0), &frame);
            }
            let _ = b_address;
            prop_assert!(a.entries.len() <= 1 && a.frames.len() <= 1);
        }

        #[test]
        fn what_is_known_is_bounded(addresses: Vec<[u8; 4]>) {
            let [(_, mut a), _] = pair(false);
            for n in 0..3000_u32 {
                a.hint(at(0), IpAddr::from(n.to_be_bytes()), mac(1));
            }
            for address in addresses {
                a.look_up(at(0), IpAddr::from(address));
            }
            prop_assert!(a.entries.len() <= MAX);
        }
    }
}
