//! What waits to be reported to the device model.

use std::collections::VecDeque;

use verbs::{AsyncEvent, ProviderEvent};

/// Events after which no completions are taken from the host until some are gone.
const ENOUGH: usize = 1024;

/// A queue of events.
#[derive(Debug, Default)]
pub(super) struct EventQueue(VecDeque<ProviderEvent>);

impl EventQueue {
    pub(super) fn push(&mut self, event: ProviderEvent) {
        self.0.push_back(event);
    }

    pub(super) fn push_many(&mut self, event: ProviderEvent, count: u32) {
        self.0.extend((0..count).map(|_| event));
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.push(ProviderEvent::Async(event));
    }

    pub(super) fn pop(&mut self) -> Option<ProviderEvent> {
        self.0.pop_front()
    }

    pub(super) fn has_enough(&self) -> bool {
        self.0.len() >= ENOUGH
    }

    /// Drops the events that `named` says name something that is gone.
    pub(super) fn forget(&mut self, named: impl Fn(&ProviderEvent) -> bool) {
        self.0.retain(|event| !named(event));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
