//! Records from the device to itself.

use std::collections::VecDeque;

/// Buffers kept for re-use.
const SPARE: usize = 64;

/// A queue of records that turn around. Its length is bounded by its user, who takes all records that wait before it adds a
/// batch.
#[derive(Debug, Default)]
pub(super) struct Hairpin {
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Hairpin {
    pub(super) fn push(&mut self, record: &[u8]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(record);
        self.waiting.push_back(buffer);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front()
    }

    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(buffer);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}
