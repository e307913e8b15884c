//! RDMA writes.

use verbs::{Access, Completion, Segments, WcFlags, WcOpcode};

use super::{Inbound, Refusal, Request};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::plan::{Effect, Source};
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::wire::{NakCode, Position, Reth};

impl Qp {
    pub(super) fn on_write(
        &mut self,
        cx: &mut Shared,
        request: &Request<'_>,
        at: Position,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), Refusal> {
        let (reth, got, to) = self.check_write(cx, request, at, reth, imm)?;
        let len = request.len();
        let receive = match imm {
            Some(imm) => Some((imm, self.take_recv(cx).ok_or(Refusal::Rnr)?)),
            None => None,
        };
        if let Some(status) = receive.as_ref().and_then(|(_, wr)| wr.bad) {
            // The receive is lost to this message, as one that a send had taken would be.
            self.resp.message = receive.map(|(_, wr)| Inbound::Send { wr, got: 0 });
            return Err(Refusal::Nak(NakCode::RemoteOperation, status));
        }
        if len > 0 {
            cx.effect(Effect::Place {
                qp: self.id,
                from: Source::Payload(request.payload.range.clone()),
                to,
            });
        }
        self.resp.message = (!at.ends()).then_some(Inbound::Write { reth, got: got + len });
        self.executed(cx, request, self.packets(len), at.ends());
        if let Some((imm, wr)) = receive {
            let completion = self.received(&wr, reth.len, WcOpcode::RecvRdmaWithImm, request.solicited);
            let flags = WcFlags::WITH_IMM;
            self.complete_recv(cx, Completion { imm_or_key: imm, flags, ..completion });
        }
        Ok(())
    }

    /// Checks a part of a write: the whole one, how much of it has come, and where this part belongs.
    pub(super) fn check_write(
        &self,
        cx: &Shared,
        request: &Request<'_>,
        at: Position,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(Reth, u32, Segments), Refusal> {
        let (reth, got, in_sequence) = match (&self.resp.message, reth) {
            (None, Some(reth)) => (reth, 0, at.starts()),
            (Some(Inbound::Write { reth, got }), None) => (*reth, *got, !at.starts()),
            _ => return Err(Refusal::INVALID),
        };
        self.check_part(request, at, in_sequence)?;
        if !self.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::INVALID);
        }
        if imm.is_some() && !self.has_recv(cx) {
            return Err(Refusal::Rnr);
        }
        let (len, rest) = (request.len(), reth.len - got.min(reth.len));
        let exact = if at.ends() { len == rest } else { len < rest };
        if reth.len > MAX_MESSAGE || !exact {
            return Err(Refusal::INVALID);
        }
        Ok((reth, got, self.write_target(cx, reth, got, len)?))
    }

    /// Guest memory for `len` bytes that lie `got` bytes into a write. The first packet answers for the whole message.
    fn write_target(&self, cx: &Shared, reth: Reth, got: u32, len: u32) -> Result<Segments, Refusal> {
        let (pd, access) = (self.init.pd, Access::REMOTE_WRITE);
        let mut to = Segments::new();
        if reth.len == 0 {
            // No byte is touched, so no key is needed (IBTA 9.7.4.1.3).
            return Ok(to);
        }
        if got == 0 && len < reth.len {
            cx.mrs.check(reth.rkey, pd, reth.va, reth.len, access).map_err(|_| Refusal::ACCESS)?;
        }
        let va = reth.va.checked_add(u64::from(got)).ok_or(Refusal::ACCESS)?;
        cx.mrs.resolve(reth.rkey, pd, va, len, access, &mut to).map_err(|_| Refusal::ACCESS)?;
        Ok(to)
    }
}
