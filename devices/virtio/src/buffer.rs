//! Buffers: what a descriptor chain names, and the way back to the driver.

use std::sync::{Arc, Mutex};

use device_model::doorbell::Bell;
use device_model::ram::{GuestRam, Ram, RamError};

use crate::lock;

/// A run of guest memory named by one descriptor. It need not be RAM: each access checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
}

/// An access to [`Segments`] that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The segment is not RAM.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The access reaches beyond the last segment.
    #[error("Buffer ends before the access does")]
    Short,
}

/// Guest memory scattered over segments, addressed by byte offset from the start of the first.
#[derive(Clone)]
pub struct Segments {
    ram: Arc<Ram>,
    list: Vec<Segment>,
}

impl Segments {
    pub(crate) const fn new(ram: Arc<Ram>) -> Self {
        Self { ram, list: Vec::new() }
    }

    pub(crate) fn push(&mut self, segment: Segment) {
        self.list.push(segment);
    }

    /// Total length in bytes; at most 2^32 - 1 for all segments of one buffer.
    pub fn len(&self) -> u64 {
        self.list.iter().map(|segment| u64::from(segment.len)).sum()
    }

    /// Whether there is not a single byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments, for a device that passes addresses on instead of copying.
    pub fn as_slice(&self) -> &[Segment] {
        &self.list
    }

    /// The guest's memory.
    pub const fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Splits in two: `self` keeps the first `at` bytes, the rest is returned. Beyond the end the rest is empty.
    #[must_use]
    pub fn split_off(&mut self, at: u64) -> Self {
        let mut rest = Self::new(self.ram.clone());
        let mut left = at;
        for segment in std::mem::take(&mut self.list) {
            let head = u32::try_from(left).map_or(segment.len, |left| left.min(segment.len));
            left -= u64::from(head);
            if head > 0 {
                self.push(Segment { len: head, ..segment });
            }
            if head < segment.len {
                let gpa = segment.gpa.saturating_add(u64::from(head));
                rest.push(Segment { gpa, len: segment.len - head });
            }
        }
        rest
    }

    /// Copies guest bytes out, once.
    ///
    /// # Errors
    ///
    /// [`AccessError`]; `buf` may then be partly filled.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        let ram: &dyn GuestRam = &*self.ram;
        let mut rest = buf;
        for piece in self.pieces(offset) {
            let piece = piece.limited(rest.len());
            let (now, later) = rest.split_at_mut(piece.len as usize);
            ram.read(piece.gpa, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(AccessError::Short) }
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    ///
    /// [`AccessError`]; part of the bytes may then have been written.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), AccessError> {
        let ram: &dyn GuestRam = &*self.ram;
        let mut rest = buf;
        for piece in self.pieces(offset) {
            let piece = piece.limited(rest.len());
            let (now, later) = rest.split_at(piece.len as usize);
            ram.write(piece.gpa, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(AccessError::Short) }
    }

    /// What follows `offset`, segment by segment.
    fn pieces(&self, offset: u64) -> impl Iterator<Item = Segment> {
        let mut skip = offset;
        self.list.iter().filter_map(move |segment| {
            let skipped = u32::try_from(skip).map_or(segment.len, |skip| skip.min(segment.len));
            skip -= u64::from(skipped);
            let gpa = segment.gpa.checked_add(u64::from(skipped))?;
            (skipped < segment.len).then_some(Segment { gpa, len: segment.len - skipped })
        })
    }
}

impl Segment {
    fn limited(self, len: usize) -> Self {
        Self { len: u32::try_from(len).map_or(self.len, |len| len.min(self.len)), ..self }
    }
}

/// What the driver put into a queue: memory to read, memory to write, and the duty to give it back.
pub struct Buffer {
    /// What the driver wrote for the device.
    pub readable: Segments,
    /// What the device may write for the driver.
    pub writable: Segments,
    /// Gives the buffer back.
    pub token: Token,
}

/// The right to give one buffer back, from any thread. Dropped without completing it gives the buffer back with nothing
/// written. After a reset of the device it does nothing.
pub struct Token {
    completion: Completion,
    completions: Arc<Completions>,
}

impl Token {
    pub(crate) const fn new(head: u16, completions: Arc<Completions>) -> Self {
        Self { completion: Completion { head, written: 0, status: None }, completions }
    }

    /// Gives the buffer back with `written` bytes at the start of its writable segments.
    pub fn complete(mut self, written: u32) {
        self.completion.written = written;
    }

    /// Gives the buffer back with `written` bytes, behind which `status` goes to the single byte of `at`.
    ///
    /// The status is written by the I/O thread, and only if the device still may: a late completion cannot touch the
    /// memory of a guest that has reset the device.
    pub fn complete_with_status(mut self, written: u32, at: Segments, status: u8) {
        self.completion.written = written;
        self.completion.status = Some((at, status));
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let Completion { head, written, status } = &mut self.completion;
        self.completions.push(Completion { head: *head, written: *written, status: status.take() });
    }
}

/// A buffer on its way back.
pub(crate) struct Completion {
    pub(crate) head: u16,
    written: u32,
    status: Option<(Segments, u8)>,
}

impl Completion {
    /// Writes the status byte and returns how many bytes were written altogether.
    pub(crate) fn finish(&self) -> u32 {
        match &self.status {
            None => self.written,
            // A status byte outside RAM is the driver's own loss: the buffer still goes back.
            Some((at, status)) => at.write_at(0, &[*status]).map_or(0, |()| self.written.saturating_add(1)),
        }
    }
}

/// Buffers on their way back to one queue. Of one activation of the queue: a reset leaves late ones behind here.
pub(crate) struct Completions {
    state: Mutex<State>,
    bell: Arc<dyn Bell>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Completion>,
    /// Someone is going to look at `waiting`, so the bell need not ring.
    attended: bool,
    closed: bool,
}

impl Completions {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), bell })
    }

    fn push(&self, completion: Completion) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        state.waiting.push(completion);
        if !state.attended && state.waiting.len() == 1 {
            self.bell.ring();
        }
    }

    /// Promises to [`Completions::take`] until nothing is left.
    pub(crate) fn attend(&self) {
        lock(&self.state).attended = true;
    }

    /// What has come back since the last call.
    pub(crate) fn take(&self) -> Vec<Completion> {
        std::mem::take(&mut lock(&self.state).waiting)
    }

    /// Ends the promise of [`Completions::attend`]; `false` when something has come back in the meantime.
    pub(crate) fn leave(&self) -> bool {
        let mut state = lock(&self.state);
        state.attended = !state.waiting.is_empty();
        !state.attended
    }

    /// Forgets what comes back from now on.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    const RAM_SIZE: u64 = 0x4000;

    fn segments(list: &[(u64, u32)]) -> Segments {
        let ram = Ram::from_ranges(&[(GuestAddress(0), RAM_SIZE as usize)]).unwrap();
        let mut segments = Segments::new(Arc::new(ram));
        list.iter().for_each(|(gpa, len)| segments.push(Segment { gpa: *gpa, len: *len }));
        segments
    }

    fn list(segments: &Segments) -> Vec<(u64, u32)> {
        segments.as_slice().iter().map(|segment| (segment.gpa, segment.len)).collect()
    }

    #[test]
    fn split_cuts_the_segment_it_falls_into() {
        let mut head = segments(&[(0x100, 4), (0x200, 8), (0x300, 2)]);
        let tail = head.split_off(6);
        assert_eq!(list(&head), [(0x100, 4), (0x200, 2)]);
        assert_eq!(list(&tail), [(0x202, 6), (0x300, 2)]);
    }

    #[test]
    fn split_at_the_ends_leaves_one_side_empty() {
        let mut all = segments(&[(0x100, 4), (0x200, 8)]);
        assert!(all.split_off(12).is_empty());
        assert!(all.split_off(u64::MAX).is_empty());
        assert_eq!(all.split_off(0).len(), 12);
        assert!(all.is_empty());
    }

    #[test]
    fn bytes_written_across_segments_read_back() {
        let segments = segments(&[(0x100, 3), (0x180, 0), (0x200, 5)]);
        segments.write_at(1, &[1, 2, 3, 4, 5, 6]).unwrap();
        let mut all = [0xff; 8];
        segments.read_at(0, &mut all).unwrap();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 0]);
        let ram: &dyn GuestRam = &**segments.ram();
        assert_eq!(ram.read_obj::<[u8; 5]>(0x200), Ok([3, 4, 5, 6, 0]));
    }

    #[test]
    fn access_beyond_the_end_is_short_and_outside_ram_is_named() {
        assert_eq!(segments(&[(0x100, 4)]).read_at(2, &mut [0; 3]), Err(AccessError::Short));
        assert_eq!(segments(&[(0x100, 4)]).read_at(u64::MAX, &mut [0; 1]), Err(AccessError::Short));
        let outside = RamError { gpa: RAM_SIZE - 2, len: 4 };
        assert_eq!(segments(&[(RAM_SIZE - 2, 4)]).write_at(0, &[0; 4]), Err(outside.into()));
    }

    #[test]
    fn segment_that_wraps_is_refused() {
        let mut wrapping = segments(&[(u64::MAX - 1, 8)]);
        assert!(wrapping.write_at(4, &[0; 4]).is_err());
        assert!(wrapping.split_off(4).write_at(0, &[0; 4]).is_err());
    }
}
