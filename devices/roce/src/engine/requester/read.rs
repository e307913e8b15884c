//! Responses that carry data.

use verbs::{Access, QpState, Segments, SendOp, WcStatus};

use super::send::ATOMIC_LEN;
use super::{Phase, SendWqe};
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
        let Some((offset, len)) = self.answered_part(cx, wqe, psn, at, payload) else {
            self.fail_front(cx, WcStatus::BadRespErr);
            return;
        };
        let next = psn.plus(self.packets(len));
        let finished = next == wqe.first.plus(wqe.packets);
        if self.place_response(cx, Source::Payload(payload.range.clone()), offset, len).is_err() {
            self.fail_front(cx, WcStatus::LocProtErr);
            return;
        }
        self.response_taken(cx, psn, next, at.ends(), finished);
    }

    /// Which part of a READ a response answers: offset and length, if the response has that length.
    fn answered_part(
        &self,
        cx: &Shared,
        wqe: &SendWqe,
        psn: Psn,
        at: Position,
        payload: &Payload,
    ) -> Option<(u32, u32)> {
        let (mtu, index) = (self.mtu().bytes(), psn.since(wqe.first));
        let offset = index.saturating_mul(mtu);
        // What is left of the request that this answers.
        let asked = self.read_chunk(cx, index, wqe.packets).saturating_mul(mtu);
        let rest = wqe.len.saturating_sub(offset).min(asked);
        let len = rest.min(payload.unit);
        (payload.len() == len && at.ends() == (len == rest)).then_some((offset, len))
    }

    /// Where the data of a response belong, if it will be taken.
    pub(crate) fn response_target(
        &self,
        cx: &Shared,
        psn: Psn,
        at: Position,
        payload: &Payload,
    ) -> Option<Segments> {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) || self.is_unsent(psn) || payload.len() == 0 {
            return None;
        }
        let wqe = self.awaits(psn)?;
        let (offset, len) = self.answered_part(cx, wqe, psn, at, payload)?;
        let mut to = Segments::new();
        cx.resolve_sges(self.init.pd, &wqe.wr.sges, offset, len, Access::LOCAL_WRITE, &mut to).ok()?;
        Some(to)
    }

    /// The READ that waits for the response with this number, once a response has shown that all before it was carried out.
    fn awaits(&self, psn: Psn) -> Option<&SendWqe> {
        let una = self.req.una;
        for wqe in self.sq.wqes.iter().filter(|wqe| wqe.phase != Phase::Done) {
            let has = |psn: Psn| psn.since(wqe.first) < wqe.packets;
            if wqe.phase == Phase::Sent && has(psn) {
                let next = if has(una) { una } else { wqe.first };
                return (matches!(wqe.wr.op, SendOp::Read { .. }) && psn == next).then_some(wqe);
            }
            if wqe.phase == Phase::Waiting || wqe.wants_response() {
                break;
            }
        }
        None
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
