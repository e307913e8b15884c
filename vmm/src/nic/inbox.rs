//! Frames taken from a link and not yet given to a device.

use std::io;
use std::ops::Range;

use device_model::net::{Link, MAX_FRAME};

/// Bytes of frames in a batch; the last one may reach past them.
const BATCH_BYTES: usize = 256 << 10;
/// Frames in a batch.
pub(super) const BATCH_FRAMES: usize = 64;

/// A batch of received frames, in one piece of memory that is used again.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    frames: Vec<Range<usize>>,
}

impl Inbox {
    /// An empty batch.
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_BYTES + MAX_FRAME].into_boxed_slice(),
            frames: Vec::with_capacity(BATCH_FRAMES),
        }
    }

    /// Replaces the batch by what waits at `link`, as far as it fits.
    ///
    /// # Errors
    ///
    /// The link's; the frames before it are in the batch.
    pub(super) fn fill(&mut self, link: &dyn Link) -> io::Result<()> {
        self.frames.clear();
        link.recv_batch(&mut self.bytes, BATCH_FRAMES, &mut self.frames)
    }

    /// The frames of the batch in the order they came.
    pub(super) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(|frame| &self.bytes[frame.clone()])
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;

    #[test]
    fn batch_is_bounded_and_keeps_the_order() {
        let (a, b) = host_io::pair::pair(9000).unwrap();
        let send = |number: u8| a.send(&[IoSlice::new(&[number; 100])]).unwrap();
        (0..=u8::try_from(BATCH_FRAMES).unwrap()).for_each(send);
        let mut inbox = Inbox::new();
        inbox.fill(&b).unwrap();
        let firsts: Vec<_> = inbox.frames().map(|frame| usize::from(frame[0])).collect();
        assert_eq!(firsts, (0..BATCH_FRAMES).collect::<Vec<_>>());
        inbox.fill(&b).unwrap();
        assert_eq!(inbox.frames().map(|frame| (frame[0], frame.len())).collect::<Vec<_>>(), [(64, 100)]);
        inbox.fill(&b).unwrap();
        assert_eq!(inbox.frames().count(), 0);
    }
}
