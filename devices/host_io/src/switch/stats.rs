//! Counters of a switch, written by its thread and readable from any other.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::table::PortId;

/// One counter. Only the switch's thread adds to it.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        // One writer: no read-modify-write is needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Live counters of one port.
#[derive(Debug, Default)]
pub(super) struct PortCounters {
    pub(super) received_frames: Counter,
    pub(super) received_bytes: Counter,
    pub(super) sent_frames: Counter,
    pub(super) sent_bytes: Counter,
    pub(super) queued_frames: Counter,
    pub(super) dropped_full: Counter,
    pub(super) dropped_too_long: Counter,
    pub(super) dropped_malformed: Counter,
    pub(super) dropped_local: Counter,
    pub(super) unknown_messages: Counter,
}

/// Live counters of the whole switch.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Counter,
    pub(super) refused: Counter,
    pub(super) flooded: Counter,
    ports: Mutex<Vec<(PortId, String, Arc<PortCounters>)>>,
}

impl Counters {
    /// Adds a port that has introduced itself.
    pub(super) fn add_port(&self, id: PortId, name: &str, port: &Arc<PortCounters>) {
        let mut ports = self.ports.lock();
        ports.push((id, name.to_owned(), Arc::clone(port)));
    }

    /// Forgets a port that has gone.
    pub(super) fn remove_port(&self, id: PortId) {
        self.ports.lock().retain(|(other, ..)| *other != id);
    }
}

/// Reads a running switch's counters from any thread.
#[derive(Clone, Debug, Default)]
pub struct Statistics(pub(super) Arc<Counters>);

impl Statistics {
    /// The counters as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let counters = &self.0;
        let ports = counters.ports.lock();
        Snapshot {
            connections: counters.connections.get(),
            refused: counters.refused.get(),
            flooded: counters.flooded.get(),
            ports: ports.iter().map(|(id, name, port)| PortSnapshot::new(*id, name, port)).collect(),
        }
    }
}

/// Counters of a switch at one moment. `Display` prints a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections accepted since the start.
    pub connections: u64,
    /// Connections that were no ports: foreign, of another version, silent, or one too many.
    pub refused: u64,
    /// Frames that went to every port.
    pub flooded: u64,
    /// Ports connected now, oldest first.
    pub ports: Vec<PortSnapshot>,
}

/// Counters of a port at one moment. Received is what the port's owner sent into the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSnapshot {
    /// Number of the port.
    pub id: PortId,
    /// What the port calls itself.
    pub name: String,
    /// Frames taken from the port.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames handed to the port.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Of the frames handed to the port, those that had to wait in the queue of the switch.
    pub queued_frames: u64,
    /// Frames for the port that were lost because it was too slow.
    pub dropped_full: u64,
    /// Frames for the port that were longer than it takes, and frames from it longer than any link carries.
    pub dropped_too_long: u64,
    /// Frames from the port without a valid Ethernet header.
    pub dropped_malformed: u64,
    /// Frames from the port that no bridge forwards: to itself, or to the link.
    pub dropped_local: u64,
    /// Messages from the port that this version does not know.
    pub unknown_messages: u64,
}

impl PortSnapshot {
    fn new(id: PortId, name: &str, port: &PortCounters) -> Self {
        Self {
            id,
            name: name.to_owned(),
            received_frames: port.received_frames.get(),
            received_bytes: port.received_bytes.get(),
            sent_frames: port.sent_frames.get(),
            sent_bytes: port.sent_bytes.get(),
            queued_frames: port.queued_frames.get(),
            dropped_full: port.dropped_full.get(),
            dropped_too_long: port.dropped_too_long.get(),
            dropped_malformed: port.dropped_malformed.get(),
            dropped_local: port.dropped_local.get(),
            unknown_messages: port.unknown_messages.get(),
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} connections, {} refused, {} frames flooded",
            self.connections, self.refused, self.flooded
        )?;
        writeln!(
            f,
            "{:>5} {:<20} {:>12} {:>16} {:>12} {:>16} {:>10} {:>10} {:>10}",
            "port", "name", "rx frames", "rx bytes", "tx frames", "tx bytes", "queued", "dropped", "invalid"
        )?;
        for p in &self.ports {
            writeln!(
                f,
                "{:>5} {:<20} {:>12} {:>16} {:>12} {:>16} {:>10} {:>10} {:>10}",
                p.id,
                p.name,
                p.received_frames,
                p.received_bytes,
                p.sent_frames,
                p.sent_bytes,
                p.queued_frames,
                p.dropped_full,
                p.dropped_too_long + p.dropped_malformed + p.dropped_local + p.unknown_messages,
            )?;
        }
        Ok(())
    }
}
