//! What the responder says next.

use std::mem;

use verbs::{QpState, WcStatus};

use super::Reply;
use super::read::Response;
use crate::engine::plan::Outgoing;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::wire::{Aeth, NakCode, Pdu, Syndrome};

impl Qp {
    /// The next answer that is due: data first, since an acknowledgement would overtake it.
    pub(crate) fn respond(&mut self, cx: &mut Shared) -> Option<Outgoing> {
        if !self.is_rc() || !(self.receives() || self.resp.closing) {
            return None;
        }
        if let Some(notification) = self.congestion_notification(cx) {
            return Some(notification);
        }
        if let Some(response) = self.resp.responses.front().copied() {
            match self.response_packet(cx, response) {
                Ok(out) => return Some(out),
                Err(_) => self.withdraw(cx, response),
            }
        }
        let (psn, syndrome) = match mem::take(&mut self.resp.reply) {
            Reply::Nothing => return None,
            Reply::Ack => (self.resp.expected.before(), Syndrome::ACK),
            Reply::Rnr => (self.resp.expected, Syndrome::RnrNak(self.attr.min_rnr_timer)),
            Reply::Nak(code, psn) => (psn, Syndrome::Nak(code)),
        };
        self.resp.closing = false;
        Some(self.reply_packet(psn, Pdu::Ack(Aeth { syndrome, msn: self.resp.msn })))
    }

    /// A READ cannot be answered to its end: the memory is no longer granted.
    ///
    /// A duplicate may be a straggler of a READ that was done long before its key was invalidated. So it is refused and
    /// nothing more: who still waits for its answer hears that, and nobody else has a connection fail.
    fn withdraw(&mut self, cx: &mut Shared, response: Response) {
        self.resp.responses.clear();
        if response.again {
            if self.resp.reply == Reply::Nothing {
                cx.counters.remote_access_naks_sent += 1;
                self.resp.reply = Reply::Nak(NakCode::RemoteAccess, response.psn);
            }
        } else if self.state() != QpState::Err {
            self.close(cx, NakCode::RemoteAccess, response.psn, WcStatus::RemAccessErr, None);
        }
    }
}
