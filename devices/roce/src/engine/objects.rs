//! Creating, changing and destroying objects.

use std::collections::VecDeque;

use device_model::time::Instant;
use verbs::{
    AsyncEvent, CqId, CqInit, Error, Gid, GidEntry, Keys, MrId, MrInit, MrKind, Owner, PdId, QpAttr,
    QpAttrMask, QpId, QpInit, QpState, QpType, Qpn, RecvWr, SendWr, SrqAttr, SrqId, SrqInit,
};

use super::qp::Qp;
use super::shared::{Cq, Pd, Shared};
use super::srq::Srq;
use super::{Engine, QP_ID_BITS};

/// Changes how often each object that a queue pair names is in use.
pub(super) fn count_users(cx: &mut Shared, init: &QpInit, change: impl Fn(&mut u32)) {
    let Shared { pds, cqs, srqs, .. } = cx;
    pds.get_mut(init.pd.0).into_iter().for_each(|pd| change(&mut pd.users));
    cqs.get_mut(init.send_cq.0).into_iter().for_each(|cq| change(&mut cq.users));
    cqs.get_mut(init.recv_cq.0).into_iter().for_each(|cq| change(&mut cq.users));
    if let Some(srq) = init.srq {
        srqs.get_mut(srq.0).into_iter().for_each(|srq| change(&mut srq.users));
    }
}

/// 0 and 1 are the management interfaces, all ones is for multicast.
pub(super) const fn is_reserved(qpn: Qpn) -> bool {
    qpn.0 < 2 || qpn.0 == Qpn::MASK
}

/// The methods mirror those of [`verbs::Provider`], which documents them.
#[allow(missing_docs, reason = "documented at the trait")]
impl Engine {
    pub fn create_pd(&mut self, pd: PdId, _: Owner) -> Result<(), Error> {
        self.shared.pds.insert(pd.0, Pd { users: 0 })
    }

    pub fn destroy_pd(&mut self, pd: PdId) -> Result<(), Error> {
        if self.shared.pds.require(pd.0)?.users > 0 {
            return Err(Error::Busy);
        }
        self.shared.pds.remove(pd.0);
        Ok(())
    }

    pub fn register_mr(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error> {
        let limits = &self.shared.config.limits;
        let listed = if let MrKind::FastReg { max_pages } = init.kind { max_pages } else { 0 };
        if init.length > limits.max_mr_size || listed > limits.max_fast_reg_pages {
            return Err(Error::Invalid("region is longer than the device's limit"));
        }
        let pd = init.pd;
        self.shared.pds.require(pd.0)?;
        let keys = self.shared.mrs.register(mr, init)?;
        self.shared.pds.require(pd.0)?.users += 1;
        Ok(keys)
    }

    pub fn deregister_mr(&mut self, mr: MrId) -> Result<(), Error> {
        let pd = self.shared.mrs.deregister(mr)?;
        self.shared.revoked = true;
        if let Some(pd) = self.shared.pds.get_mut(pd.0) {
            pd.users -= 1;
        }
        Ok(())
    }

    pub fn create_cq(&mut self, cq: CqId, init: CqInit) -> Result<(), Error> {
        if init.depth == 0 || init.depth > self.shared.config.limits.max_cqe {
            return Err(Error::Invalid("completion queue depth"));
        }
        self.shared.cqs.insert(cq.0, Cq { users: 0, failed: false })
    }

    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        if self.shared.cqs.require(cq.0)?.users > 0 {
            return Err(Error::Busy);
        }
        self.shared.cqs.remove(cq.0);
        self.shared.forget(|event| event.cq() == Some(cq));
        Ok(())
    }

    pub fn fail_cq(&mut self, cq: CqId) {
        let Some(failed) = self.shared.cqs.get_mut(cq.0) else { return };
        failed.failed = true;
        self.shared.forget(|event| event.cq() == Some(cq));
        for qp in self.qps.iter_mut().filter(|qp| qp.init.send_cq == cq || qp.init.recv_cq == cq) {
            if qp.state() != QpState::Reset {
                qp.fail_with(&mut self.shared, AsyncEvent::QpFatal(qp.id));
            }
        }
    }

    pub fn create_srq(&mut self, srq: SrqId, init: SrqInit) -> Result<(), Error> {
        let limits = &self.shared.config.limits;
        if init.attr.max_wr == 0
            || init.attr.max_wr > limits.max_srq_wr
            || init.attr.max_sge > limits.max_srq_sge
        {
            return Err(Error::Invalid("size of the shared receive queue"));
        }
        self.shared.pds.require(init.pd.0)?;
        let queue = Srq { pd: init.pd, attr: init.attr, waiting: VecDeque::new(), users: 0 };
        self.shared.srqs.insert(srq.0, queue)?;
        self.shared.pds.require(init.pd.0)?.users += 1;
        Ok(())
    }

    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), Error> {
        let srq = self.shared.srqs.require(srq.0)?;
        if limit > srq.attr.max_wr {
            return Err(Error::Invalid("limit is above the size of the shared receive queue"));
        }
        srq.attr.limit = limit;
        Ok(())
    }

    pub fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        self.shared.srqs.get(srq.0).map(|srq| srq.attr).ok_or(Error::NotFound)
    }

    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Error> {
        if self.shared.srqs.require(srq.0)?.users > 0 {
            return Err(Error::Busy);
        }
        if let Some(queue) = self.shared.srqs.remove(srq.0)
            && let Some(pd) = self.shared.pds.get_mut(queue.pd.0)
        {
            pd.users -= 1;
        }
        self.shared.forget(|event| event.srq() == Some(srq));
        Ok(())
    }

    pub fn create_qp(&mut self, id: QpId, init: QpInit) -> Result<Qpn, Error> {
        self.check_qp(&init)?;
        self.qps.check_free(id.0)?;
        let wanted = if init.qp_type == QpType::Gsi { Some(Qpn::GSI) } else { init.qpn };
        let qpn = match wanted {
            Some(qpn) => self.claim_qpn(id, qpn, init.qp_type)?,
            None => self.pick_qpn(id),
        };
        self.qps.insert(id.0, Box::new(Qp::new(id, qpn, init)))?;
        count_users(&mut self.shared, &init, |users| *users += 1);
        Ok(qpn)
    }

    pub(super) fn check_qp(&mut self, init: &QpInit) -> Result<(), Error> {
        let limits = self.shared.config.limits;
        let cap = &init.cap;
        if cap.max_send_wr.max(cap.max_recv_wr) > limits.max_qp_wr
            || cap.max_send_sge.max(cap.max_recv_sge) > limits.max_sge
        {
            return Err(Error::Invalid("size of a work queue"));
        }
        self.shared.pds.require(init.pd.0)?;
        self.shared.cqs.require(init.send_cq.0)?;
        self.shared.cqs.require(init.recv_cq.0)?;
        match init.srq {
            Some(srq) => self.shared.srqs.require(srq.0).map(drop),
            None => Ok(()),
        }
    }

    /// Takes a number that was asked for.
    fn claim_qpn(&mut self, id: QpId, qpn: Qpn, qp_type: QpType) -> Result<Qpn, Error> {
        if qpn.0 > Qpn::MASK || is_reserved(qpn) && qp_type != QpType::Gsi {
            return Err(Error::Invalid("queue pair number is reserved"));
        }
        if self.is_taken(qpn) {
            return Err(Error::Exists);
        }
        self.named.insert(qpn, id);
        Ok(qpn)
    }

    pub(super) fn is_taken(&self, qpn: Qpn) -> bool {
        let id = Self::qp_id(self.secret, &self.named, qpn);
        self.qps.get(id.0).is_some_and(|qp| qp.qpn == qpn)
    }

    /// A number that says nothing about the next one, and leads back to the object without a table.
    fn pick_qpn(&mut self, id: QpId) -> Qpn {
        loop {
            self.created = self.created.wrapping_add(1);
            let qpn = Qpn(self.secret.hide(self.created << QP_ID_BITS | id.0));
            if !is_reserved(qpn) && !self.named.contains_key(&qpn) {
                return qpn;
            }
        }
    }

    pub fn modify_qp(
        &mut self,
        now: Instant,
        qp: QpId,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), Error> {
        self.shared.now = now;
        self.qps.require(qp.0)?.modify(&mut self.shared, attr, mask)
    }

    pub fn query_qp(&self, qp: QpId) -> Result<QpAttr, Error> {
        self.qps.get(qp.0).map(|qp| qp.query()).ok_or(Error::NotFound)
    }

    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), Error> {
        let qp = self.qps.remove(id.0).ok_or(Error::NotFound)?;
        self.named.remove(&qp.qpn);
        count_users(&mut self.shared, &qp.init, |users| *users -= 1);
        self.shared.revoked = true;
        self.shared.forget(|event| event.qp() == Some(id));
        Ok(())
    }

    pub fn set_gid(&mut self, entry: GidEntry) -> Result<(), Error> {
        if entry.gid.is_zero() {
            return Err(Error::Invalid("GID is empty"));
        }
        self.shared.gids.set(entry.index, entry.gid)
    }

    pub fn clear_gid(&mut self, index: u16) -> Result<(), Error> {
        self.shared.gids.set(index, Gid::default())
    }

    pub fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), Error> {
        self.qps.require(qp.0)?.post_send(&mut self.shared, wr)
    }

    pub fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), Error> {
        self.qps.require(qp.0)?.post_recv(&mut self.shared, wr)
    }

    pub fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), Error> {
        let srq = self.shared.srqs.require(srq.0)?;
        if srq.waiting.len() >= srq.attr.max_wr as usize {
            return Err(Error::Exhausted);
        }
        if wr.sges.len() > srq.attr.max_sge as usize {
            return Err(Error::Invalid("scatter/gather list is longer than the queue allows"));
        }
        srq.waiting.push_back(wr);
        Ok(())
    }

    pub fn reset(&mut self) {
        let Self { shared, qps, named, secret: _, created: _, burst } = self;
        qps.clear();
        named.clear();
        *burst = 0;
        // Numbers, secrets, counters, channels and the clock stay: what was valid before must not become so again.
        let Shared {
            config: _,
            pds,
            cqs,
            srqs,
            mrs,
            gids,
            neighbours: _,
            effects,
            events,
            ready,
            timers,
            counters: _,
            revoked,
            ended: _,
            now: _,
        } = shared;
        pds.clear();
        cqs.clear();
        srqs.clear();
        mrs.clear();
        gids.clear();
        effects.clear();
        events.clear();
        ready.clear();
        timers.clear();
        *revoked = true;
    }
}

impl Qp {
    fn post_recv(&mut self, cx: &mut Shared, wr: RecvWr) -> Result<(), Error> {
        if self.init.srq.is_some() {
            return Err(Error::Invalid("the queue pair takes receives from a shared queue"));
        }
        if self.state() == QpState::Reset {
            return Err(Error::Transition);
        }
        if self.rq.len() >= self.init.cap.max_recv_wr as usize {
            return Err(Error::Exhausted);
        }
        if wr.sges.len() > self.init.cap.max_recv_sge as usize {
            return Err(Error::Invalid("scatter/gather list is longer than the queue allows"));
        }
        self.rq.push_back(wr);
        if self.state() == QpState::Err {
            self.flush_recv(cx);
        }
        Ok(())
    }
}
