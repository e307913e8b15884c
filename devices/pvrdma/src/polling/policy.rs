//! When a process is worth polling.

use std::time::Duration;

use device_model::time::Instant;

/// When doorbell pages of processes are memory that the device polls (see [`crate::Pvrdma::allow_polling`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// Work requests within [`Polling::window`] by which a process becomes busy enough.
    pub busy_requests: u32,
    /// See [`Polling::busy_requests`].
    pub window: Duration,
    /// How long nothing may be posted before the device rests, at least.
    pub min_idle: Duration,
    /// The same at most: it is longer for processes that go on soon, and shorter for those that do not.
    pub max_idle: Duration,
    /// How long a process may leave a completion in its queue before it is taken to wait for a notification.
    pub patience: Duration,
    /// How long a process that asks for notifications is left alone, at first.
    pub min_pause: Duration,
    /// The same when it has done so again and again.
    pub max_pause: Duration,
}

impl Polling {
    /// What suits programs on a processor that is theirs.
    pub const DEFAULT: Self = Self {
        busy_requests: 16,
        window: Duration::from_millis(10),
        min_idle: Duration::from_micros(50),
        max_idle: Duration::from_millis(1),
        patience: Duration::from_micros(50),
        min_pause: Duration::from_millis(1),
        max_pause: Duration::from_secs(1),
    };
}

/// How busy a process is, and whether it may be polled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heat {
    /// When counting began.
    since: Instant,
    /// Work requests since then.
    requests: u32,
    /// It is left alone until then.
    not_before: Instant,
    /// How long it was last left alone.
    pause: Duration,
}

impl Heat {
    /// Counts work requests. Whether the process is to be polled.
    pub(super) fn count(&mut self, now: Instant, requests: u32, policy: &Polling) -> bool {
        if now - self.since > policy.window {
            (self.since, self.requests) = (now, 0);
        }
        self.requests = self.requests.saturating_add(requests);
        self.requests >= policy.busy_requests && now >= self.not_before
    }

    /// The process asked for a notification: it will not poll for a while.
    pub(super) fn cool(&mut self, now: Instant, policy: &Polling) {
        self.not_before = self.not_before.max(now + self.pause.max(policy.min_pause));
        self.requests = 0;
    }

    /// The process is not polled any more, after some time. If that was not worth the effort it is left alone for longer.
    pub(super) fn leave(&mut self, now: Instant, stayed: Duration, policy: &Polling) {
        let longer = if stayed > 10 * self.pause { policy.min_pause } else { 2 * self.pause };
        self.pause = longer.clamp(policy.min_pause, policy.max_pause);
        self.cool(now, policy);
    }

    /// The process cannot be polled.
    pub(super) fn refuse(&mut self, now: Instant, policy: &Polling) {
        self.pause = policy.max_pause;
        self.cool(now, policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Polling = Polling::DEFAULT;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn only_many_requests_in_a_short_time_make_a_process_busy() {
        let mut heat = Heat::default();
        assert!((1..1000).all(|i| !heat.count(at(i * 1000), 1, &POLICY)), "one a millisecond is little");
        assert!(!heat.count(at(2_000_000), 15, &POLICY));
        assert!(heat.count(at(2_000_001), 1, &POLICY));
    }

    #[test]
    fn a_process_that_soon_leaves_is_left_alone_longer_each_time() {
        let mut heat = Heat::default();
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..15 {
            heat.leave(now, Duration::from_micros(5), &POLICY);
            let start = now;
            while !heat.count(now, 64, &POLICY) {
                now = now + Duration::from_micros(100);
            }
            pauses.push(now - start);
        }
        assert_eq!(pauses[0], POLICY.min_pause);
        assert!(pauses.windows(2).all(|pair| pair[0] < pair[1] || pair[1] == POLICY.max_pause), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&POLICY.max_pause));
        heat.leave(now, Duration::from_secs(11), &POLICY);
        assert!(!heat.count(now, 64, &POLICY));
        assert!(heat.count(now + POLICY.min_pause, 64, &POLICY), "it was worth while");
    }
}
