//! When memory has been copied often enough, and how hard the machine is held back until then. No I/O, no clock.

use std::time::Duration;

/// What a machine is held back by first, and how much more each time, in percent of its time.
const FIRST_BRAKE: u8 = 20;
const MORE_BRAKE: u8 = 10;
/// A machine that moves at all is never held back more.
const MAX_BRAKE: u8 = 99;
/// What saving and restoring everything but memory is taken to need.
const STATE: Duration = Duration::from_millis(5);

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// Bytes of memory that were copied, zeros included.
    pub(super) copied: u64,
    /// Bytes that were sent for them.
    pub(super) sent: u64,
    /// How long that took.
    pub(super) took: Duration,
    /// Bytes that were written to meanwhile.
    pub(super) dirty: u64,
}

impl Round {
    /// Bytes sent a second.
    pub(super) fn rate(&self) -> u64 {
        per_second(self.sent, self.took)
    }

    /// Bytes a second that were written to.
    pub(super) fn dirty_rate(&self) -> u64 {
        per_second(self.dirty, self.took)
    }
}

fn per_second(bytes: u64, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Stop the machine: the rest takes no longer than it may.
    Stop,
    /// Copy once more, with the machine held back for so many percent of its time.
    Again(u8),
}

/// The rounds of a migration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    limit: Duration,
    may_brake: bool,
    brake: u8,
    /// Best rate so far. What a small round takes says little about the network.
    rate: u64,
}

impl Rounds {
    /// For a machine that may stand still for so long, and may be held back or not.
    pub(super) const fn new(limit: Duration, may_brake: bool) -> Self {
        Self { limit, may_brake, brake: 0, rate: 0 }
    }

    /// How long the machine would stand still if it were stopped now.
    pub(super) fn expected(&self, dirty: u64) -> Duration {
        let nanos = u128::from(dirty) * 1_000_000_000 / u128::from(self.rate.max(1));
        STATE.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Judges a round.
    pub(super) fn judge(&mut self, round: &Round) -> Verdict {
        self.rate = self.rate.max(round.rate());
        if round.dirty == 0 || self.expected(round.dirty) <= self.limit {
            return Verdict::Stop;
        }
        // A round that leaves more than half of itself to the next one will be followed by too many.
        if self.may_brake && round.dirty > round.copied / 2 {
            self.brake = if self.brake == 0 { FIRST_BRAKE } else { (self.brake + MORE_BRAKE).min(MAX_BRAKE) };
        }
        Verdict::Again(self.brake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn round(copied: u64, dirty: u64) -> Round {
        Round { copied, sent: copied, took: SECOND, dirty }
    }

    #[test]
    fn stops_when_the_rest_is_short_enough() {
        let mut rounds = Rounds::new(Duration::from_millis(105), true);
        assert_eq!(rounds.judge(&round(1000, 101)), Verdict::Again(0));
        assert_eq!(rounds.judge(&round(101, 100)), Verdict::Stop, "at the best rate seen");
        assert_eq!(Rounds::new(Duration::ZERO, true).judge(&round(5, 0)), Verdict::Stop);
    }

    #[test]
    fn whoever_writes_too_much_is_held_back_until_it_does_not() {
        // A machine of a megabyte that writes four times as fast as the network.
        let run = |may_brake| {
            let mut rounds = Rounds::new(Duration::from_millis(30), may_brake);
            let (mut brake, mut left) = (0, 1_000_000);
            for _ in 0..40 {
                let took = Duration::from_micros(left);
                let dirty = (4 * left * (100 - u64::from(brake)) / 100).min(1_000_000);
                match rounds.judge(&Round { copied: left, sent: left, took, dirty }) {
                    Verdict::Stop => return Some(brake),
                    Verdict::Again(next) => {
                        assert!(next >= brake && next <= MAX_BRAKE);
                        (brake, left) = (next, dirty);
                    }
                }
            }
            None
        };
        assert!(run(true).is_some_and(|brake| brake > FIRST_BRAKE));
        assert_eq!(run(false), None);
    }
}
