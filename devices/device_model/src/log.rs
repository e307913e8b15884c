//! Rate limiting for log lines that a guest or a wire peer can provoke.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Lines let through at once before the limit bites.
const BURST: u32 = 10;
/// Nanoseconds until one more line is allowed.
const REFILL_NANOS: u64 = 1_000_000_000;

/// The budget of one log statement; made by [`guest_warn!`](crate::guest_warn).
#[derive(Debug)]
pub struct Limiter {
    used: AtomicU32,
    suppressed: AtomicU64,
    last_refill: AtomicU64,
}

impl Limiter {
    /// A full budget.
    pub const fn new() -> Self {
        Self { used: AtomicU32::new(0), suppressed: AtomicU64::new(0), last_refill: AtomicU64::new(0) }
    }

    /// Whether a line may be written at `now` (nanoseconds on any monotonic clock), and how many were swallowed
    /// since the last one.
    pub fn check(&self, now: u64) -> Option<u64> {
        let last = self.last_refill.load(Ordering::Relaxed);
        let earned = now.saturating_sub(last) / REFILL_NANOS;
        if earned > 0
            && self.last_refill.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            let _ = self
                .used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(earned)));
        }
        let granted = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < BURST).then_some(used + 1))
            .is_ok();
        if granted {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    /// [`Limiter::check`] against the process clock.
    pub fn check_now(&self) -> Option<u64> {
        static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let elapsed = ORIGIN.get_or_init(Instant::now).elapsed();
        self.check(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}

/// `tracing::warn!` for what a guest or peer can provoke: ten lines at once, then one a second per statement, with the
/// number of swallowed lines in the next.
#[macro_export]
macro_rules! guest_warn {
    ($($arg:tt)+) => {{
        static LIMITER: $crate::log::Limiter = $crate::log::Limiter::new();
        if let Some(suppressed) = LIMITER.check_now() {
            $crate::log::tracing::warn!(suppressed, $($arg)+);
        }
    }};
}

#[doc(hidden)]
pub use tracing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_then_one_line_a_second_with_the_swallowed_count() {
        let limiter = Limiter::new();
        assert_eq!((0..15).filter(|_| limiter.check(0).is_some()).count(), BURST as usize);
        assert_eq!(limiter.check(REFILL_NANOS), Some(5));
        assert_eq!(limiter.check(REFILL_NANOS), None);
    }
}
