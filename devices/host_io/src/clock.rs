//! The process's monotonic clock, as devices count time.

use device_model::time::Instant;

/// A monotonic clock whose origin is its making.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(std::time::Instant);

impl MonotonicClock {
    /// A clock that shows zero now.
    pub fn new() -> Self {
        Self(std::time::Instant::now())
    }

    /// Time since the clock was made.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}
