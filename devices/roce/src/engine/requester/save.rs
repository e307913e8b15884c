//! The sending half as it is saved.

use std::collections::VecDeque;
use std::time::Duration;

use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::{Error, QpState, SendOp, WcStatus};

use super::window::Window;
use super::{Phase, Requester, SendQueue, SendWqe, Wait};
use crate::engine::config::MAX_MESSAGE;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;
use crate::psn::Psn;

/// Most packets that can be unacknowledged: half of all sequence numbers (IBTA 9.7.2).
const MAX_OUTSTANDING: u32 = 1 << 23;

/// What the requester waits for, and for how much longer.
#[derive(Debug, Serialize, Deserialize)]
enum WaitState {
    Nothing,
    Ack { give_up: Duration },
    Rnr(Duration),
}

/// State of the sending half. Work requests of the guest are saved as they were taken: it may have overwritten them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RequesterState {
    wqes: Vec<SendWqe>,
    current: u32,
    una: Psn,
    next: Psn,
    sent: Psn,
    reads: u8,
    retries: u8,
    rnr_retries: u8,
    timeouts: u8,
    wait: WaitState,
    failed: Option<WcStatus>,
    window: u16,
}

impl RequesterState {
    pub(crate) fn of(queue: &SendQueue, requester: &Requester, now: Instant) -> Self {
        let SendQueue { wqes, current } = queue;
        // What is left out is about packets that are on their way, and those are lost.
        let Requester {
            una,
            next,
            sent,
            reads,
            retries,
            rnr_retries,
            timeouts,
            probes: _,
            wait,
            failed,
            implied_nak: _,
            window,
            slowed_until: _,
        } = requester;
        Self {
            wqes: wqes.iter().cloned().collect(),
            current: u32::try_from(*current).unwrap_or(u32::MAX),
            una: *una,
            next: *next,
            sent: *sent,
            reads: *reads,
            retries: *retries,
            rnr_retries: *rnr_retries,
            timeouts: *timeouts,
            wait: match *wait {
                Wait::Nothing => WaitState::Nothing,
                Wait::Ack { give_up, .. } => WaitState::Ack { give_up: give_up - now },
                Wait::Rnr(at) => WaitState::Rnr(at - now),
            },
            failed: *failed,
            window: window.size(),
        }
    }

    /// Checks that the sequence numbers of the work requests follow one another, and that the cursor is among them.
    fn check(&self, qp: &Qp) -> Result<(), Error> {
        let invalid = |what| Err(Error::Invalid(what));
        let cap = &qp.init.cap;
        if self.wqes.len() > cap.max_send_wr as usize || self.current as usize > self.wqes.len() {
            return invalid("send queue is longer than it can be");
        }
        if self.wqes.iter().any(|wqe| wqe.wr.sges.len() > cap.max_send_sge as usize) {
            return invalid("scatter/gather list of a send is longer than it can be");
        }
        let outstanding = self.sent.since(self.una);
        if outstanding > MAX_OUTSTANDING || self.next.since(self.una) > outstanding {
            return invalid("sequence numbers of the requester");
        }
        let mut begun = self.wqes.iter().filter(|wqe| wqe.phase == Phase::Sent);
        let Some(first) = begun.next() else {
            // In the error state all requests are gone, whatever is unacknowledged.
            let quiet = outstanding == 0 || qp.state() == QpState::Err;
            return if quiet { Ok(()) } else { invalid("packets are unacknowledged, but no request") };
        };
        if self.una.since(first.first) >= first.packets {
            return invalid("oldest unacknowledged packet is of no request");
        }
        let mut end = check_wqe(qp, first)?;
        for wqe in begun {
            if wqe.first != end {
                return invalid("requests do not follow one another");
            }
            end = check_wqe(qp, wqe)?;
        }
        let all = end.since(self.una);
        if outstanding > all || all > MAX_OUTSTANDING {
            return invalid("more packets were sent than there are");
        }
        self.check_cursor(end)
    }

    /// Checks that the cursor is in the request that it says.
    fn check_cursor(&self, end: Psn) -> Result<(), Error> {
        let fits = match self.wqes.get(self.current as usize) {
            Some(SendWqe { phase: Phase::Sent, first, packets, .. }) => self.next.since(*first) < *packets,
            Some(SendWqe { phase: Phase::Waiting, .. }) | None => self.next == end,
            Some(SendWqe { phase: Phase::Done, .. }) => true,
        };
        if fits { Ok(()) } else { Err(Error::Invalid("the cursor is in no request")) }
    }

    /// Restores both into a queue pair.
    pub(crate) fn restore(self, qp: &mut Qp, cx: &Shared) -> Result<(), Error> {
        if qp.is_rc() {
            self.check(qp)?;
        } else if self.wqes.len() > qp.init.cap.max_send_wr as usize
            || self.current != 0
            || self.wqes.iter().any(|wqe| wqe.phase != Phase::Waiting)
        {
            return Err(Error::Invalid("send queue of datagrams"));
        }
        let mut window = Window::new(&cx.config, qp.mtu());
        window.resize(self.window);
        qp.sq = SendQueue { wqes: VecDeque::from(self.wqes), current: self.current as usize };
        qp.req = Requester {
            una: self.una,
            next: self.next,
            sent: self.sent,
            reads: self.reads,
            retries: self.retries,
            rnr_retries: self.rnr_retries,
            timeouts: self.timeouts,
            wait: match self.wait {
                WaitState::Nothing => Wait::Nothing,
                WaitState::Ack { give_up } => {
                    let give_up = cx.now + give_up.max(cx.config.min_ack_timeout);
                    Wait::Ack { probe: cx.now + cx.config.probe_after, give_up }
                }
                WaitState::Rnr(left) => Wait::Rnr(cx.now + left),
            },
            failed: self.failed,
            window,
            ..Requester::default()
        };
        Ok(())
    }
}

/// Checks one request that owns sequence numbers; returns the first one after it.
fn check_wqe(qp: &Qp, wqe: &SendWqe) -> Result<Psn, Error> {
    let one_packet = matches!(wqe.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    let packets = if one_packet { 1 } else { qp.packets(wqe.len) };
    if wqe.len > MAX_MESSAGE || wqe.packets != packets {
        return Err(Error::Invalid("packets of a request"));
    }
    Ok(wqe.first.plus(packets))
}

impl Qp {
    /// What was on its way when the state was saved is lost: sends it again.
    pub(crate) fn resume(&mut self) {
        if self.is_rc() && self.req.sent != self.req.una && !matches!(self.req.wait, Wait::Rnr(_)) {
            self.rewind();
        }
    }
}
