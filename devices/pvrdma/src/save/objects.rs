//! Objects as they are saved. How often each is in use is counted again.

use std::sync::Arc;

use device_model::save::RestoreError;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::queue::{Cqe, RX_OFFSET, RecvWqeHeader, SendWqeHeader, TX_OFFSET};
use pvrdma_spec::version;
use serde::{Deserialize, Serialize};
use verbs::{QpCap, QpType, Qpn, SrqAttr};

use super::invalid;
use crate::command::WorkQueueSize;
use crate::polling::{Heat, PolledProcesses};
use crate::ring::{Indices, Placement, ProducerRing, ProducerRingState, RingPages, WorkRing, WorkRingState};
use crate::state::{Arm, Context, Core, Cq, KERNEL, Mr, Objects, Pd, Qp, Srq, Table};
use crate::work::Source;

#[derive(Debug, Serialize, Deserialize)]
struct CqState {
    context: u32,
    entries: u32,
    ring: ProducerRingState,
    arm: Arm,
    solicited: u64,
    notified: u64,
    notification: Option<u64>,
    deferred: bool,
    failed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct SrqState {
    context: u32,
    pd: u32,
    attr: SrqAttr,
    pages: Vec<u32>,
    ring: WorkRingState,
}

#[derive(Debug, Serialize, Deserialize)]
struct QpState {
    qpn: Qpn,
    context: u32,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    qp_type: QpType,
    signal_all: bool,
    cap: QpCap,
    pages: Vec<u32>,
    send: WorkRingState,
    recv: Option<WorkRingState>,
}

/// Objects by handle, and which handles have been used.
#[derive(Debug, Serialize, Deserialize)]
struct TableState<T> {
    shape: (u32, u32),
    objects: Vec<(u32, T)>,
}

/// Everything the guest has created.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ObjectsState {
    /// Doorbell pages.
    contexts: TableState<u32>,
    /// Contexts.
    pds: TableState<u32>,
    /// Context, protection domain, and host bytes of the page list.
    mrs: TableState<(u32, u32, u64)>,
    cqs: TableState<CqState>,
    srqs: TableState<SrqState>,
    qps: TableState<QpState>,
    gsi: Option<QpState>,
}

impl<T> TableState<T> {
    fn of<O>(table: &Table<O>, save: impl Fn(&O) -> T) -> Self {
        let objects = table.iter().map(|(handle, object)| (handle, save(object))).collect();
        Self { shape: table.shape(), objects }
    }

    /// Prepares a table for the objects, and hands them out.
    fn into<O>(self, table: &mut Table<O>) -> Result<Vec<(u32, T)>, RestoreError> {
        if table.reserve(self.shape) {
            Ok(self.objects)
        } else {
            Err(invalid("table is larger than it can be"))
        }
    }
}

impl ObjectsState {
    pub(super) fn of(objects: &Objects, polled: &PolledProcesses) -> Self {
        let Objects { contexts, pds, mrs, cqs, srqs, qps, gsi, page_list_bytes: _ } = objects;
        Self {
            contexts: TableState::of(contexts, |context| context.page),
            pds: TableState::of(pds, |pd| pd.context),
            mrs: TableState::of(mrs, |mr| (mr.context, mr.pd, mr.cost as u64)),
            cqs: TableState::of(cqs, |cq| CqState::of(cq, polled)),
            srqs: TableState::of(srqs, SrqState::of),
            qps: TableState::of(qps, QpState::of),
            gsi: gsi.as_ref().map(|(_, qp)| QpState::of(qp)),
        }
    }
}

impl CqState {
    fn of(cq: &Cq, polled: &PolledProcesses) -> Self {
        let Cq { context, ring, users: _, arm, solicited, notified, notification, deferred, failed } = cq;
        Self {
            context: *context,
            entries: ring.slots(),
            ring: ring.state(),
            // What a polled process wants to be notified of nobody knows.
            arm: if polled.contains(*context) { Arm::Any } else { *arm },
            solicited: *solicited,
            notified: *notified,
            notification: *notification,
            deferred: *deferred,
            failed: *failed,
        }
    }

    fn restore(self) -> Result<Cq, RestoreError> {
        let Self { context, entries, ring, arm, solicited, notified, notification, deferred, failed } = self;
        let bad = || invalid("completion queue");
        let stride = size_of::<Cqe>() as u32;
        let needed = 1 + (u64::from(entries) * u64::from(stride)).div_ceil(PAGE_SIZE);
        if !entries.is_power_of_two() || ring.pages.len() as u64 != needed {
            return Err(bad());
        }
        let pages = RingPages::from_numbers(ring.pages).ok_or_else(bad)?;
        let mut queue = ProducerRing::new(pages, Indices::new(entries).ok_or_else(bad)?, stride);
        if !queue.restore(ring.tail, ring.produced) {
            return Err(bad());
        }
        Ok(Cq { context, ring: queue, users: 0, arm, solicited, notified, notification, deferred, failed })
    }
}

impl SrqState {
    fn of(srq: &Srq) -> Self {
        let Srq { context, pd, ring, attr, users: _ } = srq;
        Self {
            context: *context,
            pd: *pd,
            attr: *attr,
            pages: ring.pages().numbers().to_vec(),
            ring: ring.state(),
        }
    }

    fn restore(self, core: &Core) -> Result<Srq, RestoreError> {
        let Self { context, pd, attr, pages, ring } = self;
        let bad = || invalid("shared receive queue");
        let fits = (1..=core.caps.max_srq_wr).contains(&attr.max_wr)
            && (1..=core.caps.max_srq_sge).contains(&attr.max_sge)
            && attr.max_wr.is_power_of_two();
        if !fits {
            return Err(bad());
        }
        let size = WorkQueueSize::new::<RecvWqeHeader>(attr.max_wr, attr.max_sge);
        let pages = Arc::new(RingPages::from_numbers(pages).ok_or_else(bad)?);
        let placement = Placement { state: RX_OFFSET, base: PAGE_SIZE, stride: size.stride };
        let ring = work_ring(pages, size, placement, &ring).ok_or_else(bad)?;
        Ok(Srq { context, pd, ring, attr, users: 0 })
    }
}

impl QpState {
    fn of(qp: &Qp) -> Self {
        let Qp { qpn, context, pd, send_cq, recv_cq, srq, qp_type, signal_all, cap, send, recv, failure: _ } =
            qp;
        Self {
            qpn: *qpn,
            context: *context,
            pd: *pd,
            send_cq: *send_cq,
            recv_cq: *recv_cq,
            srq: *srq,
            qp_type: *qp_type,
            signal_all: *signal_all,
            cap: *cap,
            pages: send.pages().numbers().to_vec(),
            send: send.state(),
            recv: recv.as_ref().map(WorkRing::state),
        }
    }

    fn restore(self, core: &Core) -> Result<Qp, RestoreError> {
        let bad = || invalid("queue pair");
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge } = self.cap;
        let (wr, sge) = (1..=core.caps.max_qp_wr, 1..=core.caps.max_sge);
        let send_fits =
            wr.contains(&max_send_wr) && sge.contains(&max_send_sge) && max_send_wr.is_power_of_two();
        let recv_fits = match self.recv {
            Some(_) => {
                wr.contains(&max_recv_wr) && sge.contains(&max_recv_sge) && max_recv_wr.is_power_of_two()
            }
            None => max_recv_wr == 0 && max_recv_sge == 0,
        };
        if !send_fits || !recv_fits || self.recv.is_some() == self.srq.is_some() {
            return Err(bad());
        }
        let pages = Arc::new(RingPages::from_numbers(self.pages).ok_or_else(bad)?);
        let size = WorkQueueSize::new::<SendWqeHeader>(max_send_wr, max_send_sge);
        let placement = Placement { state: TX_OFFSET, base: PAGE_SIZE, stride: size.stride };
        let send = work_ring(pages.clone(), size, placement, &self.send).ok_or_else(bad)?;
        let recv = match self.recv {
            Some(state) => {
                let size = WorkQueueSize::new::<RecvWqeHeader>(max_recv_wr, max_recv_sge);
                let placement = Placement { state: RX_OFFSET, base: state.base, stride: size.stride };
                Some(work_ring(pages, size, placement, &state).ok_or_else(bad)?)
            }
            None => None,
        };
        Ok(Qp {
            qpn: self.qpn,
            context: self.context,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            qp_type: self.qp_type,
            signal_all: self.signal_all,
            cap: self.cap,
            send,
            recv,
            failure: None,
        })
    }
}

/// A work ring, if all of its slots lie in its pages.
fn work_ring(
    pages: Arc<RingPages>,
    size: WorkQueueSize,
    placement: Placement,
    state: &WorkRingState,
) -> Option<WorkRing> {
    let end = placement.base.checked_add(u64::from(size.pages()) * PAGE_SIZE)?;
    if placement.base == 0
        || !placement.base.is_multiple_of(PAGE_SIZE)
        || end > pages.len() as u64 * PAGE_SIZE
    {
        return None;
    }
    let mut ring = WorkRing::new(pages, size.indices().ok()?, placement);
    ring.restore(state).then_some(ring)
}

impl Core {
    /// Fills the tables, which are empty, and registers doorbells.
    pub(super) fn restore_objects(&mut self, state: ObjectsState) -> Result<(), RestoreError> {
        let version = self.phase.active().map_or(version::QP_HANDLE, |region| region.driver_version);
        self.objects = Objects::new(&self.caps, version);
        let ObjectsState { contexts, pds, mrs, cqs, srqs, qps, gsi } = state;
        for (handle, page) in contexts.into(&mut self.objects.contexts)? {
            let fits = (1..self.caps.max_uar).contains(&page);
            let free = !self.objects.contexts.iter().any(|(_, context)| context.page == page);
            put_back(
                fits && free,
                &mut self.objects.contexts,
                handle,
                Context { page, heat: Heat::default() },
            )?;
        }
        for (handle, context) in pds.into(&mut self.objects.pds)? {
            let known = self.objects.page_of(context).is_some();
            put_back(known, &mut self.objects.pds, handle, Pd { context, users: 0 })?;
        }
        for (handle, (context, pd, cost)) in mrs.into(&mut self.objects.mrs)? {
            let cost = usize::try_from(cost).map_err(|_| invalid("cost of a page list"))?;
            self.charge_list(cost)?;
            let known = self.objects.pds.get(pd).is_some_and(|pd| pd.context == context);
            put_back(known, &mut self.objects.mrs, handle, Mr { context, pd, cost })?;
            self.use_pd(pd);
        }
        self.restore_cqs(cqs)?;
        self.restore_srqs(srqs)?;
        self.restore_qps(qps, gsi, version)
    }

    fn charge_list(&mut self, cost: usize) -> Result<(), RestoreError> {
        self.charge(cost).map_err(|_| invalid("page lists take more than they may"))
    }

    fn restore_cqs(&mut self, cqs: TableState<CqState>) -> Result<(), RestoreError> {
        for (handle, state) in cqs.into(&mut self.objects.cqs)? {
            let cq = state.restore()?;
            self.charge_list(cq.ring.cost())?;
            let context = cq.context;
            let known = self.objects.page_of(context).is_some();
            put_back(known, &mut self.objects.cqs, handle, cq)?;
            self.attach(Source::Poll(handle), context);
        }
        Ok(())
    }

    fn restore_srqs(&mut self, srqs: TableState<SrqState>) -> Result<(), RestoreError> {
        for (handle, state) in srqs.into(&mut self.objects.srqs)? {
            let srq = state.restore(self)?;
            self.charge_list(srq.ring.cost())?;
            let (context, pd) = (srq.context, srq.pd);
            let known = self.objects.pds.get(pd).is_some_and(|pd| pd.context == context);
            put_back(known, &mut self.objects.srqs, handle, srq)?;
            self.use_pd(pd);
            self.attach(Source::Srq(handle), context);
        }
        Ok(())
    }

    fn restore_qps(
        &mut self,
        qps: TableState<QpState>,
        gsi: Option<QpState>,
        version: u32,
    ) -> Result<(), RestoreError> {
        let shape = qps.shape;
        let ordinary = qps.into(&mut self.objects.qps)?;
        let gsi = gsi.map(|state| (Objects::gsi_handle(version), state));
        for (handle, state) in ordinary.into_iter().chain(gsi) {
            let qp = state.restore(self)?;
            self.charge_list(qp.send.cost())?;
            self.check_qp(handle, &qp)?;
            self.adopt_qp(handle, qp);
        }
        // Where a free handle is looked for has moved along.
        if self.objects.qps.reserve(shape) { Ok(()) } else { Err(invalid("table of queue pairs")) }
    }

    /// Checks that a queue pair goes where it belongs, and with what.
    fn check_qp(&self, handle: u32, qp: &Qp) -> Result<(), RestoreError> {
        let context = qp.context;
        let free = self.objects.qp(handle).is_none()
            && (qp.qp_type == QpType::Gsi || self.objects.qps.is_vacant(handle))
            && (qp.qp_type != QpType::Gsi || context == KERNEL);
        let pd = self.objects.pds.get(qp.pd).is_some_and(|pd| pd.context == context);
        let cqs = [qp.send_cq, qp.recv_cq]
            .iter()
            .all(|cq| self.objects.cqs.get(*cq).is_some_and(|cq| cq.context == context));
        let srq =
            qp.srq.is_none_or(|srq| self.objects.srqs.get(srq).is_some_and(|srq| srq.context == context));
        if free && pd && cqs && srq { Ok(()) } else { Err(invalid("a queue pair is of no such objects")) }
    }
}

fn put_back<O>(valid: bool, table: &mut Table<O>, handle: u32, object: O) -> Result<(), RestoreError> {
    if valid && table.put_back(handle, object) {
        Ok(())
    } else {
        Err(invalid("an object is of no such objects"))
    }
}
