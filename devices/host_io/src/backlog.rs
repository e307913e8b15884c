//! A bounded queue of messages that the kernel's socket buffer had no room for.

use std::collections::VecDeque;
use std::io::IoSlice;

/// What one queued message costs beside its bytes, so that a flood of tiny messages is bounded too.
const OVERHEAD: usize = 64;

/// Messages waiting for room, oldest first.
#[derive(Debug)]
pub(crate) struct Backlog {
    messages: VecDeque<Box<[u8]>>,
    used: usize,
    limit: usize,
}

impl Backlog {
    /// An empty queue that holds at most `limit` bytes, the overhead of each message included.
    pub(crate) fn new(limit: usize) -> Self {
        Self { messages: VecDeque::new(), used: 0, limit }
    }

    /// Copies the message made of `parts` to the end; `false` when it does not fit.
    pub(crate) fn push(&mut self, parts: &[IoSlice<'_>]) -> bool {
        let cost = parts.iter().map(|p| p.len()).sum::<usize>().saturating_add(OVERHEAD);
        if cost > self.limit.saturating_sub(self.used) {
            return false;
        }
        let mut message = Vec::with_capacity(cost - OVERHEAD);
        parts.iter().for_each(|p| message.extend_from_slice(p));
        self.messages.push_back(message.into_boxed_slice());
        self.used += cost;
        true
    }

    /// The oldest message.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.messages.front().map(AsRef::as_ref)
    }

    /// Forgets the oldest message.
    pub(crate) fn pop(&mut self) {
        if let Some(message) = self.messages.pop_front() {
            self.used -= message.len() + OVERHEAD;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Forgets everything and returns how many messages that were.
    pub(crate) fn clear(&mut self) -> usize {
        let lost = self.messages.len();
        self.messages.clear();
        self.used = 0;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_beyond_the_limit_is_refused_until_something_leaves() {
        let mut backlog = Backlog::new(2 * (OVERHEAD + 10));
        let message = [1_u8; 10];
        assert!(backlog.push(&[IoSlice::new(&message)]));
        assert!(backlog.push(&[IoSlice::new(&message[..4]), IoSlice::new(&message[4..])]));
        assert!(!backlog.push(&[IoSlice::new(&[])]));
        backlog.pop();
        assert!(backlog.push(&[IoSlice::new(&message)]));
        assert_eq!(backlog.front(), Some(&message[..]));
        assert_eq!(backlog.clear(), 2);
        assert_eq!((backlog.is_empty(), backlog.used), (true, 0));
    }
}
