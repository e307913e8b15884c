//! Rings that the device fills: completion queues and the two device rings.

use std::sync::atomic::Ordering;

use device_model::ram::GuestRam;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::queue::{CONS_HEAD_OFFSET, PROD_TAIL_OFFSET, RX_OFFSET};
use serde::{Deserialize, Serialize};

use super::{Indices, RingError, RingPages};

/// A ring the device fills and the guest empties. Page 0 holds the indices, elements follow from page 1.
///
/// The device trusts its own copy of the producer index and only ever reads the guest's consumer index.
#[derive(Debug)]
pub(crate) struct ProducerRing {
    pages: RingPages,
    indices: Indices,
    /// Bytes of an element; divides the page size.
    stride: u32,
    /// Next index to fill.
    tail: u32,
    /// Elements ever added, which numbers them.
    produced: u64,
}

/// A producer ring as it is saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProducerRingState {
    pub(crate) pages: Vec<u32>,
    pub(crate) tail: u32,
    pub(crate) produced: u64,
}

impl ProducerRing {
    /// A new ring that starts at index 0.
    pub(crate) const fn new(pages: RingPages, indices: Indices, stride: u32) -> Self {
        Self { pages, indices, stride, tail: 0, produced: 0 }
    }

    /// Number of slots.
    pub(crate) const fn slots(&self) -> u32 {
        self.indices.slots()
    }

    /// What is saved of it; its size follows from what it is for.
    pub(crate) fn state(&self) -> ProducerRingState {
        ProducerRingState { pages: self.pages.numbers().to_vec(), tail: self.tail, produced: self.produced }
    }

    /// Takes over what moved along a ring like this; `false` when it cannot have come there.
    #[must_use]
    pub(crate) const fn restore(&mut self, tail: u32, produced: u64) -> bool {
        (self.tail, self.produced) = (tail, produced);
        self.indices.is_valid(tail)
    }

    /// Elements ever added.
    pub(crate) const fn produced(&self) -> u64 {
        self.produced
    }

    /// Elements the guest has not taken yet; never more than were added.
    pub(crate) fn waiting(&self, ram: &dyn GuestRam) -> Result<u32, RingError> {
        let head = ram.load_u32(self.word(CONS_HEAD_OFFSET)?, Ordering::Acquire)?;
        let waiting =
            if self.indices.is_valid(head) { self.indices.distance(head, self.tail) } else { u32::MAX };
        if waiting > self.indices.capacity() || u64::from(waiting) > self.produced {
            return Err(RingError::Index(head));
        }
        Ok(waiting)
    }

    /// Elements that fit now.
    pub(crate) fn space(&self, ram: &dyn GuestRam) -> Result<u32, RingError> {
        Ok(self.indices.capacity() - self.waiting(ram)?)
    }

    /// Adds an element; the caller has made sure that there is space.
    pub(crate) fn push(&mut self, ram: &dyn GuestRam, element: &[u8]) -> Result<(), RingError> {
        let offset = PAGE_SIZE + u64::from(self.indices.slot(self.tail)) * u64::from(self.stride);
        ram.write(self.pages.address(offset).ok_or(RingError::Outside)?, element)?;
        let next = self.indices.next(self.tail);
        ram.store_u32(self.word(PROD_TAIL_OFFSET)?, next, Ordering::Release)?;
        self.tail = next;
        self.produced += 1;
        Ok(())
    }

    /// Host bytes that the page list takes.
    pub(crate) const fn cost(&self) -> usize {
        RingPages::cost(self.pages.len() as u32)
    }

    fn word(&self, field: u64) -> Result<u64, RingError> {
        self.pages.address(RX_OFFSET + field).ok_or(RingError::Outside)
    }
}
