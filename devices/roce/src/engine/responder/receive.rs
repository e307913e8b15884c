//! Sends.

use verbs::{Access, Completion, PdId, RecvWr, Segments, WcFlags, WcOpcode, WcStatus};

use super::{Inbound, Refusal, Request};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::plan::{Effect, Source};
use crate::engine::qp::Qp;
use crate::engine::shared::{Shared, total};
use crate::wire::{NakCode, Position};

/// What the last packet of a send carries besides data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extra {
    Immediate([u8; 4]),
    Invalidate(u32),
}

impl Qp {
    pub(super) fn on_send(
        &mut self,
        cx: &mut Shared,
        request: &Request<'_>,
        at: Position,
        extra: Option<Extra>,
    ) -> Result<(), Refusal> {
        self.check_part(request, at, self.continues_send(at))?;
        if self.resp.message.is_none() {
            let wr = self.take_recv(cx).ok_or(Refusal::Rnr)?;
            self.resp.message = Some(Inbound::Send { wr, got: 0 });
        }
        let len = request.len();
        let Some(Inbound::Send { wr, got }) = &mut self.resp.message else { return Err(Refusal::INVALID) };
        if let Some(status) = wr.bad {
            return Err(Refusal::Nak(NakCode::RemoteOperation, status));
        }
        let pd = self.init.pd;
        let to = place_in(cx, pd, wr, *got, len)?;
        if let Some(Extra::Invalidate(rkey)) = extra {
            cx.mrs.invalidate(pd, rkey).map_err(|_| Refusal::INVALID)?;
            cx.revoked = true;
        }
        *got += len;
        if len > 0 {
            cx.effect(Effect::Place {
                qp: self.id,
                from: Source::Payload(request.payload.range.clone()),
                to,
            });
        }
        self.executed(cx, request, self.packets(len), at.ends());
        if at.ends() {
            self.finish_send(cx, request, extra);
        }
        Ok(())
    }

    /// Whether a part of a send comes where one may.
    fn continues_send(&self, at: Position) -> bool {
        match &self.resp.message {
            // Of a send whose receive was taken in advance, nothing has come.
            None | Some(Inbound::Send { got: 0, .. }) => at.starts(),
            Some(Inbound::Send { .. }) => !at.starts(),
            Some(Inbound::Write { .. }) => false,
        }
    }

    /// Where a part of a send belongs, if it will be carried out. Takes its receive.
    pub(super) fn send_target(
        &mut self,
        cx: &mut Shared,
        request: &Request<'_>,
        at: Position,
    ) -> Option<Segments> {
        self.check_part(request, at, self.continues_send(at)).ok()?;
        let (wr, got) = match &self.resp.message {
            Some(Inbound::Send { wr, got }) => (wr, *got),
            _ => (self.next_recv(cx)?, 0),
        };
        let to = place_in(cx, self.init.pd, wr, got, request.len()).ok().filter(|_| wr.bad.is_none())?;
        if self.resp.message.is_none() {
            self.resp.message = Some(Inbound::Send { wr: self.take_recv(cx)?, got: 0 });
        }
        Some(to)
    }

    /// Checks what all packets of sends and writes have in common: order of parts, and that only the last part is short
    /// of a path MTU, or of several where a packet holds them.
    pub(super) fn check_part(
        &self,
        request: &Request<'_>,
        at: Position,
        in_sequence: bool,
    ) -> Result<(), Refusal> {
        let (len, mtu, unit) = (request.len(), self.mtu().bytes(), request.payload.unit);
        let fits = match at {
            Position::First | Position::Middle => (mtu..=unit).contains(&len) && len.is_multiple_of(mtu),
            Position::Last => (1..=unit).contains(&len),
            Position::Only => len <= unit,
        };
        if in_sequence && fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// The receive that would be taken next.
    fn next_recv<'a>(&'a self, cx: &'a Shared) -> Option<&'a RecvWr> {
        match self.init.srq {
            Some(srq) => cx.srqs.get(srq.0)?.waiting.front(),
            None => self.rq.front(),
        }
    }

    /// Whether a receive could be taken.
    pub(super) fn has_recv(&self, cx: &Shared) -> bool {
        self.next_recv(cx).is_some()
    }

    fn finish_send(&mut self, cx: &mut Shared, request: &Request<'_>, extra: Option<Extra>) {
        let Some(Inbound::Send { wr, got }) = self.resp.message.take() else { return };
        let completion = self.received(&wr, got, WcOpcode::Recv, request.solicited);
        let (imm_or_key, flags) = match extra {
            None => ([0; 4], WcFlags::empty()),
            Some(Extra::Immediate(imm)) => (imm, WcFlags::WITH_IMM),
            Some(Extra::Invalidate(rkey)) => (rkey.to_le_bytes(), WcFlags::WITH_INVALIDATE),
        };
        self.complete_recv(cx, Completion { imm_or_key, flags, ..completion });
    }

    /// A completion for a message that was received.
    pub(super) const fn received(
        &self,
        wr: &RecvWr,
        len: u32,
        opcode: WcOpcode,
        solicited: bool,
    ) -> Completion {
        let completion = self.completion(self.init.recv_cq, wr.wr_id, opcode, WcStatus::Success);
        Completion { byte_len: len, src_qp: self.attr.dest_qpn, solicited, ..completion }
    }
}

/// Guest memory for `len` bytes that lie `got` bytes into a receive.
fn place_in(cx: &Shared, pd: PdId, wr: &RecvWr, got: u32, len: u32) -> Result<Segments, Refusal> {
    let end = u64::from(got) + u64::from(len);
    if end > total(&wr.sges).min(u64::from(MAX_MESSAGE)) {
        return Err(Refusal::TOO_LONG);
    }
    let mut to = Segments::new();
    cx.resolve_sges(pd, &wr.sges, got, len, Access::LOCAL_WRITE, &mut to)
        .map_err(|_| Refusal::BAD_RECEIVE)?;
    Ok(to)
}
