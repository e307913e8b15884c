//! Congestion: what connections do about ECN marks (IBTA annex A17.9.3).
//!
//! | when | what |
//! |---|---|
//! | a packet of a connection arrives with a mark | its queue pair sends the peer a congestion notification, at most one per [`super::Config::cnp_interval`] |
//! | a notification arrives | the queue pair halves its window, at most once per round trip and not below 16 packets |
//! | packets get through | the window grows back by about eight packets per round trip, as after a loss |
//!
//! That is less than the rate control of hardware (DCQCN), and on purpose: the window is there anyway, halving it is known
//! to be stable, and a sender in software has no use for a rate that is set to the bit. The packets of connections are
//! marked as ECN-capable; datagrams, which have no window, are not. Responses to READs are not slowed down: who asked for
//! them bounds them by what it asks for at a time.

use super::plan::Outgoing;
use super::qp::Qp;
use super::shared::Shared;
use crate::psn::Psn;
use crate::wire::{Packet, Pdu};

impl Qp {
    /// A packet of the peer came with a congestion mark.
    pub(super) fn on_congestion_mark(&mut self, cx: &mut Shared) {
        if self.resp.cnp_after <= cx.now {
            self.resp.cnp_after = cx.now + cx.config.cnp_interval;
            self.resp.cnp_due = true;
            self.wake(cx);
        }
    }

    /// The notification that is due.
    pub(super) fn congestion_notification(&mut self, cx: &mut Shared) -> Option<Outgoing> {
        if !std::mem::take(&mut self.resp.cnp_due) {
            return None;
        }
        cx.counters.cnp_sent += 1;
        let packet = Packet { becn: true, ..Packet::new(self.attr.dest_qpn, Psn::default(), Pdu::Cnp) };
        let path = self.path.without_ecn();
        Some(Outgoing { qp: self.id, path, packet, segments: Default::default(), len: 0 })
    }

    /// The peer, or the network on its behalf, says that this queue pair sends too much.
    pub(super) fn on_cnp(&mut self, cx: &mut Shared) {
        cx.counters.cnp_received += 1;
        self.slow_down();
    }
}
