//! Bells made of eventfds.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use device_model::doorbell::Bell;
use rustix::event::{EventfdFlags, eventfd};
use zerocopy::IntoBytes;

/// An eventfd that wakes an I/O thread; rung by KVM, by vCPU threads or by other devices.
#[derive(Debug)]
pub struct EventBell(OwnedFd);

impl EventBell {
    /// A bell that has not been rung.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Forgets all rings up to now; returns whether there were any.
    pub fn clear(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.0, &mut count).is_ok()
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // The write fails only when the counter is at its maximum, and then the bell is rung already.
        let _ = rustix::io::write(&self.0, 1_u64.as_bytes());
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventBell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_merge_and_clear_once() {
        let bell = EventBell::new().unwrap();
        assert!(!bell.clear());
        bell.ring();
        bell.ring();
        assert!(bell.clear());
        assert!(!bell.clear());
    }
}
