//! Rings to look at.

use std::collections::VecDeque;

use super::Source;

/// Rings to look at, those of receives first: a message that finds no receive request costs its sender a time-out, even if
/// the request was posted long before the message was sent.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    receives: VecDeque<Source>,
    sends: VecDeque<Source>,
}

impl ReadyQueue {
    /// Adds a ring that is not in the queue.
    pub(crate) fn push(&mut self, source: Source) {
        match source {
            Source::Recv(_) | Source::Srq(_) => self.receives.push_back(source),
            Source::Send(_) => self.sends.push_back(source),
            Source::Poll(_) => {}
        }
    }

    /// Takes the next ring out.
    pub(crate) fn pop(&mut self) -> Option<Source> {
        self.receives.pop_front().or_else(|| self.sends.pop_front())
    }

    /// Takes the next ring of receives out.
    pub(crate) fn pop_receive(&mut self) -> Option<Source> {
        self.receives.pop_front()
    }

    /// Whether there is nothing to look at.
    pub(crate) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.sends.is_empty()
    }

    /// Forgets all rings.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
