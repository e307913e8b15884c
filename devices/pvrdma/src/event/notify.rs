//! Completion notification.

use std::sync::atomic::{Ordering, fence};

use device_model::guest_warn;
use pvrdma_spec::event::Cqne;
use pvrdma_spec::register::Vector;
use zerocopy::IntoBytes;

use crate::ring::RingError;
use crate::state::{Arm, Core};

impl Core {
    /// Arms a completion queue: the next completion, or the next solicited one, is notified of.
    ///
    /// Completions that came since the last notification and that the guest has not taken yet count as next, so that a
    /// program that polls, arms and waits misses none. Arming for solicited ones does not undo arming for all.
    pub(crate) fn arm(&mut self, handle: u32, wanted: Arm) {
        let Some(cq) = self.objects.cqs.get_mut(handle) else { return };
        if cq.failed {
            return;
        }
        if cq.arm != Arm::Any {
            cq.arm = wanted;
        }
        if !self.irq.bus_master() {
            return;
        }
        let waiting = match cq.ring.waiting(&*self.ram) {
            Ok(waiting) => waiting,
            Err(error) => return self.fail_cq(handle, &error.to_string()),
        };
        let seen = cq.notified.max(cq.ring.produced() - u64::from(waiting));
        let newest = if cq.arm == Arm::Any { cq.ring.produced() } else { cq.solicited };
        if newest > seen {
            self.notify(handle);
        }
    }

    /// Looks once at the queues of a restored device that are armed: their completions may be older.
    pub(crate) fn check_arms(&mut self) {
        if !std::mem::take(&mut self.arms_unchecked) {
            return;
        }
        for handle in self.objects.cqs.handles(|cq| cq.arm != Arm::No) {
            let wanted = self.objects.cqs.get(handle).map_or(Arm::No, |cq| cq.arm);
            self.arm(handle, wanted);
        }
    }

    /// Notifies the guest of an armed completion queue and disarms it.
    pub(super) fn notify(&mut self, handle: u32) {
        let Some(cq) = self.objects.cqs.get_mut(handle) else { return };
        cq.arm = Arm::No;
        cq.notified = cq.ring.produced();
        if cq.deferred || self.events.notifications_broken {
            return;
        }
        cq.deferred = true;
        self.events.notifications.push_back(handle);
        self.flush_notifications();
    }

    /// Moves waiting notifications to the ring as far as it has room.
    pub(crate) fn flush_notifications(&mut self) {
        if !self.irq.bus_master() || self.events.notifications.is_empty() {
            return;
        }
        match self.move_notifications() {
            Ok(()) => self.irq.raise(Vector::Completion),
            Err(error) => {
                guest_warn!(%error, "completion notification ring broken by the guest");
                self.counters.broken_rings += 1;
                self.events.notifications_broken = true;
                self.events.notifications.clear();
            }
        }
    }

    fn move_notifications(&mut self) -> Result<(), RingError> {
        let Some(region) = self.phase.active_mut() else { return Ok(()) };
        // The completions have to be in memory before the guest's position in the ring is read: then a notification it
        // has not come to yet will be followed by a look at them.
        fence(Ordering::SeqCst);
        let ring = &mut region.notifications;
        let waiting = ring.waiting(&*self.ram)?;
        let position = ring.produced() - u64::from(waiting);
        let mut space = ring.space(&*self.ram)?;
        while space > 0
            && let Some(handle) = self.events.notifications.pop_front()
        {
            let Some(cq) = self.objects.cqs.get_mut(handle) else { continue };
            cq.deferred = false;
            // The guest may be at work on the entry at its position, so only a later one is as good as a new one.
            if cq.notification.is_some_and(|entry| entry > position) {
                continue;
            }
            cq.notification = Some(ring.produced());
            ring.push(&*self.ram, Cqne { info: handle }.as_bytes())?;
            self.counters.notifications += 1;
            space -= 1;
        }
        Ok(())
    }
}
