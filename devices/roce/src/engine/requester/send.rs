//! What goes out next.

use verbs::{Access, QpState, QpType, Segments, SendFlags, SendOp, SendWr, WcStatus};

use super::{Phase, SendWqe, Wait};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::plan::{Outgoing, Transmit};
use crate::engine::qp::Qp;
use crate::engine::shared::{Shared, total};
use crate::psn::Psn;
use crate::wire::{AtomicEth, AtomicKind, Packet, Pdu, Position, Reth};

/// Bytes an atomic operation works on.
pub(super) const ATOMIC_LEN: u32 = 8;

/// Whether the current work request may begin.
enum Start {
    Now,
    /// It is carried out, or has failed, without a packet.
    Local,
    NotYet,
}

/// One packet of a message.
struct Part {
    pdu: Pdu,
    /// Range of the message in the packet.
    offset: u32,
    len: u32,
    /// Sequence numbers it takes.
    psns: u32,
    ack_req: bool,
    solicited: bool,
}

impl Qp {
    /// Takes a turn at sending. Answers and own requests alternate, so that neither keeps the other waiting.
    pub(crate) fn transmit(&mut self, cx: &mut Shared) -> Transmit {
        if self.is_rc() && cx.neighbours.blocks(self.path.dmac, self.id) {
            return Transmit::Idle;
        }
        let answer = !self.answered;
        for answer in [answer, !answer] {
            let step =
                if answer { self.respond(cx).map_or(Transmit::Idle, Transmit::Packet) } else { self.ask(cx) };
            if !matches!(step, Transmit::Idle) {
                self.answered = answer;
                return step;
            }
        }
        Transmit::Idle
    }

    fn ask(&mut self, cx: &mut Shared) -> Transmit {
        match (self.init.qp_type, self.state()) {
            (QpType::Rc, QpState::Rts | QpState::Sqd) => self.request(cx),
            (QpType::Ud | QpType::Gsi, QpState::Rts | QpState::Sqd) => self.send_datagram(cx),
            _ => Transmit::Idle,
        }
    }

    fn request(&mut self, cx: &mut Shared) -> Transmit {
        if self.req.failed.is_some() || matches!(self.req.wait, Wait::Rnr(_)) {
            return Transmit::Idle;
        }
        match self.sq.current().map(|wqe| wqe.phase) {
            None => return Transmit::Idle,
            Some(Phase::Done) => {
                self.sq.current += 1;
                return Transmit::Again;
            }
            Some(Phase::Waiting) => match self.start(cx) {
                Start::Now => {}
                Start::Local => return Transmit::Again,
                Start::NotYet => return Transmit::Idle,
            },
            Some(Phase::Sent) => {}
        }
        self.request_packet(cx)
    }

    /// Begins the current work request.
    fn start(&mut self, cx: &mut Shared) -> Start {
        let Some(wqe) = self.sq.current() else { return Start::NotYet };
        let fenced = wqe.wr.flags.contains(SendFlags::FENCE) && self.req.reads > 0;
        if self.state() == QpState::Sqd || fenced {
            return Start::NotYet;
        }
        if matches!(wqe.wr.op, SendOp::LocalInv { .. } | SendOp::FastReg(_)) {
            return if self.run_local(cx) { Start::Local } else { Start::NotYet };
        }
        let len = match self.validate(cx, &wqe.wr) {
            Ok(len) => len,
            Err(status) => {
                self.fail_current(cx, status);
                return Start::Local;
            }
        };
        let (first, packets) = (self.req.next, self.packets(len));
        if let Some(wqe) = self.sq.wqes.get_mut(self.sq.current) {
            (wqe.phase, wqe.first, wqe.packets, wqe.len) = (Phase::Sent, first, packets, len);
        }
        Start::Now
    }

    /// Checks a work request before anything of it leaves; returns the bytes of its message.
    fn validate(&self, cx: &Shared, wr: &SendWr) -> Result<u32, WcStatus> {
        let access = match wr.op {
            SendOp::Bad(status) => return Err(status),
            SendOp::SendInv { .. } if !self.is_kernel() => return Err(WcStatus::LocQpOpErr),
            SendOp::UdSend { .. } | SendOp::LocalInv { .. } | SendOp::FastReg(_) => {
                return Err(WcStatus::LocQpOpErr);
            }
            SendOp::Send { .. } | SendOp::SendInv { .. } | SendOp::Write { .. } => Access::empty(),
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                // None may ever be outstanding, so it would wait for ever.
                if self.attr.max_rd_atomic == 0 {
                    return Err(WcStatus::LocQpOpErr);
                }
                Access::LOCAL_WRITE
            }
        };
        let len = u32::try_from(total(&wr.sges)).ok().filter(|len| *len <= MAX_MESSAGE);
        let len = match (&wr.op, len) {
            (_, None) => return Err(WcStatus::LocLenErr),
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, Some(len)) => {
                if len < ATOMIC_LEN {
                    return Err(WcStatus::LocLenErr);
                }
                ATOMIC_LEN
            }
            (_, Some(len)) => len,
        };
        // A message of one packet is checked as it is sent; of a longer one nothing leaves unless all of it can.
        let sent_at_once = len <= self.mtu().bytes() && access.is_empty();
        if !sent_at_once {
            cx.check_sges(self.init.pd, &wr.sges, access).map_err(|_| WcStatus::LocProtErr)?;
        }
        Ok(len)
    }

    /// The packet under the cursor, if the window has room.
    fn request_packet(&mut self, cx: &mut Shared) -> Transmit {
        let Some(wqe) = self.sq.current() else { return Transmit::Idle };
        let in_flight = self.req.next.since(self.req.una);
        let reads_full = wqe.wants_response() && self.req.reads >= self.attr.max_rd_atomic;
        let window = if cx.is_direct(&self.path) {
            self.req.window.direct_packets(self.mtu())
        } else {
            self.req.window.packets()
        };
        if in_flight >= window || reads_full {
            return Transmit::Idle;
        }
        let part = self.part(cx, wqe, in_flight);
        let mut segments = Segments::new();
        if part.len > 0 {
            let sges = &wqe.wr.sges;
            let access = Access::empty();
            if cx.resolve_sges(self.init.pd, sges, part.offset, part.len, access, &mut segments).is_err() {
                self.fail_current(cx, WcStatus::LocProtErr);
                return Transmit::Again;
            }
        }
        let mut packet = Packet::new(self.attr.dest_qpn, self.req.next, part.pdu);
        (packet.ack_req, packet.solicited) = (part.ack_req, part.solicited);
        self.move_cursor(cx, part.psns);
        Transmit::Packet(Outgoing { qp: self.id, path: self.path, packet, segments, len: part.len })
    }

    /// Describes the packet under the cursor.
    fn part(&self, cx: &Shared, wqe: &SendWqe, in_flight: u32) -> Part {
        let (mtu, unit) = (self.mtu().bytes(), self.unit(cx));
        let index = self.req.next.since(wqe.first);
        let offset = index.saturating_mul(mtu);
        let rest = wqe.len.saturating_sub(offset);
        let request = |pdu, psns| Part { pdu, offset, len: 0, psns, ack_req: true, solicited: false };
        let atomic = |addr, rkey, kind| request(Pdu::Atomic(AtomicEth { va: addr, rkey, kind }), 1);

        let len = rest.min(unit);
        let at = Position::of(index == 0, len == rest);
        let on_last = |imm: Option<[u8; 4]>| imm.filter(|_| at.ends());
        let pdu = match wqe.wr.op {
            SendOp::Read { addr, rkey } => {
                let psns = self.read_chunk(cx, index, wqe.packets);
                let len = rest.min(psns.saturating_mul(mtu));
                let va = addr.wrapping_add(u64::from(offset));
                return request(Pdu::ReadRequest(Reth { va, rkey, len }), psns);
            }
            SendOp::CompareSwap { addr, rkey, compare, swap } => {
                return atomic(addr, rkey, AtomicKind::CompareSwap { compare, swap });
            }
            SendOp::FetchAdd { addr, rkey, add } => return atomic(addr, rkey, AtomicKind::FetchAdd(add)),
            SendOp::Write { addr, rkey, imm } => {
                let reth = at.starts().then_some(Reth { va: addr, rkey, len: wqe.len });
                Pdu::Write { at, reth, imm: on_last(imm) }
            }
            SendOp::SendInv { rkey } if at.ends() => Pdu::SendInv { at, rkey },
            SendOp::Send { imm } => Pdu::Send { at, imm: on_last(imm) },
            _ => Pdu::Send { at, imm: None },
        };
        let window = self.req.window;
        let ack_req = at.ends()
            || unit > mtu
            || index % window.ack_interval() == window.ack_interval() - 1
            || in_flight + 1 >= window.packets();
        // Only what consumes a receive can be solicited (IBTA 9.2.3).
        let consumes = !matches!(pdu, Pdu::Write { imm: None, .. });
        let solicited = at.ends() && consumes && wqe.wr.flags.contains(SendFlags::SOLICITED);
        Part { pdu, offset, len, psns: self.packets(len), ack_req, solicited }
    }

    /// Sequence numbers that a READ request for packet `index` of a message of `packets` asks for: up to the next multiple
    /// of the chunk, so that the request for a missing part never spans what were two requests.
    pub(super) fn read_chunk(&self, cx: &Shared, index: u32, packets: u32) -> u32 {
        let chunk = (cx.config.read_chunk / self.mtu().bytes()).max(1);
        (chunk - index % chunk).min(packets.saturating_sub(index))
    }

    /// The packet under the cursor is on its way.
    fn move_cursor(&mut self, cx: &mut Shared, psns: u32) {
        let Some(wqe) = self.sq.current() else { return };
        let next = self.req.next.plus(psns);
        if wqe.wants_response() {
            self.req.reads = self.req.reads.saturating_add(1);
        }
        if next == wqe.first.plus(wqe.packets) {
            self.sq.current += 1;
        }
        if self.is_unsent(self.req.next) {
            self.req.sent = next;
        } else {
            cx.counters.retransmitted_packets += 1;
            if next.since(self.req.una) > self.req.sent.since(self.req.una) {
                self.req.sent = next;
            }
        }
        self.req.next = next;
        if self.req.wait == Wait::Nothing {
            self.restart_ack_timer(cx);
        }
    }

    /// Whether no packet with this sequence number was ever sent.
    pub(super) const fn is_unsent(&self, psn: Psn) -> bool {
        psn.since(self.req.una) >= self.req.sent.since(self.req.una)
    }
}
