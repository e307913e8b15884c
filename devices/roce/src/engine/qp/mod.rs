//! One queue pair.

mod attributes;
pub(crate) mod save;
pub mod states;
mod transition;

use std::collections::VecDeque;

use device_model::time::Instant;
use verbs::{
    AsyncEvent, Completion, CqId, Mtu, Owner, ProviderEvent, QpAttr, QpId, QpInit, QpState, QpType, Qpn,
    RecvWr, WcOpcode, WcStatus,
};

use super::requester::{Requester, SendQueue};
use super::responder::Responder;
use super::shared::Shared;
use crate::wire::{MAX_CHUNK, Path};

/// Queue key of the general service interface (IBTA 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;

/// A queue pair: its attributes, its queues and both halves of its protocol state.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    /// As set; sequence numbers that move are in the requester and responder.
    pub(crate) attr: QpAttr,
    /// Way to the connected peer.
    pub(crate) path: Path,
    pub(crate) sq: SendQueue,
    /// Own receive queue. The front stays until it is finished.
    pub(crate) rq: VecDeque<RecvWr>,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// Its last packet was an answer rather than a request.
    pub(crate) answered: bool,
    /// Stands in the ready list.
    queued: bool,
    /// Earliest entry in the timer heap.
    timer: Option<Instant>,
}

impl Qp {
    pub(crate) fn new(id: QpId, qpn: Qpn, init: QpInit) -> Self {
        let mut qp = Self {
            id,
            qpn,
            init,
            attr: QpAttr::default(),
            path: Path::default(),
            sq: SendQueue::default(),
            rq: VecDeque::new(),
            req: Requester::default(),
            resp: Responder::default(),
            answered: false,
            queued: false,
            timer: None,
        };
        qp.clear();
        qp
    }

    /// Back to how it was created: no work, no connection.
    fn clear(&mut self) {
        self.attr = QpAttr { access: self.init.access, ..QpAttr::default() };
        if self.init.qp_type == QpType::Gsi {
            self.attr.qkey = GSI_QKEY;
        }
        self.path = Path::default();
        self.sq = SendQueue::default();
        self.rq = VecDeque::new();
        self.req = Requester::default();
        self.resp = Responder::default();
    }

    pub(crate) const fn state(&self) -> QpState {
        self.attr.state
    }

    pub(crate) const fn is_rc(&self) -> bool {
        matches!(self.init.qp_type, QpType::Rc)
    }

    pub(crate) const fn is_kernel(&self) -> bool {
        matches!(self.init.owner, Owner::Kernel)
    }

    pub(crate) const fn mtu(&self) -> Mtu {
        self.attr.path_mtu
    }

    /// Whether it takes requests and datagrams from peers.
    pub(crate) const fn receives(&self) -> bool {
        matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Attributes as they are now.
    pub(crate) fn query(&self) -> QpAttr {
        QpAttr {
            cur_state: self.attr.state,
            rq_psn: self.resp.expected.get(),
            sq_psn: self.req.next.get(),
            sq_draining: self.attr.state == QpState::Sqd && !self.sq.is_drained(),
            ..self.attr
        }
    }

    /// Gives it a turn to send.
    pub(crate) fn wake(&mut self, cx: &mut Shared) {
        if !self.queued {
            self.queued = true;
            cx.ready.push_back(self.id);
        }
    }

    /// Its turn is over.
    pub(crate) fn set_unqueued(&mut self) {
        self.queued = false;
    }

    /// Sees to it that [`Qp::on_timer`] is called at its deadline.
    pub(crate) fn schedule(&mut self, cx: &mut Shared) {
        if let Some(at) = self.req.deadline()
            && self.timer.is_none_or(|queued| at < queued)
        {
            self.timer = Some(at);
            cx.timers.push(at, self.id);
        }
    }

    /// An entry in the timer heap fell due.
    pub(crate) fn on_timer(&mut self, cx: &mut Shared) {
        if self.timer.is_some_and(|at| at <= cx.now) {
            self.timer = None;
        }
        if self.req.deadline().is_some_and(|at| at <= cx.now) {
            self.deadline_passed(cx);
        }
        self.schedule(cx);
    }

    /// Moves to the error state because of what a completion or event has already told.
    pub(crate) fn fail(&mut self, cx: &mut Shared) {
        if self.attr.state != QpState::Err {
            self.enter_error(cx);
        }
    }

    /// Moves to the error state for a reason no work request can tell.
    pub(crate) fn fail_with(&mut self, cx: &mut Shared, event: AsyncEvent) {
        if self.attr.state != QpState::Err {
            cx.event(event);
            self.enter_error(cx);
        }
    }

    /// Takes a receive work request. One from the own queue stays at its front until [`Qp::complete_recv`].
    pub(crate) fn take_recv(&mut self, cx: &mut Shared) -> Option<RecvWr> {
        let Some(id) = self.init.srq else { return self.rq.front().cloned() };
        let srq = cx.srqs.get_mut(id.0)?;
        let (wr, crossed) = srq.take()?;
        cx.events.push_back(ProviderEvent::SrqRetired(id));
        if crossed {
            cx.event(AsyncEvent::SrqLimitReached(id));
        }
        Some(wr)
    }

    /// Finishes a receive work request that was taken.
    pub(crate) fn complete_recv(&mut self, cx: &mut Shared, completion: Completion) {
        if self.init.srq.is_none() && self.rq.pop_front().is_some() {
            cx.events.push_back(ProviderEvent::RecvRetired(self.id));
        }
        cx.complete(completion);
    }

    /// A completion with nothing in it.
    pub(crate) const fn completion(
        &self,
        cq: CqId,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
    ) -> Completion {
        Completion::new(self.id, cq, wr_id, opcode, status)
    }

    /// Completes every receive work request that waits with "flushed".
    pub(super) fn flush_recv(&mut self, cx: &mut Shared) {
        if let Some(wr_id) = self.resp.abandon_receive()
            && self.init.srq.is_some()
        {
            cx.complete(self.rq_flushed(wr_id));
        }
        while let Some(wr) = self.rq.front() {
            let flushed = self.rq_flushed(wr.wr_id);
            self.complete_recv(cx, flushed);
        }
    }

    const fn rq_flushed(&self, wr_id: u64) -> Completion {
        self.completion(self.init.recv_cq, wr_id, WcOpcode::Recv, WcStatus::WrFlushErr)
    }

    /// Bytes of a full packet on the carrier that its path has now.
    pub(crate) fn unit(&self, cx: &Shared) -> u32 {
        if cx.is_direct(&self.path) { MAX_CHUNK } else { self.mtu().bytes() }
    }

    /// Packets of a message of `len` bytes; an empty one takes a packet too.
    pub(crate) const fn packets(&self, len: u32) -> u32 {
        let packets = len.div_ceil(self.mtu().bytes());
        if packets == 0 { 1 } else { packets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connection_takes_less_than_a_kibibyte() {
        assert!(size_of::<Qp>() <= 1024, "{} bytes", size_of::<Qp>());
    }
}
