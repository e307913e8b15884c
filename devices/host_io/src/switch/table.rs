//! What the switch knows: which port an address was last seen at, and where a frame must go.
//!
//! Sans-IO: time and port numbers are arguments.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use device_model::net::{ETHERNET_HEADER, MacAddr};
use device_model::time::Instant;

/// Number of a port. Never used twice in the life of a switch.
pub type PortId = u64;

/// Bounds of the address table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Addresses learned from one port at most. Above it the port's own first learned address makes room, so a port
    /// that makes up addresses cannot push out those of the others.
    pub per_port: usize,
    /// How long an address is remembered after its last frame.
    pub ageing: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_port: 64, ageing: Duration::from_secs(300) }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    Unicast(PortId),
    /// To all ports but the one it came from.
    Flood,
    /// Nowhere.
    Drop(Dropped),
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Shorter than an Ethernet header, or with a group address as its source.
    Malformed,
    /// Addressed to the link itself (IEEE 802.1Q, reserved group addresses), or to the port it came from.
    Local,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    seen: Instant,
}

/// The address table.
#[derive(Debug)]
pub struct Table {
    entries: HashMap<MacAddr, Entry>,
    /// Addresses in the order each port taught them; some may have moved to another port since.
    learned: HashMap<PortId, VecDeque<MacAddr>>,
    limits: Limits,
}

impl Table {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self { entries: HashMap::new(), learned: HashMap::new(), limits }
    }

    /// Learns the source of a frame received at `from` and decides where the frame goes.
    pub fn route(&mut self, from: PortId, frame: &[u8], now: Instant) -> Verdict {
        let Some((destination, source)) = addresses(frame) else { return Verdict::Drop(Dropped::Malformed) };
        if source.is_multicast() {
            return Verdict::Drop(Dropped::Malformed);
        }
        self.learn(source, from, now);
        if is_link_local(destination) {
            return Verdict::Drop(Dropped::Local);
        }
        if destination.is_multicast() {
            return Verdict::Flood;
        }
        match self.lookup(destination, now) {
            Some(port) if port == from => Verdict::Drop(Dropped::Local),
            Some(port) => Verdict::Unicast(port),
            None => Verdict::Flood,
        }
    }

    /// The port `address` was last seen at, unless that was too long ago.
    pub fn lookup(&self, address: MacAddr, now: Instant) -> Option<PortId> {
        let entry = self.entries.get(&address)?;
        (now.saturating_since(entry.seen) <= self.limits.ageing).then_some(entry.port)
    }

    /// Forgets everything learned from a port.
    pub fn forget(&mut self, port: PortId) {
        if self.learned.remove(&port).is_some() {
            self.entries.retain(|_, entry| entry.port != port);
        }
    }

    /// Addresses known, aged ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no address is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn learn(&mut self, address: MacAddr, port: PortId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&address)
            && entry.port == port
        {
            entry.seen = now;
            return;
        }
        let taught = self.learned.entry(port).or_default();
        if taught.len() >= self.limits.per_port
            && let Some(first) = taught.pop_front()
            && self.entries.get(&first).is_some_and(|entry| entry.port == port)
        {
            self.entries.remove(&first);
        }
        taught.push_back(address);
        self.entries.insert(address, Entry { port, seen: now });
    }
}

/// Destination and source of a frame that has a whole header.
fn addresses(frame: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let header = frame.first_chunk::<ETHERNET_HEADER>()?;
    let (destination, rest) = header.split_first_chunk::<6>()?;
    let source = rest.first_chunk::<6>()?;
    Some((MacAddr(*destination), MacAddr(*source)))
}

/// 01:80:C2:00:00:00 to 0F: pause frames, spanning tree, LLDP. A bridge does not forward them.
fn is_link_local(address: MacAddr) -> bool {
    let MacAddr([a, b, c, d, e, f]) = address;
    [a, b, c, d, e] == [0x01, 0x80, 0xc2, 0, 0] && f < 0x10
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn mac(n: u16) -> MacAddr {
        let [high, low] = n.to_be_bytes();
        MacAddr([2, 0, 0, 0, high, low])
    }

    fn frame(to: MacAddr, from: MacAddr) -> Vec<u8> {
        [&to.0[..], &from.0, &[0x08, 0x00], &[0; 46]].concat()
    }

    fn table(per_port: usize) -> Table {
        Table::new(Limits { per_port, ageing: Duration::from_secs(300) })
    }

    #[test]
    fn unknown_destination_floods_and_known_one_goes_to_its_port() {
        let mut table = table(4);
        assert_eq!(table.route(1, &frame(mac(2), mac(1)), NOW), Verdict::Flood);
        assert_eq!(table.route(2, &frame(mac(1), mac(2)), NOW), Verdict::Unicast(1));
        assert_eq!(table.route(1, &frame(mac(2), mac(1)), NOW), Verdict::Unicast(2));
        assert_eq!(table.route(1, &frame(MacAddr::BROADCAST, mac(1)), NOW), Verdict::Flood);
    }

    #[test]
    fn frame_to_its_own_port_or_to_the_link_is_dropped() {
        let mut table = table(4);
        assert_eq!(table.route(1, &frame(mac(1), mac(1)), NOW), Verdict::Drop(Dropped::Local));
        let pause = MacAddr([0x01, 0x80, 0xc2, 0, 0, 1]);
        assert_eq!(table.route(1, &frame(pause, mac(1)), NOW), Verdict::Drop(Dropped::Local));
    }

    #[test]
    fn short_frame_and_group_source_are_malformed_and_teach_nothing() {
        let mut table = table(4);
        let whole = frame(mac(2), mac(1));
        assert_eq!(table.route(1, &whole[..13], NOW), Verdict::Drop(Dropped::Malformed));
        let group = frame(mac(2), MacAddr::BROADCAST);
        assert_eq!(table.route(1, &group, NOW), Verdict::Drop(Dropped::Malformed));
        assert!(table.is_empty());
    }

    #[test]
    fn moved_address_is_followed() {
        let mut table = table(4);
        table.route(1, &frame(MacAddr::BROADCAST, mac(1)), NOW);
        table.route(2, &frame(MacAddr::BROADCAST, mac(1)), NOW);
        assert_eq!(table.lookup(mac(1), NOW), Some(2));
        table.forget(1);
        assert_eq!(table.lookup(mac(1), NOW), Some(2));
    }

    #[test]
    fn address_is_forgotten_after_its_age_or_with_its_port() {
        let mut table = table(4);
        table.route(1, &frame(MacAddr::BROADCAST, mac(1)), NOW);
        assert_eq!(table.lookup(mac(1), NOW + Duration::from_secs(301)), None);
        table.forget(1);
        assert!(table.is_empty());
    }

    proptest! {
        #[test]
        fn port_that_makes_up_addresses_only_loses_its_own(sources in proptest::collection::vec(100_u16.., 1..300)) {
            let mut table = table(8);
            table.route(1, &frame(MacAddr::BROADCAST, mac(1)), NOW);
            for (at, source) in (0..).zip(sources) {
                table.route(2, &frame(MacAddr::BROADCAST, mac(source)), Instant::from_nanos(at));
                prop_assert_eq!(table.lookup(mac(source), NOW), Some(2));
            }
            prop_assert_eq!(table.lookup(mac(1), NOW), Some(1));
            prop_assert!(table.len() <= 9);
            prop_assert!(table.learned.values().all(|taught| taught.len() <= 8));
        }
    }
}
