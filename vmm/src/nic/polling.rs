//! Whether the thread of a NIC may poll.
//!
//! A thread that polls takes a whole processor. It is worth that only if nobody else waits for it, least of all the guest's
//! own CPUs. So a thread gives polling up when it has had to wait for its processor, and tries again later, less and less
//! often.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use device_model::time::Instant;

use crate::config::PollingMode;

/// How often a thread looks whether it may poll.
const PERIOD: Duration = Duration::from_millis(1);
/// The part of its time that a thread may wait for its processor while it polls: one in so many.
const WAIT_SHARE: u32 = 8;
/// How long a thread does not poll after it had to wait, at first.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The same when that has happened again and again.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The threads of this process that poll.
#[derive(Clone, Debug, Default)]
pub struct PollingThreads(Arc<AtomicUsize>);

/// What one thread may do.
pub(super) struct Permit {
    mode: PollingMode,
    threads: PollingThreads,
    /// Whether it is counted among them.
    counted: bool,
    processors: usize,
    next_look: Instant,
    contention: Contention,
    waits: Option<WaitClock>,
}

impl Permit {
    pub(super) fn new(mode: PollingMode, threads: PollingThreads) -> Self {
        Self {
            mode,
            threads,
            counted: false,
            processors: available_parallelism().map_or(1, Into::into),
            next_look: Instant::ZERO,
            contention: Contention::default(),
            waits: None,
        }
    }

    /// Whether the calling thread, always the same, may poll; `polls` says whether it does.
    pub(super) fn look(&mut self, now: Instant, polls: bool) -> bool {
        match self.mode {
            PollingMode::On => true,
            PollingMode::Off => false,
            PollingMode::Auto => {
                if now >= self.next_look {
                    self.next_look = now + PERIOD;
                    self.decide(now, polls);
                }
                self.counted
            }
        }
    }

    fn decide(&mut self, now: Instant, polls: bool) {
        let waited = self.waits.get_or_insert_with(WaitClock::of_this_thread).read();
        let free = self.contention.observe(now, waited, polls);
        let counter = &self.threads.0;
        if self.counted && !free {
            counter.fetch_sub(1, Ordering::Relaxed);
            self.counted = false;
        } else if !self.counted && free {
            // One processor stays for the guest.
            let more = |threads| (threads + 1 < self.processors).then_some(threads + 1);
            self.counted = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.counted {
            self.threads.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether others want the processor.
#[derive(Debug, Default)]
struct Contention {
    last: Option<(Instant, Duration)>,
    not_before: Instant,
    pause: Duration,
}

impl Contention {
    /// Notes how long the thread has waited for its processor in all. Whether it may poll from now on.
    fn observe(&mut self, now: Instant, waited: Duration, polls: bool) -> bool {
        let (before, waited_before) = self.last.replace((now, waited)).unwrap_or((now, waited));
        let share = (now - before) / WAIT_SHARE;
        if polls && waited.saturating_sub(waited_before) > share {
            self.pause = (2 * self.pause).clamp(MIN_PAUSE, MAX_PAUSE);
            self.not_before = now + self.pause;
        } else if polls && now - self.not_before > MAX_PAUSE {
            self.pause = Duration::ZERO;
        }
        now >= self.not_before
    }
}

/// How long a thread has waited for a processor.
struct WaitClock(Option<File>);

impl WaitClock {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Zero for ever where the host does not say.
    fn read(&self) -> Duration {
        let nanos = self.0.as_ref().and_then(|file| second_number(file).ok().flatten());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

/// The file says: nanoseconds on a processor, nanoseconds of waiting for one, times it got one.
fn second_number(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0; 64];
    let length = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..length]);
    Ok(text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_thread_that_waits_for_its_processor_stops_to_poll_longer_each_time() {
        let mut contention = Contention::default();
        let (mut waited, mut now) = (Duration::ZERO, 1000);
        assert!(contention.observe(at(now), waited, true));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            now += 1;
            waited += Duration::from_millis(1);
            let start = now;
            assert!(!contention.observe(at(now), waited, true));
            while !contention.observe(at(now), waited, false) {
                now += 1;
            }
            pauses.push(Duration::from_millis(now - start));
        }
        assert_eq!((pauses[0], pauses[1]), (MIN_PAUSE, 2 * MIN_PAUSE));
        assert_eq!(pauses.last(), Some(&MAX_PAUSE));
    }

    #[test]
    fn waiting_while_not_polling_does_not_count() {
        let mut contention = Contention::default();
        assert!((0..100).all(|i| contention.observe(at(i), Duration::from_millis(i), false)));
    }

    #[test]
    fn one_processor_stays_for_the_guest_and_modes_are_obeyed() {
        let threads = PollingThreads::default();
        let permit = |mode| {
            let mut permit = Permit::new(mode, threads.clone());
            permit.processors = 3;
            permit
        };
        let mut permits = [(); 3].map(|()| permit(PollingMode::Auto));
        let allowed = |permits: &mut [Permit]| {
            permits.iter_mut().map(|permit| permit.look(at(1), false)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&mut permits), [true, true, false]);
        assert!(permit(PollingMode::On).look(at(1), true));
        assert!(!permit(PollingMode::Off).look(at(1), true));
        drop(permits);
        assert!(permit(PollingMode::Auto).look(at(1), false));
    }
}
