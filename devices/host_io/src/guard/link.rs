//! A link that sends only what its policy allows.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::net::Link;

use super::policy::{AddressPolicy, Violation};
use crate::forward::forward_to_inner;
use crate::frame;
use crate::headers::HEAD;

/// Frames dropped for each [`Violation`], in the order of [`Violation::ALL`].
pub type GuardCounters = [(Violation, u64); Violation::ALL.len()];

/// Sends over `L` what `policy` allows and drops the rest, as a switch with port security does.
#[derive(Debug)]
pub struct Guard<L> {
    inner: L,
    policy: AddressPolicy,
    dropped: [AtomicU64; Violation::ALL.len()],
}

impl<L: Link> Guard<L> {
    /// Puts the policy in front of `inner`.
    pub fn new(inner: L, policy: AddressPolicy) -> Self {
        Self { inner, policy, dropped: Default::default() }
    }

    /// Frames dropped so far.
    pub fn counters(&self) -> GuardCounters {
        Violation::ALL.map(|violation| {
            let counter = self.dropped.get(violation as usize);
            (violation, counter.map_or(0, |counter| counter.load(Ordering::Relaxed)))
        })
    }

    fn drop_frame(&self, violation: Violation, head: &[u8]) {
        if let Some(counter) = self.dropped.get(violation as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let start = head.get(..42.min(head.len()));
        device_model::guest_warn!(?violation, ?start, "Guest used an address that is not its own");
    }
}

impl<L: Link> Link for Guard<L> {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut head = [0; HEAD];
        let len = frame::peek(parts, &mut head);
        let head = head.get(..len).unwrap_or_default();
        match self.policy.check(head) {
            Ok(()) => self.inner.send(parts),
            Err(violation) => {
                self.drop_frame(violation, head);
                Ok(())
            }
        }
    }

    forward_to_inner!(recv, readable_fd, mtu, is_up);
}
