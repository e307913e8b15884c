//! What the device tells the guest: completions, their notification, and asynchronous events.

mod asynchronous;
mod completion;
mod notify;
mod provider;

use std::collections::VecDeque;
use std::time::Duration;

use pvrdma_spec::event::EventType;
use serde::{Deserialize, Serialize};

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

/// The queue as it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventQueueState {
    events: Vec<(u32, u32)>,
    pub(crate) notifications: Vec<u32>,
    events_broken: bool,
    notifications_broken: bool,
}

impl EventQueue {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is saved of it.
    pub(crate) fn state(&self) -> EventQueueState {
        let Self { events, notifications, events_broken, notifications_broken } = self;
        EventQueueState {
            events: events.iter().map(|(kind, info)| (*kind as u32, *info)).collect(),
            notifications: notifications.iter().copied().collect(),
            events_broken: *events_broken,
            notifications_broken: *notifications_broken,
        }
    }

    /// A queue that was saved; `None` when it holds events that this device does not raise.
    pub(crate) fn restored(state: EventQueueState) -> Option<Self> {
        let EventQueueState { events, notifications, events_broken, notifications_broken } = state;
        let event = |(kind, info)| {
            EventType::ALL.into_iter().find(|known| *known as u32 == kind).map(|kind| (kind, info))
        };
        Some(Self {
            events: events.into_iter().map(event).collect::<Option<_>>()?,
            notifications: notifications.into(),
            events_broken,
            notifications_broken,
        })
    }

    /// Whether anything waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.notifications.is_empty()
    }
}
