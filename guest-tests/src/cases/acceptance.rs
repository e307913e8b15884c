//! The list that every provider has to pass.

use super::{addresses, device, inspect, lifecycle, nvme, programs, pyverbs, refused, verifier};
use crate::suite::Case;

/// What two guests do with each other as long as nothing goes away.
pub fn cases() -> Vec<Case> {
    let topics = [
        device::cases(),
        inspect::cases(),
        programs::cases(),
        refused::cases(),
        verifier::cases(),
        addresses::cases(),
    ];
    topics.into_iter().flatten().collect()
}

/// Guests, drivers and links that go away in the middle of things.
pub fn lifecycle_cases() -> Vec<Case> {
    lifecycle::cases()
}

/// What needs more of Debian than the small guest has.
pub fn debian_cases() -> Vec<Case> {
    [pyverbs::cases(), nvme::cases()].into_iter().flatten().collect()
}
