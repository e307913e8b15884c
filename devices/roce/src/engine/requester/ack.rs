//! Acknowledgements.

use verbs::{QpState, WcStatus};

use super::{Phase, Wait};
use crate::engine::Payload;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::{Aeth, NakCode, Packet, Pdu, Syndrome};

/// Responses before this one are missing.
pub(super) struct Gap;

impl Qp {
    /// Takes a response of the peer.
    pub(crate) fn on_response(&mut self, cx: &mut Shared, packet: &Packet, payload: &Payload) {
        let alive = matches!(self.state(), QpState::Rts | QpState::Sqd);
        if !alive || self.is_unsent(packet.psn) {
            cx.counters.dropped_response += 1;
            return;
        }
        // A response shows that everything before it was carried out; what needed a response of its own must have had it.
        let una = self.req.una;
        let earlier = self.acknowledge(cx, packet.psn);
        self.note_progress(cx, una);
        if earlier.is_err() {
            self.lost_response(cx);
            return;
        }
        let una = self.req.una;
        match packet.pdu {
            Pdu::Ack(aeth) => self.on_ack(cx, packet.psn, aeth),
            Pdu::ReadResponse { at, .. } => self.on_read_response(cx, packet.psn, at, payload),
            Pdu::AtomicAck { original, .. } => self.on_atomic_ack(cx, packet.psn, original),
            _ => cx.counters.dropped_response += 1,
        }
        self.note_progress(cx, una);
    }

    fn on_ack(&mut self, cx: &mut Shared, psn: Psn, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                if self.acknowledge(cx, psn.plus(1)).is_err() {
                    self.lost_response(cx);
                }
            }
            Syndrome::RnrNak(timer) => self.on_rnr_nak(cx, timer),
            Syndrome::Nak(code) => self.on_nak(cx, code),
            Syndrome::Reserved(_) => cx.counters.dropped_response += 1,
        }
    }

    fn on_nak(&mut self, cx: &mut Shared, code: NakCode) {
        let (counter, status) = match code {
            NakCode::Sequence => {
                cx.counters.sequence_naks_received += 1;
                // Nothing was sent since the wait began: it is about packets behind the one that found no receive.
                if !matches!(self.req.wait, Wait::Rnr(_)) {
                    self.retry(cx);
                }
                return;
            }
            NakCode::InvalidRequest => {
                (&mut cx.counters.invalid_request_naks_received, WcStatus::RemInvReqErr)
            }
            NakCode::RemoteAccess => (&mut cx.counters.remote_access_naks_received, WcStatus::RemAccessErr),
            NakCode::RemoteOperation => (&mut cx.counters.remote_operation_naks_received, WcStatus::RemOpErr),
        };
        *counter += 1;
        self.fail_front(cx, status);
    }

    /// Ends what the peer has done: everything before `until`. Fails, having ended what came before, at a request that still
    /// waits for data which must have been sent.
    pub(super) fn acknowledge(&mut self, cx: &mut Shared, until: Psn) -> Result<(), Gap> {
        loop {
            self.complete_done(cx);
            let Some(front) = self.sq.front().filter(|wqe| wqe.phase == Phase::Sent) else { return Ok(()) };
            let done = until.since(self.req.una);
            let end = front.first.plus(front.packets);
            if done == 0 {
                return Ok(());
            }
            if front.wants_response() {
                return Err(Gap);
            }
            if done < end.since(self.req.una) {
                self.req.una = until;
                return Ok(());
            }
            self.req.una = end;
            self.complete_send(cx, WcStatus::Success);
        }
    }

    /// Does what is due if the oldest unacknowledged packet is no longer `una`.
    fn note_progress(&mut self, cx: &mut Shared, una: Psn) {
        if self.req.una == una || !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            return;
        }
        self.req.window.on_progress(self.req.una.since(una));
        self.end_slow_down();
        self.restore_budgets();
        self.req.implied_nak = false;
        if self.req.next.since(self.req.una) > self.req.sent.since(self.req.una) {
            // What the cursor went back to has arrived after all.
            self.rewind();
        }
        if self.req.una == self.req.sent {
            self.req.wait = Wait::Nothing;
        } else {
            self.restart_ack_timer(cx);
        }
        self.end_failed(cx);
        self.report_drained(cx);
        self.wake(cx);
    }
}
