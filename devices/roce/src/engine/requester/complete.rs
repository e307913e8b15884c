//! The end of send work requests.

use verbs::{AsyncEvent, ProviderEvent, QpState, SendFlags, WcFlags, WcStatus};

use super::{Phase, Wait};
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;

impl Qp {
    /// Ends the oldest request.
    pub(crate) fn complete_send(&mut self, cx: &mut Shared, status: WcStatus) {
        let Some(wqe) = self.sq.wqes.pop_front() else { return };
        self.sq.current = self.sq.current.saturating_sub(1);
        cx.events.push_back(ProviderEvent::SendRetired(self.id));
        let wanted = wqe.wr.flags.contains(SendFlags::SIGNALED) || status != WcStatus::Success;
        if wanted {
            let opcode = wqe.wr.op.opcode().into();
            let mut completion = self.completion(self.init.send_cq, wqe.wr.wr_id, opcode, status);
            if status == WcStatus::Success {
                completion.byte_len = wqe.len;
            }
            completion.flags = WcFlags::empty();
            cx.complete(completion);
        }
    }

    /// Ends requests that were carried out without packets and have become the oldest.
    pub(super) fn complete_done(&mut self, cx: &mut Shared) {
        while self.sq.front().is_some_and(|wqe| wqe.phase == Phase::Done) {
            self.complete_send(cx, WcStatus::Success);
        }
    }

    /// The oldest request failed: the queue pair does.
    pub(super) fn fail_front(&mut self, cx: &mut Shared, status: WcStatus) {
        self.complete_send(cx, status);
        self.fail(cx);
    }

    /// The current request cannot be carried out. It ends when it has become the oldest.
    pub(super) fn fail_current(&mut self, cx: &mut Shared, status: WcStatus) {
        self.req.failed = Some(status);
        self.end_failed(cx);
    }

    /// Ends the failed request if it has become the oldest.
    pub(super) fn end_failed(&mut self, cx: &mut Shared) {
        if self.sq.current == 0
            && let Some(status) = self.req.failed.take()
        {
            self.fail_front(cx, status);
        }
    }

    /// Ends all requests unfinished.
    pub(crate) fn flush_send(&mut self, cx: &mut Shared) {
        while let Some(front) = self.sq.front() {
            // Its memory is its owner's again.
            cx.revoked |= front.phase == Phase::Sent;
            self.complete_send(cx, WcStatus::WrFlushErr);
        }
        self.req.failed = None;
        self.req.wait = Wait::Nothing;
    }

    /// Reports the send queue drained, once, if that was asked for.
    pub(crate) fn report_drained(&mut self, cx: &mut Shared) {
        if self.state() == QpState::Sqd && self.attr.sqd_async_notify && self.sq.is_drained() {
            self.attr.sqd_async_notify = false;
            cx.event(AsyncEvent::SqDrained(self.id));
        }
    }
}
