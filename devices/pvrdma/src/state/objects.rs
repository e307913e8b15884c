//! What the guest creates.

use pvrdma_spec::shared::DeviceCaps;
use pvrdma_spec::version;
use serde::{Deserialize, Serialize};
use verbs::{Owner, QpCap, QpType, Qpn, SrqAttr};

use super::Table;
use crate::counters::ObjectCounts;
use crate::inspect::Cause;
use crate::polling::Heat;
use crate::ring::{ProducerRing, WorkRing};
use crate::work::Source;

/// The context of the guest's kernel. It owns doorbell page 0, and no `CREATE_UC` ever yields its number.
pub(crate) const KERNEL: u32 = 0;

/// On whose behalf the objects of a context exist.
pub(crate) const fn owner(context: u32) -> Owner {
    if context == KERNEL { Owner::Kernel } else { Owner::User }
}

/// A process of the guest.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its doorbell page, 1 or more.
    pub(crate) page: u32,
    /// Whether it is worth polling.
    pub(crate) heat: Heat,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: u32,
    /// Memory regions, queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) context: u32,
    pub(crate) pd: u32,
    /// Host bytes of its page list.
    pub(crate) cost: usize,
}

/// What the guest wants to be notified of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arm {
    /// Nothing.
    #[default]
    No,
    /// The next solicited or failed completion.
    Solicited,
    /// The next completion.
    Any,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: u32,
    pub(crate) ring: ProducerRing,
    /// Queue pairs that complete to it; one that sends and receives to it counts twice.
    pub(crate) users: u32,
    pub(crate) arm: Arm,
    /// Number of the last solicited completion plus one.
    pub(crate) solicited: u64,
    /// Completions there were at the last notification.
    pub(crate) notified: u64,
    /// Place of its last notification in the notification ring.
    pub(crate) notification: Option<u64>,
    /// Whether a notification waits for the notification ring to have space.
    pub(crate) deferred: bool,
    /// Set for good once it overflowed or the guest broke it.
    pub(crate) failed: bool,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) context: u32,
    pub(crate) pd: u32,
    pub(crate) ring: WorkRing,
    pub(crate) attr: SrqAttr,
    /// Queue pairs that receive from it.
    pub(crate) users: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    /// Its number on the wire.
    pub(crate) qpn: Qpn,
    pub(crate) context: u32,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) qp_type: QpType,
    pub(crate) signal_all: bool,
    pub(crate) cap: QpCap,
    pub(crate) send: WorkRing,
    /// `None` with a shared receive queue.
    pub(crate) recv: Option<WorkRing>,
    /// What it failed of last, since it left the reset state.
    pub(crate) failure: Option<Cause>,
}

/// Everything the guest has created.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) contexts: Table<Context>,
    pub(crate) pds: Table<Pd>,
    pub(crate) mrs: Table<Mr>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    /// The queue pair of the general service interface, if there is one.
    pub(crate) gsi: Option<(u32, Box<Qp>)>,
    /// Host bytes of all page lists.
    pub(crate) page_list_bytes: usize,
}

impl Objects {
    /// Empty tables, with handles as a driver of this version can have them.
    pub(crate) fn new(caps: &DeviceCaps, driver_version: u32) -> Self {
        Self {
            contexts: Table::new(1, caps.max_uar),
            pds: Table::new(1, caps.max_pd.saturating_add(1)),
            mrs: Table::new(1, caps.max_mr.saturating_add(1)),
            cqs: Table::new(0, caps.max_cq),
            srqs: Table::new(0, caps.max_srq),
            qps: Table::new(Self::gsi_handle(driver_version) + 1, caps.max_qp),
            gsi: None,
            page_list_bytes: 0,
        }
    }

    /// Handle of the general service interface: 0, which user space cannot have since its library takes it for none, or
    /// its number for a driver that knows only one of both.
    pub(crate) const fn gsi_handle(driver_version: u32) -> u32 {
        if driver_version < version::QP_HANDLE { Qpn::GSI.0 } else { 0 }
    }

    /// All queue pairs, in the order of their handles.
    pub(crate) fn all_qps(&self) -> impl Iterator<Item = (u32, &Qp)> {
        // The general service interface has a lower handle than any other.
        self.gsi.iter().map(|(handle, qp)| (*handle, &**qp)).chain(self.qps.iter())
    }

    /// A queue pair of any type.
    pub(crate) fn qp(&self, handle: u32) -> Option<&Qp> {
        match &self.gsi {
            Some((gsi, qp)) if *gsi == handle => Some(qp),
            _ => self.qps.get(handle),
        }
    }

    /// A queue pair of any type.
    pub(crate) fn qp_mut(&mut self, handle: u32) -> Option<&mut Qp> {
        match &mut self.gsi {
            Some((gsi, qp)) if *gsi == handle => Some(qp),
            _ => self.qps.get_mut(handle),
        }
    }

    /// Takes out a queue pair of any type.
    pub(crate) fn remove_qp(&mut self, handle: u32) -> Option<Qp> {
        match self.gsi.take_if(|(gsi, _)| *gsi == handle) {
            Some((_, qp)) => Some(*qp),
            None => self.qps.remove(handle),
        }
    }

    /// The ring that a doorbell announces work in.
    pub(crate) fn work_ring(&mut self, source: Source) -> Option<&mut WorkRing> {
        match source {
            Source::Send(handle) => self.qp_mut(handle).map(|qp| &mut qp.send),
            Source::Recv(handle) => self.qp_mut(handle).and_then(|qp| qp.recv.as_mut()),
            Source::Srq(handle) => self.srqs.get_mut(handle).map(|srq| &mut srq.ring),
            Source::Poll(_) => None,
        }
    }

    /// The context that the ring of a doorbell belongs to.
    pub(crate) fn context_of(&self, source: Source) -> Option<u32> {
        match source {
            Source::Send(handle) | Source::Recv(handle) => self.qp(handle).map(|qp| qp.context),
            Source::Srq(handle) => self.srqs.get(handle).map(|srq| srq.context),
            Source::Poll(handle) => self.cqs.get(handle).map(|cq| cq.context),
        }
    }

    /// The rings that a context posts work in.
    pub(crate) fn rings_of(&self, context: u32) -> Vec<Source> {
        let qps = self.qps.iter().filter(|(_, qp)| qp.context == context);
        let sources = qps.flat_map(|(handle, qp)| {
            [Some(Source::Send(handle)), qp.recv.as_ref().map(|_| Source::Recv(handle))]
        });
        let srqs = self.srqs.iter().filter(|(_, srq)| srq.context == context);
        sources.flatten().chain(srqs.map(|(handle, _)| Source::Srq(handle))).collect()
    }

    /// How many there are of each.
    pub(crate) const fn counts(&self) -> ObjectCounts {
        ObjectCounts {
            contexts: self.contexts.len(),
            protection_domains: self.pds.len(),
            memory_regions: self.mrs.len(),
            completion_queues: self.cqs.len(),
            shared_receive_queues: self.srqs.len(),
            queue_pairs: self.qps.len() + self.gsi.is_some() as u32,
            page_list_bytes: self.page_list_bytes,
        }
    }

    /// The doorbell page of a context.
    pub(crate) fn page_of(&self, context: u32) -> Option<u32> {
        if context == KERNEL { Some(0) } else { self.contexts.get(context).map(|context| context.page) }
    }
}
