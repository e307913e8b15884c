//! Atomic operations. The engine plans the read-modify-write; the mover carries it out and says what was there before.

use verbs::{Access, Segments};

use super::read::{Data, Response};
use super::{Refusal, Request, Resource};
use crate::engine::plan::Effect;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::AtomicEth;

/// Bytes an atomic operation works on, and their alignment.
const WORD: u32 = 8;

impl Qp {
    pub(super) fn on_atomic(
        &mut self,
        cx: &mut Shared,
        request: &Request<'_>,
        eth: AtomicEth,
    ) -> Result<(), Refusal> {
        self.check_resource_request(request, Access::REMOTE_ATOMIC)?;
        if !eth.va.is_multiple_of(u64::from(WORD)) {
            return Err(Refusal::INVALID);
        }
        let mut target = Segments::new();
        cx.mrs
            .resolve(eth.rkey, self.init.pd, eth.va, WORD, Access::REMOTE_ATOMIC, &mut target)
            .map_err(|_| Refusal::ACCESS)?;
        let gpa = match target.as_slice() {
            [word] if word.gpa.is_multiple_of(u64::from(WORD)) => word.gpa,
            _ => return Err(Refusal::ACCESS),
        };
        let psn = request.psn;
        self.keep_resource(Resource::Atomic { psn, original: None });
        cx.effect(Effect::Rmw { qp: self.id, psn, gpa, kind: eth.kind });
        self.executed(cx, &Request { ack_req: false, ..*request }, 1, true);
        Ok(())
    }

    /// The read-modify-write of a request found `original`.
    pub(crate) fn rmw_done(&mut self, cx: &mut Shared, psn: Psn, original: u64) {
        let pending = Resource::Atomic { psn, original: None };
        if let Some(resource) = self.resp.resources.iter_mut().rev().find(|r| **r == pending) {
            *resource = Resource::Atomic { psn, original: Some(original) };
            self.answer(cx, Response { psn, again: false, data: Data::Atomic(original) });
        }
    }
}
