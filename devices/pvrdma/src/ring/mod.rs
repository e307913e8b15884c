//! Rings shared with the guest: their arithmetic, the pages they live in, and both roles the device has on them.

mod consumer;
mod index;
mod pages;
mod producer;

pub(crate) use consumer::{Placement, WorkRing, WorkRingState};
pub(crate) use index::Indices;
pub(crate) use pages::{PageError, RingPages, walk};
pub(crate) use producer::{ProducerRing, ProducerRingState};

use device_model::ram::RamError;

/// A ring the guest has broken. The device stops using it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    /// An index that no legal sequence of increments yields.
    #[error("Ring index {0:#x} is invalid")]
    Index(u32),
    /// The pages of the ring are gone.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// A slot beyond the pages of the ring: a mistake of the device, not of the guest.
    #[error("Ring slot lies outside the ring's pages")]
    Outside,
}
