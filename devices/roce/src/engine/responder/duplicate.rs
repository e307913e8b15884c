//! Requests that come again (IBTA 9.7.5.1.2): their answers were lost, or the peer was impatient.

use super::read::{Data, Response};
use super::{Reply, Resource};
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::{Packet, Pdu, Reth};

impl Qp {
    pub(super) fn on_duplicate(&mut self, cx: &mut Shared, packet: &Packet) {
        cx.counters.duplicate_requests += 1;
        match packet.pdu {
            Pdu::ReadRequest(reth) => {
                if self.find_read(packet.psn, reth) {
                    self.answer_again(cx, packet.psn, Data::read(reth));
                }
            }
            Pdu::Atomic(_) => {
                if let Some(original) = self.find_atomic(packet.psn) {
                    self.answer_again(cx, packet.psn, Data::Atomic(original));
                }
            }
            // Carried out long ago: only the acknowledgement is owed.
            _ => {
                if self.resp.reply == Reply::Nothing {
                    self.resp.reply = Reply::Ack;
                    self.wake(cx);
                }
            }
        }
    }

    /// Whether a READ, or the end of one, was requested with these operands before.
    fn find_read(&self, psn: Psn, reth: Reth) -> bool {
        let mtu = self.mtu().bytes();
        self.resp.resources.iter().any(|resource| {
            let Resource::Read { psn: first, packets, reth: whole } = *resource else { return false };
            let index = psn.since(first);
            let skipped = index.saturating_mul(mtu);
            index < packets
                && reth.rkey == whole.rkey
                && whole.va.checked_add(u64::from(skipped)) == Some(reth.va)
                && reth.len <= whole.len.saturating_sub(skipped)
        })
    }

    fn find_atomic(&self, psn: Psn) -> Option<u64> {
        self.resp.resources.iter().find_map(|resource| match *resource {
            Resource::Atomic { psn: at, original } if at == psn => original,
            _ => None,
        })
    }

    /// Queues an answer that was due before. The peer goes back to it and will ask again for all that followed, so what is
    /// queued from there on is dropped.
    fn answer_again(&mut self, cx: &mut Shared, psn: Psn, data: Data) {
        self.resp.responses.retain(|queued| queued.psn.ahead_of(psn) < 0);
        if self.resp.responses.len() < usize::from(self.attr.max_dest_rd_atomic) {
            self.answer(cx, Response { psn, again: true, data });
        }
    }
}
