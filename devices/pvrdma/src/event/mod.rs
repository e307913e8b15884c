//! What the device tells the guest: completions, their notification, and asynchronous events.

mod asynchronous;
mod completion;
mod notify;
mod provider;

use std::collections::VecDeque;
use std::time::Duration;

use pvrdma_spec::event::EventType;

/// How soon to look again whether the guest has made room in a device ring; it rings no bell when it does.
pub(crate) const RETRY: Duration = Duration::from_millis(1);

/// What waits for room in the device rings.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Asynchronous events, each at most once.
    events: VecDeque<(EventType, u32)>,
    /// Completion queues to notify of, each at most once.
    notifications: VecDeque<u32>,
    /// Set once the guest broke the asynchronous event ring.
    events_broken: bool,
    /// Set once the guest broke the notification ring.
    notifications_broken: bool,
}

impl EventQueue {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether anything waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.notifications.is_empty()
    }
}
