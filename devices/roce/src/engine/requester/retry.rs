//! Time-outs, and going back.

use std::time::Duration;

use verbs::{QpState, WcStatus};

use super::Wait;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;

/// The retry count that never runs out; only for RNR, seven transport retries are seven.
const FOR_EVER: u8 = 7;

/// RNR timer codes in units of 10 µs (IBTA table 45).
const RNR_TIMERS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

fn rnr_delay(code: u8) -> Duration {
    let units = RNR_TIMERS[usize::from(code & 0x1f)];
    Duration::from_micros(u64::from(units) * 10)
}

impl Qp {
    /// Progress was made: all retries may be used again.
    pub(crate) const fn restore_budgets(&mut self) {
        self.req.retries = self.attr.retry_cnt;
        self.req.rnr_retries = self.attr.rnr_retry;
        self.req.timeouts = 0;
    }

    /// Waits for an acknowledgement from now on, or for ever if the time-out is 0.
    ///
    /// The specification allows one to four times the nominal interval; it is used up as the silence lasts, so that a peer
    /// that is merely slow gets all the time there is.
    pub(super) fn restart_ack_timer(&mut self, cx: &Shared) {
        self.req.probes = 0;
        self.req.wait = match self.attr.timeout {
            0 => Wait::Nothing,
            exponent => {
                let nominal = Duration::from_nanos(4096 << (exponent & 0x1f));
                let interval = nominal * (1 << self.req.timeouts.min(2));
                let give_up = cx.now + interval.max(cx.config.min_ack_timeout);
                Wait::Ack { probe: cx.now + cx.config.probe_after, give_up }
            }
        };
    }

    /// Sends the oldest unacknowledged packet again, and no other until it is answered. If it was an acknowledgement that
    /// got lost, or nothing at all, this costs one packet; and a loss that nothing after it can show is repaired long before
    /// the time-out, which programs choose in seconds. It costs no retry.
    fn probe(&mut self, cx: &mut Shared) {
        cx.counters.probes += 1;
        self.req.probes = self.req.probes.saturating_add(1);
        if let Wait::Ack { probe, .. } = &mut self.req.wait {
            *probe = cx.now + cx.config.probe_after * (1 << self.req.probes.min(16));
        }
        self.req.window.collapse();
        self.rewind();
        self.wake(cx);
    }

    /// The requester's deadline has passed.
    pub(crate) fn deadline_passed(&mut self, cx: &mut Shared) {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.req.wait = Wait::Nothing;
            return;
        }
        match self.req.wait {
            Wait::Nothing => {}
            Wait::Rnr(_) => {
                self.req.wait = Wait::Nothing;
                self.wake(cx);
            }
            Wait::Ack { give_up, .. } if cx.now < give_up => self.probe(cx),
            Wait::Ack { .. } => {
                cx.counters.ack_timeouts += 1;
                self.req.timeouts = self.req.timeouts.saturating_add(1);
                self.retry(cx);
            }
        }
    }

    /// Sends everything unacknowledged again, if a retry is left.
    pub(super) fn retry(&mut self, cx: &mut Shared) {
        let Some(left) = self.req.retries.checked_sub(1) else {
            self.fail_front(cx, WcStatus::RetryExcErr);
            return;
        };
        self.req.retries = left;
        self.resend(cx);
    }

    /// A response that must have been sent did not come: asks for it again, once until something comes.
    pub(super) fn lost_response(&mut self, cx: &mut Shared) {
        if !self.req.implied_nak {
            self.req.implied_nak = true;
            cx.counters.implied_naks += 1;
            self.resend(cx);
        }
    }

    /// The peer has no receive posted for the oldest unacknowledged packet.
    pub(super) fn on_rnr_nak(&mut self, cx: &mut Shared, timer: u8) {
        cx.counters.rnr_naks_received += 1;
        if matches!(self.req.wait, Wait::Rnr(_)) {
            return;
        }
        if self.attr.rnr_retry != FOR_EVER {
            let Some(left) = self.req.rnr_retries.checked_sub(1) else {
                self.fail_front(cx, WcStatus::RnrRetryExcErr);
                return;
            };
            self.req.rnr_retries = left;
        }
        // One packet is enough to ask again; some peers answer each of those behind it with a sequence NAK.
        self.req.window.collapse();
        self.rewind();
        self.req.wait = Wait::Rnr(cx.now + rnr_delay(timer));
    }

    /// What was on its way is lost, through nobody's fault: sends it again.
    pub(crate) fn send_again(&mut self, cx: &mut Shared) {
        let alive = matches!(self.state(), QpState::Rts | QpState::Sqd);
        if alive && self.req.una != self.req.sent && !matches!(self.req.wait, Wait::Rnr(_)) {
            self.rewind();
            self.wake(cx);
        }
    }

    fn resend(&mut self, cx: &mut Shared) {
        self.req.window.on_loss();
        self.rewind();
        self.restart_ack_timer(cx);
        self.wake(cx);
    }

    /// Sends less at a time, once per round trip.
    pub(crate) fn slow_down(&mut self) {
        if self.req.slowed_until.is_none() {
            self.req.slowed_until = Some(self.req.sent);
            self.req.window.on_congestion();
            self.end_slow_down();
        }
    }

    /// Notes that what was sent before the window was halved has been acknowledged, if it has.
    pub(super) fn end_slow_down(&mut self) {
        let una = self.req.una;
        self.req.slowed_until = self.req.slowed_until.filter(|sent| sent.ahead_of(una) > 0);
    }

    /// Puts the cursor on the oldest unacknowledged packet.
    pub(super) const fn rewind(&mut self) {
        self.req.next = self.req.una;
        self.sq.current = 0;
        self.req.reads = 0;
        // Found again, if it is still so, when the cursor is back.
        self.req.failed = None;
    }
}
