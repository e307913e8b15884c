//! Responses that carry data.

use verbs::{Access, Segments, SendOp, WcStatus};

use super::send::ATOMIC_LEN;
use crate::engine::Payload;
use crate::engine::mr::Denied;
use crate::engine::plan::{Effect, Source};
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::Position;

impl Qp {
    /// Takes part of the data of a READ. All before `psn` has been acknowledged.
    pub(super) fn on_read_response(&mut self, cx: &mut Shared, psn: Psn, at: Position, payload: &Payload) {
        let Some(wqe) = self.sq.front().filter(|wqe| matches!(wqe.wr.op, SendOp::Read { .. })) else {
            cx.counters.dropped_response += 1;
            return;
        };
        let (mtu, index) = (self.mtu().bytes(), psn.since(wqe.first));
        let offset = index.saturating_mul(mtu);
        // What is left of the request that this answers.
        let asked = self.read_chunk(cx, index, wqe.packets).saturating_mul(mtu);
        let rest = wqe.len.saturating_sub(offset).min(asked);
        let len = rest.min(payload.unit);
        let ends = len == rest;
        if payload.len() != len || at.ends() != ends {
            self.fail_front(cx, WcStatus::BadRespErr);
            return;
        }
        let next = psn.plus(self.packets(len));
        let finished = next == wqe.first.plus(wqe.packets);
        if self.place_response(cx, Source::Payload(payload.range.clone()), offset, len).is_err() {
            self.fail_front(cx, WcStatus::LocProtErr);
            return;
        }
        self.response_taken(cx, psn, next, ends, finished);
    }

    /// Takes the result of an atomic operation. All before `psn` has been acknowledged.
    pub(super) fn on_atomic_ack(&mut self, cx: &mut Shared, psn: Psn, original: u64) {
        let is_atomic = |op: &SendOp| matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if !self.sq.front().is_some_and(|wqe| is_atomic(&wqe.wr.op)) {
            cx.counters.dropped_response += 1;
            return;
        }
        // Big-endian on the wire, in the guest's order in its memory.
        let value = Source::Value(original.to_le_bytes());
        if self.place_response(cx, value, 0, ATOMIC_LEN).is_err() {
            self.fail_front(cx, WcStatus::LocProtErr);
            return;
        }
        self.response_taken(cx, psn, psn.plus(1), true, true);
    }

    fn place_response(&self, cx: &mut Shared, from: Source, offset: u32, len: u32) -> Result<(), Denied> {
        let Some(wqe) = self.sq.front() else { return Err(Denied) };
        let mut to = Segments::new();
        cx.resolve_sges(self.init.pd, &wqe.wr.sges, offset, len, Access::LOCAL_WRITE, &mut to)?;
        if len > 0 {
            cx.effect(Effect::Place { qp: self.id, from, to });
        }
        Ok(())
    }

    /// Accounts for the response from `psn` up to `next`, which may end a request packet and the work request.
    fn response_taken(&mut self, cx: &mut Shared, psn: Psn, next: Psn, ends: bool, finished: bool) {
        if ends && self.req.next != psn {
            self.req.reads = self.req.reads.saturating_sub(1);
        }
        self.req.una = next;
        if finished {
            self.complete_send(cx, WcStatus::Success);
            self.complete_done(cx);
        }
    }
}
