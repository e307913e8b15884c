//! A process that is polled.

use std::time::Duration;

use device_model::doorbell::DoorbellPage;
use device_model::time::Instant;

use super::Polling;
use crate::state::Cq;
use crate::work::Source;

/// Rings of a process at most: each of them is looked at in every round.
const MAX_RINGS: usize = 64;

/// A process whose doorbell page is memory.
pub(super) struct Polled {
    pub(super) context: u32,
    /// Number of its doorbell page.
    pub(super) number: u32,
    pub(super) page: Box<dyn DoorbellPage>,
    /// Where it posts work requests.
    pub(super) rings: Vec<Source>,
    pub(super) queues: Vec<Untaken>,
    pub(super) entered: Instant,
    pub(super) pulse: Pulse,
}

/// Whether the device polls, and for how long it has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    /// It polls.
    Awake {
        /// When it last found something.
        active: Instant,
        /// How long it goes on without.
        idle: Duration,
        /// Whether it has found nothing since it was woken.
        vain: bool,
    },
    /// A write to the page wakes it.
    Resting {
        /// Since when.
        since: Instant,
        /// How long it had gone on before.
        idle: Duration,
    },
}

/// What to do with a process of which nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Go on.
    Poll,
    /// Wait for a write to its page.
    Rest,
    /// Poll it no more: it writes to its page without posting anything.
    Leave,
}

impl Pulse {
    pub(super) const fn start(now: Instant, policy: &Polling) -> Self {
        Self::Awake { active: now, idle: policy.min_idle, vain: false }
    }

    pub(super) const fn is_awake(&self) -> bool {
        matches!(self, Self::Awake { .. })
    }

    /// A write has woken the device. It will be more patient if that was soon, and less if not.
    pub(super) fn wake(&mut self, now: Instant, policy: &Polling) {
        if let Self::Resting { since, idle } = *self {
            let idle = if now - since < policy.max_idle { 2 * idle } else { idle / 2 };
            let idle = idle.clamp(policy.min_idle, policy.max_idle);
            *self = Self::Awake { active: now, idle, vain: true };
        }
    }

    /// Something was found.
    pub(super) const fn beat(&mut self, now: Instant) {
        if let Self::Awake { active, vain, .. } = self {
            (*active, *vain) = (now, false);
        }
    }

    /// Nothing was found.
    pub(super) fn miss(&self, now: Instant) -> Idle {
        match *self {
            Self::Awake { active, idle, vain } if now - active >= idle => {
                if vain {
                    Idle::Leave
                } else {
                    Idle::Rest
                }
            }
            _ => Idle::Poll,
        }
    }

    /// The device rests.
    pub(super) const fn rest(&mut self, now: Instant) {
        if let Self::Awake { idle, .. } = *self {
            *self = Self::Resting { since: now, idle };
        }
    }
}

/// A completion queue, and for how long nothing has been taken from it.
#[derive(Debug)]
pub(super) struct Untaken {
    pub(super) handle: u32,
    /// Completions that had been taken at the last look.
    taken: u64,
    /// Since when one waits and none is taken.
    since: Option<Instant>,
}

impl Untaken {
    pub(super) const fn new(handle: u32) -> Self {
        Self { handle, taken: 0, since: None }
    }

    /// Whether a completion waits.
    pub(super) const fn is_some(&self) -> bool {
        self.since.is_some()
    }

    /// Looks at the queue, in which `waiting` completions wait. Gives since when one has waited that the guest was not
    /// notified of.
    pub(super) fn look(&mut self, cq: &Cq, waiting: u32, now: Instant) -> Option<Instant> {
        let taken = cq.ring.produced() - u64::from(waiting);
        let told = cq.notified == cq.ring.produced();
        if waiting == 0 || told {
            self.since = None;
        } else if self.since.is_none() || self.taken != taken {
            self.since = Some(now);
        }
        self.taken = taken;
        self.since
    }
}

/// Whether so many rings and completion queues of a process are too many to be polled.
pub(super) const fn are_too_many(rings: usize, queues: usize) -> bool {
    rings > MAX_RINGS || queues > MAX_RINGS
}

impl Polled {
    /// Takes a new object in.
    pub(super) fn add(&mut self, source: Source) {
        match source {
            Source::Poll(handle) => self.queues.push(Untaken::new(handle)),
            ring => self.rings.push(ring),
        }
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, source: Source) {
        match source {
            Source::Poll(handle) => self.queues.retain(|queue| queue.handle != handle),
            ring => self.rings.retain(|other| *other != ring),
        }
    }

    /// Whether it has more rings than can be polled.
    pub(super) fn is_too_large(&self) -> bool {
        are_too_many(self.rings.len(), self.queues.len())
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
    fn a_device_that_finds_nothing_rests_and_one_that_is_woken_in_vain_leaves() {
        let mut pulse = Pulse::start(at(0), &POLICY);
        pulse.beat(at(100));
        assert_eq!(pulse.miss(at(149)), Idle::Poll);
        assert_eq!(pulse.miss(at(150)), Idle::Rest);
        pulse.rest(at(150));
        assert_eq!(pulse.miss(at(1000)), Idle::Poll, "it rests already");
        pulse.wake(at(200), &POLICY);
        assert_eq!(pulse.miss(at(299)), Idle::Poll, "it was woken soon, so it waits twice as long");
        assert_eq!(pulse.miss(at(300)), Idle::Leave);
        pulse.beat(at(250));
        assert_eq!(pulse.miss(at(350)), Idle::Rest);
    }
}
