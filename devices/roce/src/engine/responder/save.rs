//! The receiving half as it is saved.

use std::collections::VecDeque;
use std::time::Duration;

use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::Error;

use super::read::{Data, Response};
use super::{Inbound, Reply, Resource, Responder};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::{NakCode, Reth};

/// State of the receiving half, with the results of atomic operations, from which duplicates are answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResponderState {
    expected: Psn,
    msn: Psn,
    message: Option<Inbound>,
    reply: Reply,
    nak_sent: bool,
    resources: Vec<Resource>,
    responses: Vec<Response>,
    closing: bool,
    established: bool,
    cnp_due: bool,
    cnp_after: Duration,
}

impl ResponderState {
    pub(crate) fn of(responder: &Responder, now: Instant) -> Self {
        let Responder {
            expected,
            msn,
            message,
            reply,
            nak_sent,
            resources,
            responses,
            closing,
            established,
            cnp_due,
            cnp_after,
        } = responder;
        Self {
            expected: *expected,
            msn: Psn::new(*msn),
            message: message.clone(),
            reply: *reply,
            nak_sent: *nak_sent,
            resources: resources.iter().copied().collect(),
            responses: responses.iter().copied().collect(),
            closing: *closing,
            established: *established,
            cnp_due: *cnp_due,
            cnp_after: *cnp_after - now,
        }
    }

    fn check(&self, qp: &Qp) -> Result<(), Error> {
        let depth = usize::from(qp.attr.max_dest_rd_atomic);
        if self.resources.len() > depth.max(1) || self.responses.len() > depth {
            return Err(Error::Invalid("more READs and atomics than there can be"));
        }
        let reads = self.resources.iter().filter_map(|resource| match resource {
            Resource::Read { reth, .. } => Some(reth),
            Resource::Atomic { .. } => None,
        });
        let answers = self.responses.iter().filter_map(|response| match &response.data {
            Data::Read { rest, .. } => Some(rest),
            Data::Atomic(_) => None,
        });
        if !reads.chain(answers).all(is_range) {
            return Err(Error::Invalid("range of a READ"));
        }
        match &self.message {
            Some(Inbound::Write { reth, got }) if !is_range(reth) || *got >= reth.len => {
                Err(Error::Invalid("range of a WRITE"))
            }
            Some(Inbound::Send { got, .. }) if *got > MAX_MESSAGE => Err(Error::Invalid("length of a SEND")),
            _ => Ok(()),
        }
    }

    /// Restores it into a queue pair, whose attributes are restored.
    pub(crate) fn restore(self, qp: &mut Qp, now: Instant) -> Result<(), Error> {
        self.check(qp)?;
        qp.resp = Responder {
            expected: self.expected,
            msn: self.msn.get(),
            message: self.message,
            reply: self.reply,
            nak_sent: self.nak_sent,
            resources: VecDeque::from(self.resources),
            responses: VecDeque::from(self.responses),
            closing: self.closing,
            established: self.established,
            cnp_due: self.cnp_due,
            cnp_after: now + self.cnp_after,
        };
        Ok(())
    }
}

impl Qp {
    /// What the peer has sent since the state was saved is lost: says which packet is expected, so that the peer need not
    /// wait for its timer. One that has nothing to send again takes no notice.
    pub(crate) fn ask_for_expected(&mut self, cx: &mut Shared) {
        let idle = self.resp.reply == Reply::Nothing && self.resp.responses.is_empty();
        if self.is_rc() && self.receives() && idle && !self.resp.closing && !self.resp.nak_sent {
            self.resp.nak_sent = true;
            self.resp.reply = Reply::Nak(NakCode::Sequence, self.resp.expected);
            self.wake(cx);
        }
    }
}

fn is_range(reth: &Reth) -> bool {
    reth.len <= MAX_MESSAGE && reth.va.checked_add(u64::from(reth.len)).is_some()
}
