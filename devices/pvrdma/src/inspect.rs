//! What the device looks like from outside: plain data, copied under the lock and used without it.

use device_model::net::MacAddr;
use device_model::time::Instant;
use verbs::{AsyncEvent, Carrier, Gid, GidEntry, Mtu, Owner, QpAttr, QpId, QpType, Qpn, WcStatus};

use crate::counters::{Counters, ObjectCounts};
use crate::state::{Core, Phase, Qp, owner};

/// Failures that are remembered.
const MAX_FAILURES: usize = 16;

/// How far the driver has brought the device up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverPhase {
    /// There is no driver, or it has not handed over its shared region.
    None,
    /// The shared region was handed over, but not activated.
    Loaded,
    /// Commands are executed.
    Active,
}

/// What told the guest of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A completion with this status.
    Completion(WcStatus),
    /// An asynchronous event.
    Event(AsyncEvent),
    /// The guest broke a ring: its indices or its memory are impossible.
    BrokenRing,
}

/// A failure of a queue pair that may be gone by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When, by the device's clock.
    pub at: Instant,
    /// The queue pair's handle.
    pub handle: u32,
    /// Its number on the wire.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// The peer's address, if it was connected to one.
    pub peer_gid: Gid,
    /// The peer's queue pair, likewise.
    pub peer_qpn: Qpn,
    /// What happened.
    pub cause: Cause,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// The guest's number for it.
    pub handle: u32,
    /// Its number on the wire.
    pub qpn: Qpn,
    /// Transport service.
    pub qp_type: QpType,
    /// On whose behalf it exists.
    pub owner: Owner,
    /// Attributes as they are now.
    pub attr: QpAttr,
    /// What carries its packets; connected queue pairs only.
    pub carrier: Option<Carrier>,
    /// What it failed of last, since it left the reset state.
    pub failure: Option<Cause>,
}

/// A device at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// How far the driver has brought it up.
    pub phase: DriverPhase,
    /// Whether the link is up.
    pub link_up: bool,
    /// Whether the guest has the paired network interface up.
    pub interface_up: bool,
    /// Address of the paired network interface.
    pub mac: MacAddr,
    /// Largest path MTU.
    pub active_mtu: Mtu,
    /// Rows of the GID table that hold something.
    pub gids: Vec<GidEntry>,
    /// Objects that exist.
    pub objects: ObjectCounts,
    /// How many there can be.
    pub limits: ObjectCounts,
    /// Queue pairs, in the order of their handles.
    pub queue_pairs: Vec<QueuePair>,
    /// Handle of the first queue pair that was left out.
    pub next_queue_pair: Option<u32>,
    /// The latest failures, oldest first.
    pub failures: Vec<Failure>,
    /// What the device has counted.
    pub counters: Counters,
    /// What the provider has counted.
    pub provider: Vec<(&'static str, u64)>,
}

impl Core {
    /// Remembers that a queue pair failed.
    pub(crate) fn note_failure(&mut self, id: QpId, cause: Cause) {
        let Ok(attr) = self.provider.query_qp(id) else { return };
        let at = (self.clock)();
        let Some(qp) = self.objects.qp_mut(id.0) else { return };
        qp.failure = Some(cause);
        if self.failures.len() == MAX_FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back(Failure {
            at,
            handle: id.0,
            qpn: qp.qpn,
            qp_type: qp.qp_type,
            peer_gid: attr.av.dgid,
            peer_qpn: attr.dest_qpn,
            cause,
        });
    }

    /// What the device is and has done, with a bounded number of queue pairs.
    pub(crate) fn snapshot(&self, first_qp: u32, max_qps: usize) -> Snapshot {
        let mut qps = self.objects.all_qps().skip_while(|(handle, _)| *handle < first_qp);
        let queue_pairs = qps.by_ref().take(max_qps).filter_map(|(handle, qp)| self.queue_pair(handle, qp));
        Snapshot {
            phase: match self.phase {
                Phase::NoRegion => DriverPhase::None,
                Phase::Loaded(_) => DriverPhase::Loaded,
                Phase::Active(_) => DriverPhase::Active,
            },
            link_up: self.is_port_up(),
            interface_up: (self.interface_up)(),
            mac: self.config.mac,
            active_mtu: self.provider.limits().active_mtu,
            gids: self.gids.iter().map(|(&index, &gid)| GidEntry { index, gid }).collect(),
            objects: self.objects.counts(),
            limits: self.object_limits(),
            queue_pairs: queue_pairs.collect(),
            next_queue_pair: qps.next().map(|(handle, _)| handle),
            failures: self.failures.iter().copied().collect(),
            counters: self.totals(),
            provider: self.provider.counters(),
        }
    }

    /// The counters, with those that are kept elsewhere.
    pub(crate) fn totals(&self) -> Counters {
        Counters { interrupts: self.irq.signalled, ..self.counters.clone() }
    }

    fn queue_pair(&self, handle: u32, qp: &Qp) -> Option<QueuePair> {
        let attr = self.provider.query_qp(QpId(handle)).ok()?;
        let (qpn, qp_type, owner, failure) = (qp.qpn, qp.qp_type, owner(qp.context), qp.failure);
        let carrier = self.provider.carrier(QpId(handle));
        Some(QueuePair { handle, qpn, qp_type, owner, attr, carrier, failure })
    }

    fn object_limits(&self) -> ObjectCounts {
        ObjectCounts {
            contexts: self.caps.max_uar.saturating_sub(1),
            protection_domains: self.caps.max_pd,
            memory_regions: self.caps.max_mr,
            completion_queues: self.caps.max_cq,
            shared_receive_queues: self.caps.max_srq,
            queue_pairs: self.caps.max_qp,
            page_list_bytes: self.config.page_list_budget,
        }
    }
}
