//! The sending half of a reliable connection (IBTA 9.7.3 and 9.7.5): go-back-N.
//!
//! The send queue is the retransmission buffer: every unfinished work request keeps the range of sequence numbers it took,
//! and a cursor says which packet is next. To send again is to put the cursor back.
//!
//! ```text
//!      una                next               sent
//!  ─────┼──────────────────┼──────────────────┼─────────────▶ PSN
//!  done │ sent, cursor is  │ sent before the  │ never sent
//!       │ past it          │ cursor went back │
//! ```

mod ack;
mod complete;
mod local;
mod read;
mod retry;
pub(crate) mod save;
mod send;
mod window;

use std::collections::VecDeque;

use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::{Error, QpState, SendOp, SendWr, WcStatus};

use self::window::Window;
use super::qp::Qp;
use super::shared::Shared;
use crate::psn::Psn;

/// How far a work request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// Nothing of it has happened.
    Waiting,
    /// It owns sequence numbers.
    Sent,
    /// It needed no packets and has been carried out, but older requests are unfinished.
    Done,
}

/// An unfinished send work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SendWqe {
    pub(super) wr: SendWr,
    phase: Phase,
    /// First sequence number.
    first: Psn,
    /// Sequence numbers taken.
    packets: u32,
    /// Bytes of the message.
    len: u32,
}

impl SendWqe {
    /// Notes the bytes of a datagram for its completion.
    pub(super) const fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    /// Whether the peer answers it with data.
    const fn wants_response(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// Unfinished send work requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pub(super) wqes: VecDeque<SendWqe>,
    /// The one the cursor is in.
    current: usize,
}

impl SendQueue {
    fn front(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }

    fn current(&self) -> Option<&SendWqe> {
        self.wqes.get(self.current)
    }

    /// Whether nothing is in progress.
    pub(super) fn is_drained(&self) -> bool {
        self.front().is_none_or(|wqe| wqe.phase == Phase::Waiting)
    }
}

/// What a requester waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Nothing,
    /// An acknowledgement.
    Ack {
        /// When to ask whether one was lost.
        probe: Instant,
        /// When that costs a retry.
        give_up: Instant,
    },
    /// The peer to post a receive, until then.
    Rnr(Instant),
}

/// State of the sending half.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Oldest sequence number not acknowledged.
    una: Psn,
    /// Next one to send: the cursor.
    pub(super) next: Psn,
    /// First one never sent.
    sent: Psn,
    /// READ and atomic requests between `una` and the cursor.
    reads: u8,
    /// Transport retries left.
    retries: u8,
    /// RNR retries left.
    rnr_retries: u8,
    /// Time-outs since the last progress.
    timeouts: u8,
    /// Probes since the last progress or time-out.
    probes: u8,
    wait: Wait,
    /// The current request cannot be carried out; it ends this way once all before it have ended.
    failed: Option<WcStatus>,
    /// The cursor went back because of a lost response, and nothing came since.
    implied_nak: bool,
    window: Window,
    /// The window was halved when this was the first sequence number never sent; notifications before it is acknowledged are
    /// about packets of the larger window.
    slowed_until: Option<Psn>,
}

impl Requester {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Ack { probe, give_up } => Some(probe.min(give_up)),
            Wait::Rnr(at) => Some(at),
        }
    }
}

impl Qp {
    /// Queues a send work request.
    pub(crate) fn post_send(&mut self, cx: &mut Shared, wr: SendWr) -> Result<(), Error> {
        match self.state() {
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(Error::Transition),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
        }
        if self.sq.wqes.len() >= self.init.cap.max_send_wr as usize {
            return Err(Error::Exhausted);
        }
        if wr.sges.len() > self.init.cap.max_send_sge as usize {
            return Err(Error::Invalid("scatter/gather list is longer than the queue allows"));
        }
        self.sq.wqes.push_back(SendWqe {
            wr,
            phase: Phase::Waiting,
            first: Psn::default(),
            packets: 0,
            len: 0,
        });
        match self.state() {
            QpState::Sqe | QpState::Err => self.flush_send(cx),
            _ => self.wake(cx),
        }
        Ok(())
    }

    /// Sets the requester up as the attributes say.
    pub(crate) fn start_requester(&mut self, cx: &Shared) {
        let first = Psn::new(self.attr.sq_psn);
        self.req = Requester {
            una: first,
            next: first,
            sent: first,
            window: Window::new(&cx.config, self.mtu()),
            ..Requester::default()
        };
        self.restore_budgets();
    }
}
