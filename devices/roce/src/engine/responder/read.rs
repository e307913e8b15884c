//! READ requests and the data that answers them.

use serde::{Deserialize, Serialize};
use verbs::{Access, Segments};

use super::{Refusal, Request, Resource};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::mr::Denied;
use crate::engine::plan::Outgoing;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::{Aeth, Packet, Pdu, Position, Reth, Syndrome};

/// An answer with data that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Response {
    /// Sequence number of the next packet.
    pub(super) psn: Psn,
    /// It answers a duplicate.
    pub(super) again: bool,
    pub(super) data: Data,
}

/// Data of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Data {
    /// What is left of a READ.
    Read {
        rest: Reth,
        /// Nothing was sent of it.
        first: bool,
    },
    /// The result of an atomic operation.
    Atomic(u64),
}

impl Data {
    pub(super) const fn read(reth: Reth) -> Self {
        Self::Read { rest: reth, first: true }
    }
}

impl Qp {
    pub(super) fn on_read_request(
        &mut self,
        cx: &mut Shared,
        request: &Request<'_>,
        reth: Reth,
    ) -> Result<(), Refusal> {
        self.check_resource_request(request, Access::REMOTE_READ)?;
        if reth.len > MAX_MESSAGE {
            return Err(Refusal::INVALID);
        }
        if reth.len > 0 {
            cx.mrs
                .check(reth.rkey, self.init.pd, reth.va, reth.len, Access::REMOTE_READ)
                .map_err(|_| Refusal::ACCESS)?;
        }
        let packets = self.packets(reth.len);
        self.keep_resource(Resource::Read { psn: request.psn, packets, reth });
        self.executed(cx, &Request { ack_req: false, ..*request }, packets, true);
        self.answer(cx, Response { psn: request.psn, again: false, data: Data::read(reth) });
        Ok(())
    }

    /// Checks what READs and atomics have in common: no message in progress, the right, and room to remember the request.
    pub(super) fn check_resource_request(
        &mut self,
        request: &Request<'_>,
        access: Access,
    ) -> Result<(), Refusal> {
        let depth = usize::from(self.attr.max_dest_rd_atomic);
        let full = self.resp.responses.len() >= depth;
        if full && self.resp.responses.front().is_some_and(|oldest| oldest.again) {
            // The peer has it, or it could not have asked for more.
            self.resp.responses.pop_front();
        }
        let free = self.resp.responses.len() < depth;
        let allowed = self.attr.access.contains(access);
        if self.resp.message.is_none() && request.len() == 0 && allowed && free {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }

    /// Remembers a request for its duplicates, in place of the oldest if need be.
    pub(super) fn keep_resource(&mut self, resource: Resource) {
        while self.resp.resources.len() >= usize::from(self.attr.max_dest_rd_atomic.max(1)) {
            self.resp.resources.pop_front();
        }
        self.resp.resources.push_back(resource);
    }

    /// Queues an answer.
    pub(super) fn answer(&mut self, cx: &mut Shared, response: Response) {
        self.resp.responses.push_back(response);
        self.wake(cx);
    }

    /// The next packet of the answer at the front. The key may have been withdrawn since the request.
    pub(super) fn response_packet(
        &mut self,
        cx: &mut Shared,
        response: Response,
    ) -> Result<Outgoing, Denied> {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.resp.msn };
        match response.data {
            Data::Atomic(original) => {
                self.resp.responses.pop_front();
                Ok(self.reply_packet(response.psn, Pdu::AtomicAck { aeth, original }))
            }
            Data::Read { rest, first } => {
                let len = rest.len.min(self.unit(cx));
                let at = Position::of(first, len == rest.len);
                let pdu = Pdu::ReadResponse { at, aeth: (at != Position::Middle).then_some(aeth) };
                let (psn, packets) = (response.psn, self.packets(len));
                let mut out = self.reply_packet(psn, pdu);
                out.len = len;
                out.segments = self.read_source(cx, rest, len)?;
                if at.ends() {
                    self.resp.responses.pop_front();
                } else if let Some(front) = self.resp.responses.front_mut() {
                    let rest = Reth { va: rest.va + u64::from(len), len: rest.len - len, ..rest };
                    front.psn = psn.plus(packets);
                    front.data = Data::Read { rest, first: false };
                }
                Ok(out)
            }
        }
    }

    fn read_source(&self, cx: &Shared, reth: Reth, len: u32) -> Result<Segments, Denied> {
        let mut segments = Segments::new();
        if len > 0 {
            let access = Access::REMOTE_READ;
            cx.mrs.resolve(reth.rkey, self.init.pd, reth.va, len, access, &mut segments)?;
        }
        Ok(segments)
    }

    /// A packet to the peer without payload.
    pub(super) fn reply_packet(&self, psn: Psn, pdu: Pdu) -> Outgoing {
        let packet = Packet::new(self.attr.dest_qpn, psn, pdu);
        Outgoing { qp: self.id, path: self.path, packet, segments: Segments::new(), len: 0 }
    }
}
