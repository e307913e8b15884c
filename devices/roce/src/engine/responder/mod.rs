//! The receiving half of a reliable connection (IBTA 9.7.4 and 9.7.5).
//!
//! Requests are taken strictly in order; data goes to its final place as it comes. Answers are state, not packets: what is
//! due goes out when the queue pair has its turn, so that one acknowledgement covers all that arrived in between and a link
//! that is full costs nothing but time.

mod ack;
mod atomic;
mod duplicate;
mod read;
mod receive;
pub(crate) mod save;
mod write;

use std::collections::VecDeque;

use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::{AsyncEvent, QpState, RecvWr, Segments, WcOpcode, WcStatus};

use self::read::Response;
use super::Payload;
use super::qp::Qp;
use super::shared::Shared;
use crate::psn::Psn;
use crate::wire::{NakCode, Packet, Pdu, Reth};

/// A message of several packets that is being received.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Inbound {
    Send { wr: RecvWr, got: u32 },
    Write { reth: Reth, got: u32 },
}

/// An acknowledgement that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    #[default]
    Nothing,
    /// All before the expected packet is done.
    Ack,
    /// The expected packet finds no receive posted.
    Rnr,
    /// The packet with this number is refused.
    Nak(NakCode, Psn),
}

/// What a duplicate of a request is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Resource {
    /// A READ, with the sequence numbers of its responses.
    Read { psn: Psn, packets: u32, reth: Reth },
    /// An atomic operation, with its result once it is known.
    Atomic { psn: Psn, original: Option<u64> },
}

/// State of the receiving half.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Sequence number of the next request packet.
    pub(super) expected: Psn,
    /// Messages completed.
    msn: u32,
    message: Option<Inbound>,
    reply: Reply,
    /// A NAK said what is missing; nothing more is said until it comes.
    nak_sent: bool,
    /// The latest READs and atomics, as many as may be outstanding.
    resources: VecDeque<Resource>,
    /// Answers with data that are due, in the order of their sequence numbers.
    responses: VecDeque<Response>,
    /// In the error state by its own NAK, which is still due.
    closing: bool,
    /// The connection is known to work.
    established: bool,
    /// A congestion notification is to be sent.
    pub(super) cnp_due: bool,
    /// Earliest time of the next one.
    pub(super) cnp_after: Instant,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted.
    Rnr,
    /// For good; with the status of the receive that the request had taken.
    Nak(NakCode, WcStatus),
}

impl Refusal {
    const INVALID: Self = Self::Nak(NakCode::InvalidRequest, WcStatus::RemInvReqErr);
    const ACCESS: Self = Self::Nak(NakCode::RemoteAccess, WcStatus::RemAccessErr);
    /// The receive is shorter than the message.
    const TOO_LONG: Self = Self::Nak(NakCode::InvalidRequest, WcStatus::LocLenErr);
    /// The receive names memory that its poster may not write.
    const BAD_RECEIVE: Self = Self::Nak(NakCode::RemoteOperation, WcStatus::LocProtErr);
}

/// What the parts of the responder need of a request packet.
struct Request<'a> {
    psn: Psn,
    ack_req: bool,
    solicited: bool,
    payload: &'a Payload,
}

impl Request<'_> {
    fn len(&self) -> u32 {
        self.payload.len()
    }
}

impl Responder {
    /// Forgets what can no longer be finished; keeps a refusal that the peer has to hear.
    pub(super) fn stop(&mut self) {
        if !self.closing {
            self.responses.clear();
            self.reply = Reply::Nothing;
        }
    }

    /// Drops the message that is being received; returns the name of its receive.
    pub(super) fn abandon_receive(&mut self) -> Option<u64> {
        match self.message.take() {
            Some(Inbound::Send { wr, .. }) => Some(wr.wr_id),
            Some(Inbound::Write { .. }) | None => None,
        }
    }
}

impl Qp {
    /// Takes a request of the peer.
    pub(crate) fn on_request(&mut self, cx: &mut Shared, packet: &Packet, payload: &Payload) {
        self.note_established(cx);
        let ahead = packet.psn.ahead_of(self.resp.expected);
        if ahead < 0 {
            self.on_duplicate(cx, packet);
        } else if ahead > 0 {
            self.on_gap(cx);
        } else {
            let request =
                Request { psn: packet.psn, ack_req: packet.ack_req, solicited: packet.solicited, payload };
            if let Err(refusal) = self.execute(cx, &packet.pdu, &request) {
                self.refuse(cx, refusal);
            }
        }
    }

    /// Where the payload of a request belongs, if the request will be carried out and has one. What it needs of a receive
    /// queue is taken.
    pub(crate) fn request_target(
        &mut self,
        cx: &mut Shared,
        packet: &Packet,
        payload: &Payload,
    ) -> Option<Segments> {
        let request =
            Request { psn: packet.psn, ack_req: packet.ack_req, solicited: packet.solicited, payload };
        match packet.pdu {
            _ if packet.psn != self.resp.expected || payload.len() == 0 => None,
            Pdu::Send { at, .. } | Pdu::SendInv { at, .. } => self.send_target(cx, &request, at),
            Pdu::Write { at, reth, imm } => {
                self.check_write(cx, &request, at, reth, imm).ok().map(|(.., to)| to)
            }
            _ => None,
        }
    }

    fn execute(&mut self, cx: &mut Shared, pdu: &Pdu, request: &Request<'_>) -> Result<(), Refusal> {
        match *pdu {
            Pdu::Send { at, imm } => self.on_send(cx, request, at, imm.map(receive::Extra::Immediate)),
            Pdu::SendInv { at, rkey } => {
                self.on_send(cx, request, at, Some(receive::Extra::Invalidate(rkey)))
            }
            Pdu::Write { at, reth, imm } => self.on_write(cx, request, at, reth, imm),
            Pdu::ReadRequest(reth) => self.on_read_request(cx, request, reth),
            Pdu::Atomic(eth) => self.on_atomic(cx, request, eth),
            // The caller sends responses and datagrams elsewhere.
            _ => Err(Refusal::INVALID),
        }
    }

    fn note_established(&mut self, cx: &mut Shared) {
        if self.state() == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            cx.event(AsyncEvent::CommEst(self.id));
        }
    }

    /// A packet came before the expected one: says so once.
    fn on_gap(&mut self, cx: &mut Shared) {
        cx.counters.out_of_sequence += 1;
        if !self.resp.nak_sent {
            self.resp.nak_sent = true;
            self.resp.reply = Reply::Nak(NakCode::Sequence, self.resp.expected);
            cx.counters.sequence_naks_sent += 1;
            self.wake(cx);
        }
    }

    /// The expected packet was carried out and took `psns` sequence numbers.
    fn executed(&mut self, cx: &mut Shared, request: &Request<'_>, psns: u32, ends: bool) {
        self.resp.expected = self.resp.expected.plus(psns);
        self.resp.nak_sent = false;
        if ends {
            self.resp.msn = (self.resp.msn + 1) & Psn::MASK;
        }
        if self.resp.reply != Reply::Ack {
            self.resp.reply = Reply::Nothing;
        }
        if request.ack_req {
            self.resp.reply = Reply::Ack;
            self.wake(cx);
        }
    }

    /// Tells the peer that the expected packet is not carried out; for good means that the queue pair fails too.
    fn refuse(&mut self, cx: &mut Shared, refusal: Refusal) {
        match refusal {
            Refusal::Rnr => {
                cx.counters.rnr_naks_sent += 1;
                self.resp.nak_sent = true;
                self.resp.reply = Reply::Rnr;
                self.wake(cx);
            }
            Refusal::Nak(code, status) => {
                let receive = self.resp.abandon_receive();
                self.close(cx, code, self.resp.expected, status, receive);
            }
        }
    }

    /// Fails the queue pair, with a NAK as its last word. The receive that the request had taken tells the own side, or an
    /// event does.
    fn close(&mut self, cx: &mut Shared, code: NakCode, psn: Psn, status: WcStatus, receive: Option<u64>) {
        match code {
            NakCode::Sequence => {}
            NakCode::InvalidRequest => cx.counters.invalid_request_naks_sent += 1,
            NakCode::RemoteAccess => cx.counters.remote_access_naks_sent += 1,
            NakCode::RemoteOperation => cx.counters.remote_operation_naks_sent += 1,
        }
        match receive {
            Some(wr_id) => {
                let completion = self.completion(self.init.recv_cq, wr_id, WcOpcode::Recv, status);
                self.complete_recv(cx, completion);
            }
            None => cx.event(match code {
                NakCode::RemoteAccess => AsyncEvent::QpAccessErr(self.id),
                NakCode::RemoteOperation => AsyncEvent::QpFatal(self.id),
                NakCode::InvalidRequest | NakCode::Sequence => AsyncEvent::QpReqErr(self.id),
            }),
        }
        self.resp.reply = Reply::Nak(code, psn);
        self.resp.closing = true;
        self.fail(cx);
        self.wake(cx);
    }
}
