//! Rings that the device empties: work queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_model::ram::GuestRam;
use pvrdma_spec::queue::{CONS_HEAD_OFFSET, PROD_TAIL_OFFSET};
use serde::{Deserialize, Serialize};

use super::{Indices, RingError, RingPages};

/// A ring the guest fills with work requests.
///
/// A slot is fetched when its request is handed to the provider, and retired, that is given back to the guest, when the
/// request is finished. The device trusts its own copies of both positions and only ever reads the guest's producer index.
#[derive(Debug)]
pub(crate) struct WorkRing {
    pages: Arc<RingPages>,
    indices: Indices,
    /// Byte offset of the indices.
    state: u64,
    /// Byte offset of slot 0.
    base: u64,
    /// Bytes of a slot; divides the page size.
    stride: u32,
    /// Next index to fetch.
    fetched: u32,
    /// Next index to retire.
    retired: u32,
    /// Set for good once the guest broke the ring.
    pub(crate) broken: bool,
    /// Whether the ring waits in the queue of rings to look at.
    pub(crate) queued: bool,
    /// Whether the provider had no room for the next request when it was last offered one.
    pub(crate) refused: bool,
}

/// Where a work ring lies in its pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Byte offset of the indices.
    pub(crate) state: u64,
    /// Byte offset of slot 0.
    pub(crate) base: u64,
    /// Bytes of a slot.
    pub(crate) stride: u32,
}

/// A work ring as it is saved; its size follows from the queue it belongs to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WorkRingState {
    fetched: u32,
    retired: u32,
    broken: bool,
    /// Byte offset of slot 0.
    pub(crate) base: u64,
}

impl WorkRing {
    /// A new ring that starts at index 0.
    pub(crate) const fn new(pages: Arc<RingPages>, indices: Indices, placement: Placement) -> Self {
        let Placement { state, base, stride } = placement;
        Self {
            pages,
            indices,
            state,
            base,
            stride,
            fetched: 0,
            retired: 0,
            broken: false,
            queued: false,
            refused: false,
        }
    }

    /// The pages it lies in.
    pub(crate) fn pages(&self) -> &RingPages {
        &self.pages
    }

    /// What moves along the ring, and whether the guest broke it.
    pub(crate) const fn state(&self) -> WorkRingState {
        let Self { fetched, retired, broken, base, .. } = *self;
        WorkRingState { fetched, retired, broken, base }
    }

    /// Takes over what moved along a ring like this; `false` when it cannot have come there.
    #[must_use]
    pub(crate) const fn restore(&mut self, state: &WorkRingState) -> bool {
        let WorkRingState { fetched, retired, broken, base: _ } = *state;
        let valid = self.indices.is_valid(fetched) && self.indices.is_valid(retired);
        if !valid || self.indices.distance(retired, fetched) > self.indices.capacity() {
            return false;
        }
        (self.fetched, self.retired, self.broken) = (fetched, retired, broken);
        true
    }

    /// Requests that wait to be fetched.
    pub(crate) fn waiting(&self, ram: &dyn GuestRam) -> Result<u32, RingError> {
        let tail = ram.load_u32(self.word(PROD_TAIL_OFFSET)?, Ordering::Acquire)?;
        if !self.indices.is_valid(tail) {
            return Err(RingError::Index(tail));
        }
        let posted = self.indices.distance(self.retired, tail);
        let fetched = self.indices.distance(self.retired, self.fetched);
        if posted > self.indices.capacity() || posted < fetched {
            return Err(RingError::Index(tail));
        }
        Ok(posted - fetched)
    }

    /// Copies bytes out of the next slot, which lies within a page.
    pub(crate) fn peek(&self, ram: &dyn GuestRam, offset: u64, bytes: &mut [u8]) -> Result<(), RingError> {
        let slot = self.base + u64::from(self.indices.slot(self.fetched)) * u64::from(self.stride);
        ram.read(self.pages.address(slot + offset).ok_or(RingError::Outside)?, bytes)?;
        Ok(())
    }

    /// Counts the next slot as fetched.
    pub(crate) const fn advance(&mut self) {
        self.fetched = self.indices.next(self.fetched);
    }

    /// Gives the oldest fetched slot back to the guest.
    pub(crate) fn retire(&mut self, ram: &dyn GuestRam) -> Result<(), RingError> {
        if self.retired == self.fetched {
            return Ok(());
        }
        self.retired = self.indices.next(self.retired);
        ram.store_u32(self.word(CONS_HEAD_OFFSET)?, self.retired, Ordering::Release)?;
        Ok(())
    }

    /// Starts over, as the driver does when it moves a queue pair to reset.
    pub(crate) fn reset(&mut self, ram: &dyn GuestRam) -> Result<(), RingError> {
        (self.fetched, self.retired, self.broken) = (0, 0, false);
        ram.store_u32(self.word(PROD_TAIL_OFFSET)?, 0, Ordering::Release)?;
        ram.store_u32(self.word(CONS_HEAD_OFFSET)?, 0, Ordering::Release)?;
        Ok(())
    }

    /// Host bytes that the page list takes.
    pub(crate) fn cost(&self) -> usize {
        RingPages::cost(self.pages.len() as u32)
    }

    fn word(&self, field: u64) -> Result<u64, RingError> {
        self.pages.address(self.state + field).ok_or(RingError::Outside)
    }
}
