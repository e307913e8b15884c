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

impl<L> Guard<L> {
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

    /// Judges a frame, the first bytes of which it copies to `head`.
    fn check<'h>(
        &self,
        parts: &[IoSlice<'_>],
        head: &'h mut [u8; HEAD],
    ) -> Result<(), (Violation, &'h [u8])> {
        let len = frame::peek(parts, head);
        let head = head.get(..len).unwrap_or_default();
        self.policy.check(head).map_err(|violation| (violation, head))
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
        match self.check(parts, &mut head) {
            Ok(()) => self.inner.send(parts),
            Err((violation, head)) => {
                self.drop_frame(violation, head);
                Ok(())
            }
        }
    }

    fn send_batch(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        let allowed = |frame: &&IoSlice<'_>| self.check(std::slice::from_ref(*frame), &mut [0; HEAD]).is_ok();
        let mut taken = 0;
        while let Some(rest) = frames.get(taken..).filter(|rest| !rest.is_empty()) {
            let (good, rest) = rest.split_at(rest.iter().take_while(allowed).count());
            let sent = self.inner.send_batch(good)?;
            taken += sent;
            if sent < good.len() {
                break;
            }
            if let Some(bad) = rest.first() {
                self.send(std::slice::from_ref(bad))?;
                taken += 1;
            }
        }
        Ok(taken)
    }

    forward_to_inner!(recv, recv_batch, readable_fd, mtu, is_up);
}
