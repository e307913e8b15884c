//! The way of received frames: from the link, through the driver's wishes, into a queue.

use std::slice;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::device::{RxSlot, Vmxnet3, lock};
use crate::lro::Run;
use crate::policy::{Admission, Arrival};
use crate::rx::{Delivery, Packet, RxQueue};
use crate::spec::{Events, MAX_RX_QUEUES};
use crate::stats::RxStats;
use crate::tx::destination;

/// What the driver has to be told after a batch of frames.
#[derive(Default)]
struct Outcome {
    /// Queues with completions.
    completed: [bool; MAX_RX_QUEUES as usize],
    /// A queue stopped just now.
    failed: bool,
}

impl Outcome {
    fn note(&mut self, number: usize, delivery: Delivery) {
        match delivery {
            Delivery::Done => {
                if let Some(completed) = self.completed.get_mut(number) {
                    *completed = true;
                }
            }
            Delivery::OutOfBuffers => {}
            Delivery::Stopped { now } => self.failed |= now,
        }
    }
}

/// Counts frames by what became of the packet that they went in.
fn count(stats: &mut RxStats, delivery: Delivery, arrivals: &[Arrival<'_>]) {
    for frame in arrivals.iter().map(|arrival| arrival.frame) {
        match delivery {
            Delivery::Done => {
                stats.received.count(destination(frame), frame.len());
                if arrivals.len() > 1 {
                    stats.merged_frames += 1;
                    stats.merged_bytes += frame.len() as u64;
                }
            }
            Delivery::OutOfBuffers => stats.out_of_buffers += 1,
            Delivery::Stopped { .. } => stats.errors += 1,
        }
    }
}

impl Vmxnet3 {
    /// Gives frames that came from the link to the guest, or drops and counts them.
    ///
    /// Segments of a TCP connection that follow each other become one packet, if the driver takes that.
    pub fn receive<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) {
        let mut outcome = Outcome::default();
        {
            let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
            let mut run: Option<Run<'_>> = None;
            for frame in frames {
                let arrival = match policy.admit(frame) {
                    Admission::Deliver(arrival) => arrival,
                    Admission::Malformed => {
                        self.with_rx_queue(0, 1, |_, stats| stats.errors += 1);
                        continue;
                    }
                    Admission::Unwanted => {
                        self.count_unwanted(1);
                        continue;
                    }
                };
                let other = match &mut run {
                    Some(run) => run.push(arrival).err(),
                    None => Some(arrival),
                };
                if let Some(ended) = other.and_then(|arrival| run.replace(Run::new(arrival))) {
                    self.deliver(&ended, &mut outcome);
                }
            }
            run.iter().for_each(|run| self.deliver(run, &mut outcome));
        }
        self.signal_received(&outcome);
    }

    /// Gives a run of frames to the guest: as one packet, or one by one if it is none or the buffers do not hold it.
    fn deliver(&self, run: &Run<'_>, outcome: &mut Outcome) {
        let arrivals = run.arrivals();
        let Some(number) = arrivals.first().map(|arrival| usize::from(arrival.queue)) else { return };
        self.with_rx_queue(number, arrivals.len(), |queue, stats| {
            let mut receive = |packet: &Packet<'_>, arrivals: &[Arrival<'_>]| {
                let delivery = queue.receive(&*self.ram, packet);
                if delivery != Delivery::OutOfBuffers || arrivals.len() == 1 {
                    outcome.note(number, delivery);
                    count(stats, delivery, arrivals);
                }
                delivery
            };
            let headers = run.headers();
            let merged = headers.as_deref().and_then(|headers| run.packet(headers));
            if merged.is_none_or(|packet| receive(&packet, arrivals) == Delivery::OutOfBuffers) {
                for arrival in arrivals {
                    receive(&arrival.packet(), slice::from_ref(arrival));
                }
            }
        });
    }

    /// Calls `act` on a receive queue with its lock held. If nothing may be received, `frames` are unwanted.
    fn with_rx_queue(&self, number: usize, frames: usize, act: impl FnOnce(&mut RxQueue, &mut RxStats)) {
        let Some(slot) = self.rx.get(number) else { return };
        match &mut *lock(slot) {
            RxSlot { queue: Some(queue), stats, .. }
                if self.is_bus_master() && self.link_up.load(Ordering::Relaxed) =>
            {
                act(queue, stats);
            }
            _ => self.count_unwanted(frames),
        }
    }

    /// Raises the interrupts of a batch. The driver polls with its vector masked, so a burst of batches costs few.
    fn signal_received(&self, outcome: &Outcome) {
        for (slot, _) in self.rx.iter().zip(outcome.completed).filter(|(_, completed)| *completed) {
            let slot = lock(slot);
            if let RxSlot { queue: Some(queue), interrupt_control, .. } = &*slot
                && self.is_bus_master()
            {
                self.vectors.raise(queue.vector, self.interrupts_enabled(*interrupt_control));
            }
        }
        if outcome.failed {
            self.post_event(Events::RX_QUEUE_ERROR);
        }
    }

    fn count_unwanted(&self, frames: usize) {
        self.rx_unwanted.fetch_add(frames as u64, Ordering::Relaxed);
    }
}
