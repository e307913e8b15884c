//! Event and timer descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use zerocopy::IntoBytes;

/// An eventfd: readable from [`Event::signal`] until [`Event::clear`].
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event that is not signalled.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Another handle of the same event.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Makes the descriptor readable. Never blocks.
    pub fn signal(&self) {
        // Fails only when 2^64 - 2 signals wait, and then it is readable anyway.
        let _ = rustix::io::write(&self.0, 1_u64.as_bytes());
    }

    /// Makes the descriptor unreadable; whether it was signalled.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, 0_u64.as_mut_bytes()).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timerfd on the monotonic clock: readable after its time until [`Timer::take_expired`].
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that does not run.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Expires once, `delay` from now; not at all when `None`.
    pub fn set(&self, delay: Option<Duration>) {
        // Zero would disarm.
        let delay = delay.map_or(Duration::ZERO, |d| d.max(Duration::from_nanos(1)));
        let it_value = Timespec::try_from(delay).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // The descriptor is ours and the time is normalised, so there is nothing to refuse.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec);
    }

    /// Whether the time has come; makes the descriptor unreadable.
    pub fn take_expired(&self) -> bool {
        rustix::io::read(&self.0, 0_u64.as_mut_bytes()).is_ok()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn readable(fd: impl AsFd, wait: Duration) -> bool {
        let timeout = Timespec::try_from(wait).unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn event_is_readable_between_signal_and_clear() {
        let event = Event::new().unwrap();
        assert!(!event.clear());
        event.try_clone().unwrap().signal();
        assert!(readable(&event, Duration::ZERO));
        assert!(event.clear());
        assert!(!readable(&event, Duration::ZERO));
    }

    #[test]
    fn timer_expires_once_and_not_when_disarmed() {
        let timer = Timer::new().unwrap();
        timer.set(Some(Duration::ZERO));
        assert!(readable(&timer, Duration::from_secs(10)));
        assert!(timer.take_expired());
        timer.set(Some(Duration::from_secs(3600)));
        timer.set(None);
        assert!(!timer.take_expired());
    }
}
