//! The machines that are reached by a channel: to them packets are as long as a chunk.

use std::collections::BTreeSet;

use device_model::net::MacAddr;
use verbs::{Carrier, QpId};

#[derive(Debug)]
struct Neighbour {
    mac: MacAddr,
    /// What its channel is.
    carrier: Carrier,
    /// The channel has no room.
    blocked: bool,
    /// Queue pairs that have something to send when it has.
    waiting: BTreeSet<QpId>,
}

/// Machines with a channel. They are few.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Vec<Neighbour>);

impl Neighbours {
    fn get_mut(&mut self, mac: MacAddr) -> Option<&mut Neighbour> {
        self.0.iter_mut().find(|neighbour| neighbour.mac == mac)
    }

    pub(crate) fn contains(&self, mac: MacAddr) -> bool {
        self.carrier(mac).is_some()
    }

    /// What carries packets to a machine, if it has a channel.
    pub(crate) fn carrier(&self, mac: MacAddr) -> Option<Carrier> {
        self.0.iter().find(|neighbour| neighbour.mac == mac).map(|neighbour| neighbour.carrier)
    }

    pub(crate) fn add(&mut self, mac: MacAddr, carrier: Carrier) {
        if !self.contains(mac) {
            self.0.push(Neighbour { mac, carrier, blocked: false, waiting: BTreeSet::new() });
        }
    }

    /// Forgets a machine; returns who waited for room.
    pub(crate) fn remove(&mut self, mac: MacAddr) -> BTreeSet<QpId> {
        let waiting = self.get_mut(mac).map(|neighbour| std::mem::take(&mut neighbour.waiting));
        self.0.retain(|neighbour| neighbour.mac != mac);
        waiting.unwrap_or_default()
    }

    /// Notes whether a channel has room; returns who waited for it.
    pub(crate) fn set_blocked(&mut self, mac: MacAddr, blocked: bool) -> BTreeSet<QpId> {
        let Some(neighbour) = self.get_mut(mac) else { return BTreeSet::new() };
        neighbour.blocked = blocked;
        if blocked { BTreeSet::new() } else { std::mem::take(&mut neighbour.waiting) }
    }

    /// Whether a queue pair has to wait for room, which is then noted.
    pub(crate) fn blocks(&mut self, mac: MacAddr, qp: QpId) -> bool {
        let Some(neighbour) = self.get_mut(mac).filter(|neighbour| neighbour.blocked) else { return false };
        neighbour.waiting.insert(qp);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn who_finds_no_room_is_named_when_there_is_some() {
        let mut neighbours = Neighbours::default();
        assert!(!neighbours.blocks(MAC, QpId(1)));
        neighbours.add(MAC, Carrier::Direct);
        assert!(!neighbours.blocks(MAC, QpId(1)));
        neighbours.set_blocked(MAC, true);
        assert!(neighbours.blocks(MAC, QpId(1)) && neighbours.blocks(MAC, QpId(1)));
        assert_eq!(neighbours.set_blocked(MAC, false), BTreeSet::from([QpId(1)]));
        assert!(neighbours.remove(MAC).is_empty() && !neighbours.contains(MAC));
    }
}
