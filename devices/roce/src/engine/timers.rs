//! Deadlines of queue pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use device_model::time::Instant;
use verbs::QpId;

/// When to look at which queue pair. Entries are never withdrawn: a queue pair that changed its mind is looked at in vain,
/// at most once per entry, and a queue pair without a deadline costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, QpId)>>);

impl Timers {
    pub(crate) fn push(&mut self, at: Instant, qp: QpId) {
        self.0.push(Reverse((at, qp)));
    }

    /// Takes the next entry that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<QpId> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, qp))| qp)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
