//! Shared receive queues.

use std::collections::VecDeque;

use verbs::{PdId, RecvWr, SrqAttr};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    pub(crate) attr: SrqAttr,
    pub(crate) waiting: VecDeque<RecvWr>,
    /// Queue pairs that use it.
    pub(crate) users: u32,
}

impl Srq {
    /// Takes the oldest request. Says whether that crossed the limit, which disarms it.
    pub(crate) fn take(&mut self) -> Option<(RecvWr, bool)> {
        let wr = self.waiting.pop_front()?;
        let crossed = (self.waiting.len() as u64) < u64::from(self.attr.limit);
        if crossed {
            self.attr.limit = 0;
        }
        Some((wr, crossed))
    }
}
