//! Twins: what of the guest's processes exists on the host, and how it is made and ended.

use std::collections::HashMap;
use std::sync::Arc;

use verbs::{
    AddressVector, CqId, Error, Keys, MrId, MrInit, MrKind, PdId, QpId, QpInit, QpState, QpType, Qpn, SendOp,
    SrqAttr, SrqId, WcStatus,
};

use super::queue::{Numbers, Ordered, Queue, Shared};
use super::{GONE, MirrorProvider, host_error};
use crate::device::{Device, QpParts};

/// Queue pairs of the engine get numbers from here on, where host devices hardly ever are.
const ENGINE_QPNS: u32 = 0xf0_0000;
/// How often another number is tried before giving up.
const QPN_TRIES: u32 = 64;

/// A send request the host has.
pub(super) struct Send<A> {
    pub(super) wr_id: u64,
    pub(super) opcode: verbs::WcOpcode,
    pub(super) signaled: bool,
    /// How it fails, whatever the host makes of what was posted in its place.
    pub(super) fails: Option<WcStatus>,
    /// Where a datagram goes: the host may look at it as long as the request is unfinished.
    pub(super) _ah: Option<Arc<A>>,
}

/// A receive request the host has.
pub(super) struct Recv {
    pub(super) wr_id: u64,
    pub(super) fails: Option<WcStatus>,
}

pub(super) struct Mr<D: Device> {
    pub(super) pd: PdId,
    /// Like every `host` here `None` once the device is gone.
    host: Option<D::Mr>,
}

pub(super) struct Cq<D: Device> {
    pub(super) host: Option<D::Cq>,
    /// Whether it waits to be polled.
    pub(super) queued: bool,
    /// Set once the guest lost completions.
    pub(super) failed: bool,
}

pub(super) struct Srq<D: Device> {
    pub(super) host: Option<D::Srq>,
    pub(super) pd: PdId,
    pub(super) attr: SrqAttr,
    pub(super) queue: Shared<Recv>,
}

pub(super) struct Qp<D: Device> {
    pub(super) host: Option<D::Qp>,
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    /// The state it was last moved to; the host may have moved it on to an error state.
    pub(super) state: QpState,
    /// Whether the host may have moved it to the error state, or was told to.
    pub(super) suspect: bool,
    /// Whether it was found in the error state when nothing had said so.
    pub(super) doubted: bool,
    /// The path as the guest named it.
    pub(super) av: AddressVector,
    pub(super) send: Ordered<Send<D::Ah>>,
    pub(super) recv: Ordered<Recv>,
}

/// All twins.
pub(super) struct Twins<D: Device> {
    pub(super) numbers: Numbers,
    pub(super) qpns: HashMap<Qpn, QpId>,
    pub(super) qps: HashMap<QpId, Qp<D>>,
    pub(super) srqs: HashMap<SrqId, Srq<D>>,
    pub(super) cqs: HashMap<CqId, Cq<D>>,
    pub(super) mrs: HashMap<MrId, Mr<D>>,
    pub(super) pds: HashMap<PdId, Option<D::Pd>>,
}

impl<D: Device> Default for Twins<D> {
    fn default() -> Self {
        Self {
            numbers: Numbers::default(),
            qpns: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            cqs: HashMap::new(),
            mrs: HashMap::new(),
            pds: HashMap::new(),
        }
    }
}

impl<D: Device> Twins<D> {
    /// A protection domain of the host.
    pub(super) fn pd(&self, pd: PdId) -> Result<&D::Pd, Error> {
        self.pds.get(&pd).ok_or(Error::NotFound)?.as_ref().ok_or(GONE)
    }

    fn cq(&self, cq: CqId) -> Result<&D::Cq, Error> {
        self.cqs.get(&cq).ok_or(Error::NotFound)?.host.as_ref().ok_or(GONE)
    }

    fn srq(&self, srq: SrqId) -> Result<&D::Srq, Error> {
        self.srqs.get(&srq).ok_or(Error::NotFound)?.host.as_ref().ok_or(GONE)
    }

    /// Ends everything on the host. What the guest has stays, as names of nothing.
    pub(super) fn let_go(&mut self) {
        // What is made of others ends before them.
        self.qps.values_mut().for_each(|qp| qp.host = None);
        self.srqs.values_mut().for_each(|srq| srq.host = None);
        self.cqs.values_mut().for_each(|cq| cq.host = None);
        self.mrs.values_mut().for_each(|mr| mr.host = None);
        self.pds.values_mut().for_each(|pd| *pd = None);
    }

    fn uses_pd(&self, pd: PdId) -> bool {
        self.mrs.values().any(|mr| mr.pd == pd)
            || self.srqs.values().any(|srq| srq.pd == pd)
            || self.qps.values().any(|qp| qp.init.pd == pd)
    }

    pub(super) fn qps_of_cq(&self, cq: CqId) -> Vec<QpId> {
        let uses =
            |qp: &&QpId| self.qps.get(qp).is_some_and(|qp| qp.init.send_cq == cq || qp.init.recv_cq == cq);
        self.qps.keys().filter(uses).copied().collect()
    }
}

impl<D: Device> MirrorProvider<D> {
    pub(super) fn create_host_pd(&mut self, pd: PdId) -> Result<(), Error> {
        let host = self.device.as_mut().ok_or(GONE)?.create_pd().map_err(host_error)?;
        self.twins.pds.insert(pd, Some(host));
        Ok(())
    }

    pub(super) fn destroy_host_pd(&mut self, pd: PdId) -> Result<(), Error> {
        if self.twins.uses_pd(pd) {
            return Err(Error::Busy);
        }
        self.addresses.forget(pd);
        self.twins.pds.remove(&pd);
        Ok(())
    }

    pub(super) fn register_host_mr(&mut self, mr: MrId, init: &MrInit) -> Result<Keys, Error> {
        let device = self.device.as_mut().ok_or(GONE)?;
        let pd = self.twins.pd(init.pd)?;
        let MrKind::Pages(pages) = &init.kind else {
            return Err(Error::Unsupported(
                "regions of the guest's kernel in a protection domain of a process",
            ));
        };
        let (host, keys) = device.register_mr(pd, init, pages).map_err(host_error)?;
        self.twins.mrs.insert(mr, Mr { pd: init.pd, host: Some(host) });
        Ok(keys)
    }

    pub(super) fn create_host_cq(&mut self, cq: CqId, depth: u32) -> Result<(), Error> {
        let device = self.device.as_mut().ok_or(GONE)?;
        let host = device.create_cq(depth, cq.0).map_err(host_error)?;
        device.arm_cq(&host).map_err(host_error)?;
        self.twins.cqs.insert(cq, Cq { host: Some(host), queued: false, failed: false });
        Ok(())
    }

    pub(super) fn destroy_host_cq(&mut self, cq: CqId) -> Result<(), Error> {
        if !self.twins.qps_of_cq(cq).is_empty() {
            return Err(Error::Busy);
        }
        self.twins.cqs.remove(&cq);
        self.ready.retain(|ready| *ready != cq);
        self.events.forget(|event| event.cq() == Some(cq));
        Ok(())
    }

    pub(super) fn create_host_srq(&mut self, srq: SrqId, pd: PdId, attr: SrqAttr) -> Result<(), Error> {
        let device = self.device.as_mut().ok_or(GONE)?;
        let host = device.create_srq(self.twins.pd(pd)?, attr, srq.0).map_err(host_error)?;
        if attr.limit > 0 {
            device.set_srq_limit(&host, attr.limit).map_err(host_error)?;
        }
        let queue = Shared::new(self.twins.numbers.assign(Queue::Srq(srq)), attr.max_wr);
        self.twins.srqs.insert(srq, Srq { host: Some(host), pd, attr, queue });
        Ok(())
    }

    pub(super) fn destroy_host_srq(&mut self, srq: SrqId) -> Result<(), Error> {
        if self.twins.qps.values().any(|qp| qp.init.srq == Some(srq)) {
            return Err(Error::Busy);
        }
        if let Some(twin) = self.twins.srqs.remove(&srq) {
            self.twins.numbers.release(twin.queue.number());
        }
        self.events.forget(|event| event.srq() == Some(srq));
        Ok(())
    }

    pub(super) fn create_host_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        if init.qpn.is_some() {
            return Err(Error::Unsupported("guest drivers older than version 20 on a host device"));
        }
        let (host, qpn) = self.make_qp(qp, &init)?;
        let send = Ordered::new(self.twins.numbers.assign(Queue::Send(qp)), init.cap.max_send_wr);
        let recv = Ordered::new(self.twins.numbers.assign(Queue::Recv(qp)), init.cap.max_recv_wr);
        let (state, av) = (QpState::Reset, AddressVector::default());
        self.twins.qpns.insert(qpn, qp);
        let twin = Qp { host: Some(host), qpn, init, state, suspect: false, doubted: false, av, send, recv };
        self.twins.qps.insert(qp, twin);
        Ok(qpn)
    }

    /// A queue pair whose number the engine does not use.
    fn make_qp(&mut self, qp: QpId, init: &QpInit) -> Result<(D::Qp, Qpn), Error> {
        let device = self.device.as_mut().ok_or(GONE)?;
        let twins = &self.twins;
        let parts = QpParts {
            qp_type: init.qp_type,
            pd: twins.pd(init.pd)?,
            send_cq: twins.cq(init.send_cq)?,
            recv_cq: twins.cq(init.recv_cq)?,
            srq: init.srq.map(|srq| twins.srq(srq)).transpose()?,
            cap: init.cap,
        };
        // Those with taken numbers are kept until another one is found, or the host would hand them out again.
        let mut parked = Vec::new();
        for _ in 0..QPN_TRIES {
            let (host, qpn) = device.create_qp(&parts, qp.0).map_err(host_error)?;
            if !self.engine_qpns.values().any(|taken| *taken == qpn) {
                return Ok((host, qpn));
            }
            parked.push(host);
        }
        Err(Error::Exhausted)
    }

    pub(super) fn destroy_host_qp(&mut self, qp: QpId) {
        if let Some(twin) = self.twins.qps.remove(&qp) {
            self.twins.qpns.remove(&twin.qpn);
            self.twins.numbers.release(twin.send.number());
            self.twins.numbers.release(twin.recv.number());
        }
        self.events.forget(|event| event.qp() == Some(qp));
    }

    /// Creates a queue pair of the guest's kernel on the engine, with a number that the host does not use.
    pub(super) fn create_engine_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        let qpn = if init.qp_type == QpType::Gsi || init.qpn.is_some() {
            self.engine.create_qp(qp, init)?
        } else {
            self.pick_engine_qpn(qp, init)?
        };
        self.engine_qpns.insert(qp, qpn);
        Ok(qpn)
    }

    fn pick_engine_qpn(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        for _ in 0..QPN_TRIES {
            // The last number of all is that of multicast.
            let qpn = Qpn(ENGINE_QPNS + self.random() % (Qpn::MASK - ENGINE_QPNS));
            if self.twins.qpns.contains_key(&qpn) {
                continue;
            }
            match self.engine.create_qp(qp, QpInit { qpn: Some(qpn), ..init }) {
                Err(Error::Exists) => {}
                result => return result,
            }
        }
        Err(Error::Exhausted)
    }
}

/// Whether a host device can carry an operation out for a process.
pub(super) const fn is_mirrored(op: &SendOp) -> bool {
    !matches!(op, SendOp::SendInv { .. } | SendOp::LocalInv { .. } | SendOp::FastReg(_) | SendOp::Bad(_))
}
