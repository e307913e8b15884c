//! The provider: routes by owner, keeps twins, translates.

mod addresses;
mod completion;
mod events;
mod objects;
mod queue;
#[cfg(test)]
mod tests;
mod watch;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;

use device_model::time::Instant;
use verbs::{
    CqId, CqInit, Error, GidEntry, Keys, Limits, MrId, MrInit, Owner, PdId, Provider, ProviderEvent, QpAttr,
    QpAttrMask, QpId, QpInit, QpState, Qpn, RecvWr, SendWr, SrqAttr, SrqId, SrqInit,
};

use self::addresses::AddressCache;
use self::events::EventQueue;
use self::objects::Twins;
use self::queue::Queue;
use self::watch::Watch;
use crate::device::{Device, HostCompletion, HostEvent};
use crate::gids::{Addresses, GidPolicy, Gids};

/// What the mirror itself counts.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    sends: u64,
    receives: u64,
    completions: u64,
    stale: u64,
    wakeups: u64,
}

/// A device whose processes' objects are mirrored onto a host device.
///
/// # Unsignalled requests
///
/// They stay unsignalled on the host. A completion retires its own request and all before it in the queue, so ring slots are
/// free when the next signalled request completes, as on hardware. The alternative, to have the host signal all of
/// them, would fill its completion queue with entries the program never made room for.
pub struct MirrorProvider<D: Device> {
    /// Serves the guest's kernel.
    engine: Box<dyn Provider>,
    /// `None` once it is gone.
    device: Option<D>,
    /// What the device could do when it was there.
    device_limits: Limits,
    gids: Gids,
    twins: Twins<D>,
    addresses: AddressCache<D::Ah>,
    /// Numbers of the engine's queue pairs.
    engine_qpns: BTreeMap<QpId, Qpn>,
    /// Completion queues to poll.
    ready: VecDeque<CqId>,
    events: EventQueue,
    watch: Watch,
    counters: Counters,
    /// The time of the last call that told it.
    now: Instant,
    draws: (RandomState, u64),
    // Kept for their memory.
    batch: Vec<HostCompletion>,
    host_events: Vec<HostEvent>,
}

impl<D: Device> MirrorProvider<D> {
    /// Mirrors what processes own onto `device`; the rest is served by `engine`.
    pub fn new(
        engine: Box<dyn Provider>,
        device: D,
        policy: GidPolicy,
        addresses: Box<dyn Addresses>,
    ) -> Self {
        Self {
            engine,
            device_limits: device.limits(),
            device: Some(device),
            gids: Gids::new(policy, addresses),
            twins: Twins::default(),
            addresses: AddressCache::new(),
            engine_qpns: BTreeMap::new(),
            ready: VecDeque::new(),
            events: EventQueue::default(),
            watch: Watch::default(),
            counters: Counters::default(),
            now: Instant::ZERO,
            draws: (RandomState::new(), 0),
            batch: Vec::new(),
            host_events: Vec::new(),
        }
    }

    /// A number that is hard to guess.
    fn random(&mut self) -> u32 {
        self.draws.1 += 1;
        // The standard library's hash keys are random bytes of the operating system.
        self.draws.0.hash_one(self.draws.1) as u32
    }

    fn modify_host_qp(&mut self, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let twin = self.twins.qps.get_mut(&qp).ok_or(Error::NotFound)?;
        let mut row = 0;
        if mask.contains(QpAttrMask::AV) {
            let gid = self.gids.on_host(attr.av.sgid_index.into()).ok_or(Error::Invalid(
                "source address, the host device does not have it: name it in ip= of the port",
            ))?;
            row = self.device.as_ref().ok_or(GONE)?.gid_index(gid).ok_or(NO_ADDRESS)?;
        }
        if let (Some(device), Some(host)) = (&mut self.device, &twin.host) {
            device.modify_qp(host, attr, mask, row).map_err(host_error)?;
        }
        if mask.contains(QpAttrMask::AV) {
            twin.av = attr.av;
        }
        if mask.contains(QpAttrMask::STATE) {
            twin.state = attr.state;
            twin.suspect = attr.state == QpState::Err;
            twin.doubted = false;
            self.watch.start(self.now);
            if attr.state == QpState::Reset {
                self.restart(qp);
            }
        }
        Ok(())
    }

    /// Forgets the work requests of a queue pair.
    fn restart(&mut self, qp: QpId) {
        let Twins { qps, numbers, .. } = &mut self.twins;
        if let Some(twin) = qps.get_mut(&qp) {
            numbers.release(twin.send.number());
            twin.send.restart(numbers.assign(Queue::Send(qp)));
            numbers.release(twin.recv.number());
            twin.recv.restart(numbers.assign(Queue::Recv(qp)));
        }
        self.events.forget(|event| event.qp() == Some(qp));
    }

    fn query_host_qp(&self, qp: QpId) -> Result<QpAttr, Error> {
        let twin = self.twins.qps.get(&qp).ok_or(Error::NotFound)?;
        let (Some(device), Some(host)) = (&self.device, &twin.host) else {
            return Ok(QpAttr { state: QpState::Err, av: twin.av, ..QpAttr::default() });
        };
        let attr = device.query_qp(host).map_err(host_error)?;
        Ok(QpAttr { av: twin.av, ..attr })
    }
}

/// The device is gone: `ENODEV`.
const GONE: Error = Error::Host(19);
/// It does not have an address: `EADDRNOTAVAIL`.
const NO_ADDRESS: Error = Error::Host(99);

/// What an errno of libibverbs means to the device model.
fn host_error(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::WouldBlock => {
            device_model::guest_warn!(%error, "The host device, or the locked or mapped memory allowed, is exhausted");
            Error::Exhausted
        }
        io::ErrorKind::InvalidInput => Error::Invalid("argument, says the host device"),
        io::ErrorKind::Unsupported => Error::Unsupported("by the host device"),
        io::ErrorKind::ResourceBusy => Error::Busy,
        _ => Error::Host(error.raw_os_error().unwrap_or(0)),
    }
}

impl<D: Device> Provider for MirrorProvider<D> {
    fn limits(&self) -> Limits {
        let (a, b) = (self.engine.limits(), &self.device_limits);
        Limits {
            max_qp: a.max_qp.min(b.max_qp),
            max_qp_wr: a.max_qp_wr.min(b.max_qp_wr),
            max_sge: a.max_sge.min(b.max_sge),
            max_cq: a.max_cq.min(b.max_cq),
            max_cqe: a.max_cqe.min(b.max_cqe),
            max_mr: a.max_mr.min(b.max_mr),
            max_mr_size: a.max_mr_size.min(b.max_mr_size),
            max_pd: a.max_pd.min(b.max_pd),
            max_srq: a.max_srq.min(b.max_srq),
            max_srq_wr: a.max_srq_wr.min(b.max_srq_wr),
            max_srq_sge: a.max_srq_sge.min(b.max_srq_sge),
            max_dest_rd_atomic: a.max_dest_rd_atomic.min(b.max_dest_rd_atomic),
            max_rd_atomic: a.max_rd_atomic.min(b.max_rd_atomic),
            gid_table_len: a.gid_table_len.min(b.gid_table_len),
            max_fast_reg_pages: a.max_fast_reg_pages,
            max_msg_size: a.max_msg_size.min(b.max_msg_size),
            active_mtu: a.active_mtu.min(b.active_mtu),
        }
    }

    fn create_pd(&mut self, pd: PdId, owner: Owner) -> Result<(), Error> {
        match owner {
            Owner::Kernel => self.engine.create_pd(pd, owner),
            Owner::User => self.create_host_pd(pd),
        }
    }

    fn destroy_pd(&mut self, pd: PdId) -> Result<(), Error> {
        if self.twins.pds.contains_key(&pd) { self.destroy_host_pd(pd) } else { self.engine.destroy_pd(pd) }
    }

    fn register_mr(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error> {
        if self.twins.pds.contains_key(&init.pd) {
            self.register_host_mr(mr, &init)
        } else {
            self.engine.register_mr(mr, init)
        }
    }

    fn deregister_mr(&mut self, mr: MrId) -> Result<(), Error> {
        match self.twins.mrs.remove(&mr) {
            Some(_) => Ok(()),
            None => self.engine.deregister_mr(mr),
        }
    }

    fn create_cq(&mut self, cq: CqId, init: CqInit) -> Result<(), Error> {
        match init.owner {
            Owner::Kernel => self.engine.create_cq(cq, init),
            Owner::User => self.create_host_cq(cq, init.depth),
        }
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        if self.twins.cqs.contains_key(&cq) { self.destroy_host_cq(cq) } else { self.engine.destroy_cq(cq) }
    }

    fn fail_cq(&mut self, cq: CqId) {
        let Some(twin) = self.twins.cqs.get_mut(&cq) else { return self.engine.fail_cq(cq) };
        twin.failed = true;
        for qp in self.twins.qps_of_cq(cq) {
            self.stop(qp);
        }
    }

    fn create_srq(&mut self, srq: SrqId, init: SrqInit) -> Result<(), Error> {
        if self.twins.pds.contains_key(&init.pd) {
            self.create_host_srq(srq, init.pd, init.attr)
        } else {
            self.engine.create_srq(srq, init)
        }
    }

    fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), Error> {
        match self.twins.srqs.get(&srq) {
            Some(twin) => {
                let (Some(device), Some(host)) = (&mut self.device, &twin.host) else { return Err(GONE) };
                device.set_srq_limit(host, limit).map_err(host_error)
            }
            None => self.engine.set_srq_limit(srq, limit),
        }
    }

    fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        match self.twins.srqs.get(&srq) {
            Some(twin) => {
                let (Some(device), Some(host)) = (&self.device, &twin.host) else { return Err(GONE) };
                let limit = device.srq_limit(host).map_err(host_error)?;
                Ok(SrqAttr { limit, ..twin.attr })
            }
            None => self.engine.query_srq(srq),
        }
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Error> {
        if self.twins.srqs.contains_key(&srq) {
            self.destroy_host_srq(srq)
        } else {
            self.engine.destroy_srq(srq)
        }
    }

    fn create_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        match init.owner {
            Owner::Kernel => self.create_engine_qp(qp, init),
            Owner::User => self.create_host_qp(qp, init),
        }
    }

    fn modify_qp(&mut self, now: Instant, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.now = now;
        if self.twins.qps.contains_key(&qp) {
            self.modify_host_qp(qp, attr, mask)
        } else {
            self.engine.modify_qp(now, qp, attr, mask)
        }
    }

    fn query_qp(&self, qp: QpId) -> Result<QpAttr, Error> {
        if self.twins.qps.contains_key(&qp) { self.query_host_qp(qp) } else { self.engine.query_qp(qp) }
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), Error> {
        if self.twins.qps.contains_key(&qp) {
            self.destroy_host_qp(qp);
            return Ok(());
        }
        self.engine.destroy_qp(qp)?;
        self.engine_qpns.remove(&qp);
        Ok(())
    }

    fn set_gid(&mut self, entry: GidEntry) -> Result<(), Error> {
        self.engine.set_gid(entry)?;
        if self.device.is_some() {
            self.gids.set(entry);
        }
        self.addresses.clear();
        Ok(())
    }

    fn clear_gid(&mut self, index: u16) -> Result<(), Error> {
        self.engine.clear_gid(index)?;
        self.gids.clear(index);
        self.addresses.clear();
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), Error> {
        if self.twins.qps.contains_key(&qp) {
            self.post_host_send(qp, &wr)
        } else {
            self.engine.post_send(qp, wr)
        }
    }

    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), Error> {
        if self.twins.qps.contains_key(&qp) {
            self.post_host_recv(qp, &wr)
        } else {
            self.engine.post_recv(qp, wr)
        }
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), Error> {
        if self.twins.srqs.contains_key(&srq) {
            self.post_host_srq_recv(srq, &wr)
        } else {
            self.engine.post_srq_recv(srq, wr)
        }
    }

    fn set_port(&mut self, up: bool) {
        // The port of the host device is the host's.
        self.engine.set_port(up);
    }

    fn claims(&self, frame: &[u8]) -> bool {
        self.engine.claims(frame)
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        self.engine.receive(now, frame);
    }

    fn advance(&mut self, now: Instant) -> bool {
        self.now = now;
        self.gids.advance(now);
        self.watch(now);
        // Both, whatever the first says.
        self.engine.advance(now) | self.listen()
    }

    fn rest(&mut self) -> bool {
        self.engine.rest()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let own = [self.gids.next_deadline(), self.watch.due()];
        self.engine.next_deadline().into_iter().chain(own.into_iter().flatten()).min()
    }

    fn poll_event(&mut self) -> Option<ProviderEvent> {
        // The engine is the guest's connection manager: what it says must not wait behind a flood of completions.
        self.engine.poll_event().or_else(|| self.events.pop())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters { sends, receives, completions, stale, wakeups } = self.counters;
        let mut counters = self.engine.counters();
        counters.extend([
            ("host_sends", sends),
            ("host_receives", receives),
            ("host_completions", completions),
            ("host_stale_completions", stale),
            ("host_wakeups", wakeups),
        ]);
        counters
    }

    fn reset(&mut self) {
        self.engine.reset();
        self.addresses.clear();
        self.twins = Twins { numbers: std::mem::take(&mut self.twins.numbers), ..Twins::default() };
        self.twins.numbers.release_all();
        self.gids.reset();
        self.engine_qpns.clear();
        self.ready.clear();
        self.events.clear();
    }
}
