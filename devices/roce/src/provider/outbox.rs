//! Frames on their way to the link.

use std::io::IoSlice;
use std::ops::Range;

use device_model::net::MAX_FRAME;
use smallvec::SmallVec;

/// Bytes after which a batch is sent: what links take in one call, and little enough to stay in a processor's cache.
const BATCH_BYTES: usize = 64 << 10;
/// Frames after which it is.
const BATCH_FRAMES: usize = 64;

/// Frames that are built in one piece of memory, one after the other, and then sent together.
pub(super) struct Outbox {
    bytes: Box<[u8]>,
    frames: SmallVec<[Range<usize>; BATCH_FRAMES]>,
    /// How many of them the link has taken.
    taken: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BATCH_BYTES + MAX_FRAME].into(), frames: SmallVec::new(), taken: 0 }
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.end)
    }

    /// Whether it has to be sent before there is another frame.
    pub(super) fn is_full(&self) -> bool {
        self.end() >= BATCH_BYTES || self.frames.len() >= BATCH_FRAMES
    }

    /// Adds the frame that `build` puts at the start of a place, and the length of which it returns.
    pub(super) fn push(&mut self, build: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<()> {
        let start = self.end();
        let len = build(self.bytes.get_mut(start..)?)?;
        self.frames.push(start..start.checked_add(len)?);
        Some(())
    }

    /// The frames that the link has not taken.
    pub(super) fn waiting(&self) -> SmallVec<[IoSlice<'_>; BATCH_FRAMES]> {
        let waiting = self.frames.iter().skip(self.taken);
        waiting.filter_map(|frame| self.bytes.get(frame.clone()).map(IoSlice::new)).collect()
    }

    /// The link took so many more. Returns how many are left.
    pub(super) fn take(&mut self, count: usize) -> usize {
        self.taken += count;
        let left = self.frames.len().saturating_sub(self.taken);
        if left == 0 {
            self.clear();
        }
        left
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.taken = 0;
    }
}
