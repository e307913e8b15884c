//! The clock that devices are told.

use std::time::Instant as HostInstant;

use device_model::time::Instant;

/// CLOCK_MONOTONIC, counted from when this clock was made. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: HostInstant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin: HostInstant::now() }
    }

    /// The present time.
    pub fn now(&self) -> Instant {
        let elapsed = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}
