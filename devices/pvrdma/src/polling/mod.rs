//! Processes whose doorbells cost nothing: their doorbell pages are memory, and the device polls their rings.
//!
//! A doorbell page has one word for all that a process says of its completion queues, so a request to be notified can be
//! hidden by an empty poll a moment later. Three things together keep a process from waiting for ever:
//!
//! * A request that is seen in the page ends polling: from then on every write is a doorbell again, and none is missed.
//! * A completion that nobody takes for some time ends polling too. Its process may be asleep.
//! * When polling ends, for whatever reason, requests may have been hidden, so every completion queue of the process is
//!   taken to be armed. At worst that is one notification a queue that nobody asked for.
//!
//! Kernels are not polled: their page is the one that every driver of the guest shares.

mod policy;
mod polled;

use device_model::time::Instant;
use pvrdma_spec::doorbell::{CQ_ARM, CQ_ARM_SOL, CQ_OFFSET};

pub(crate) use self::policy::Heat;
pub use self::policy::Polling;
use self::polled::{Idle, Polled, Pulse, Untaken, are_too_many};
use crate::state::{Arm, Core, KERNEL};
use crate::work::Source;

/// Processes that are polled at a time.
const MAX_PROCESSES: usize = 16;

/// The processes that are polled.
#[derive(Default)]
pub(crate) struct PolledProcesses {
    allowed: bool,
    processes: Vec<Polled>,
    /// A process that has become busy.
    busy: Option<u32>,
}

impl PolledProcesses {
    /// Whether a process is polled.
    pub(crate) fn contains(&self, context: u32) -> bool {
        self.processes.iter().any(|polled| polled.context == context)
    }

    /// Whether rings have to be looked at again and again.
    pub(crate) fn is_awake(&self) -> bool {
        self.processes.iter().any(|polled| polled.pulse.is_awake())
    }

    /// Takes a new object in.
    pub(crate) fn add(&mut self, source: Source, context: u32) {
        self.with(context, |polled| polled.add(source));
    }

    /// Forgets an object.
    pub(crate) fn remove(&mut self, source: Source, context: u32) {
        self.with(context, |polled| polled.remove(source));
    }

    /// Forgets a process that is gone.
    pub(crate) fn forget(&mut self, context: u32) {
        self.processes.retain(|polled| polled.context != context);
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.processes.clear();
        self.busy = None;
    }

    fn with(&mut self, context: u32, act: impl FnOnce(&mut Polled)) {
        if let Some(polled) = self.processes.iter_mut().find(|polled| polled.context == context) {
            act(polled);
        }
    }
}

impl Core {
    /// Allows polling or ends it.
    pub(crate) fn allow_polling(&mut self, now: Instant, allowed: bool) {
        if std::mem::replace(&mut self.polled.allowed, allowed) && !allowed {
            self.polled.busy = None;
            while let Some(polled) = self.polled.processes.pop() {
                self.leave(now, polled);
            }
        }
    }

    /// Counts work requests of a process that is not polled.
    pub(crate) fn warm(&mut self, now: Instant, source: Source, requests: u32) {
        if !self.polled.allowed || requests == 0 {
            return;
        }
        let Some(context) = self.objects.context_of(source).filter(|context| *context != KERNEL) else {
            return;
        };
        if let Some(process) = self.objects.contexts.get_mut(context)
            && process.heat.count(now, requests, &self.config.polling)
            && !self.polled.contains(context)
        {
            self.polled.busy = Some(context);
        }
    }

    /// A process asked for a notification by a doorbell.
    pub(crate) fn cool(&mut self, context: u32) {
        if self.polled.allowed
            && let Some(process) = self.objects.contexts.get_mut(context)
        {
            process.heat.cool((self.clock)(), &self.config.polling);
        }
    }

    /// Begins to poll the process that has become busy, if there is one.
    pub(crate) fn begin_to_poll(&mut self, now: Instant) {
        let Some(context) = self.polled.busy.take() else { return };
        let Some(number) = self.objects.page_of(context) else { return };
        if self.polled.processes.len() >= MAX_PROCESSES && !self.make_room(now) {
            return;
        }
        let queues = self.objects.cqs.handles(|cq| cq.context == context);
        let rings = self.objects.rings_of(context);
        if are_too_many(rings.len(), queues.len()) {
            return self.refuse(now, context);
        }
        let Some(page) = self.doorbells.share(number) else { return self.refuse(now, context) };
        let polled = Polled {
            context,
            number,
            page,
            rings,
            queues: queues.into_iter().map(Untaken::new).collect(),
            entered: now,
            pulse: Pulse::start(now, &self.config.polling),
        };
        self.counters.polling_started += 1;
        self.polled.processes.push(polled);
    }

    /// Ends to poll a process that rests; `false` if none does.
    fn make_room(&mut self, now: Instant) -> bool {
        let resting = self.polled.processes.iter().position(|polled| !polled.pulse.is_awake());
        if let Some(index) = resting {
            let polled = self.polled.processes.swap_remove(index);
            self.leave(now, polled);
        }
        resting.is_some()
    }

    fn refuse(&mut self, now: Instant, context: u32) {
        if let Some(process) = self.objects.contexts.get_mut(context) {
            process.heat.refuse(now, &self.config.polling);
        }
    }

    /// Looks at the rings and the doorbell pages of all polled processes.
    pub(crate) fn poll_processes(&mut self, now: Instant) {
        self.for_each_polled(now, |core, polled| core.poll(now, polled));
    }

    /// Looks for completions that nobody takes. Gives when to look again at the latest.
    pub(crate) fn watch_completions(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.config.polling.patience;
        let mut deadline: Option<Instant> = None;
        self.for_each_polled(now, |core, polled| match core.oldest_untaken(now, polled) {
            Some(since) if now - since >= patience => {
                core.counters.polling_unanswered += 1;
                false
            }
            Some(since) => {
                deadline = deadline.into_iter().chain([since + patience]).min();
                true
            }
            None => true,
        });
        deadline
    }

    /// Calls `stays` for each polled process; those for which it gives `false` are not polled any more.
    fn for_each_polled(&mut self, now: Instant, mut stays: impl FnMut(&mut Self, &mut Polled) -> bool) {
        let mut index = 0;
        while index < self.polled.processes.len() {
            // Out of the list, so that all of the device can be reached.
            let mut polled = self.polled.processes.swap_remove(index);
            if stays(self, &mut polled) {
                self.polled.processes.push(polled);
                let last = self.polled.processes.len() - 1;
                self.polled.processes.swap(index, last);
                index += 1;
            } else {
                self.leave(now, polled);
            }
        }
    }

    /// Looks at a process. `false` when it is not to be polled any more.
    fn poll(&mut self, now: Instant, polled: &mut Polled) -> bool {
        if !polled.pulse.is_awake() {
            if !polled.page.is_awake() {
                return true;
            }
            polled.pulse.wake(now, &self.config.polling);
            self.counters.polling_woken += 1;
        }
        if polled.page.load(CQ_OFFSET) & (CQ_ARM | CQ_ARM_SOL) != 0 || polled.is_too_large() {
            return false;
        }
        if self.look_at_rings(polled) {
            polled.pulse.beat(now);
            return true;
        }
        if polled.queues.iter().any(Untaken::is_some) {
            // It is about to take them, or asleep.
            return true;
        }
        match polled.pulse.miss(now) {
            Idle::Poll => true,
            Idle::Leave => false,
            Idle::Rest => {
                polled.page.rest();
                polled.pulse.rest(now);
                // What was posted before the page rested rang no bell.
                self.look_at_rings(polled);
                true
            }
        }
    }

    /// Finds rings that hold new requests. Whether there were any.
    fn look_at_rings(&mut self, polled: &Polled) -> bool {
        let mut found = false;
        for source in &polled.rings {
            let Some(ring) = self.objects.work_ring(*source) else { continue };
            // What was refused is looked at again when there is room, and a broken ring finds out when it is fetched from.
            if !ring.refused && !ring.broken && !matches!(ring.waiting(&*self.ram), Ok(0)) {
                found = true;
                self.enqueue(*source);
            }
        }
        found
    }

    /// Since when a process has not taken a completion that it was not notified of.
    fn oldest_untaken(&mut self, now: Instant, polled: &mut Polled) -> Option<Instant> {
        let mut oldest: Option<Instant> = None;
        for queue in &mut polled.queues {
            let Some(cq) = self.objects.cqs.get(queue.handle).filter(|cq| !cq.failed) else { continue };
            match cq.ring.waiting(&*self.ram) {
                Ok(waiting) => {
                    oldest = oldest.into_iter().chain(queue.look(cq, waiting, now)).min();
                }
                Err(error) => self.fail_cq(queue.handle, &error.to_string()),
            }
        }
        oldest
    }

    /// Makes the doorbell page of a process one of doorbells again, and makes up for what nobody was told of.
    fn leave(&mut self, now: Instant, polled: Polled) {
        let Polled { context, number, page, rings, queues, entered, .. } = polled;
        page.retire();
        let word = page.load(CQ_OFFSET);
        if word & (CQ_ARM | CQ_ARM_SOL) != 0 {
            self.ring_doorbell(number, CQ_OFFSET, word);
        }
        drop(page);
        rings.into_iter().for_each(|source| self.enqueue(source));
        queues.into_iter().for_each(|queue| self.arm(queue.handle, Arm::Any));
        if let Some(process) = self.objects.contexts.get_mut(context) {
            process.heat.leave(now, now - entered, &self.config.polling);
        }
        self.counters.polling_ended += 1;
    }
}
