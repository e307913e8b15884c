//! One virtqueue: registers, ring and the buffers in between.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_model::doorbell::Bell;
use device_model::ram::Ram;
use serde::{Deserialize, Serialize};
use virtio_queue::{DescriptorChain, Error as RingError, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::buffer::{Buffer, Completions, Segment, Segments, Token};
use crate::common::{Half, Part};
use crate::device::Malformed;
use crate::save::QueueSaved;

/// `VIRTIO_MSI_NO_VECTOR`.
pub(crate) const NO_VECTOR: u16 = 0xffff;

/// Buffers handled in one call; the rest waits for the next, so that other queues of the thread get their turn.
const BUDGET: u16 = 64;

/// Why a queue cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("Ring cannot be used: {0}")]
    Ring(#[from] RingError),
    #[error("Available ring holds an unusable entry")]
    Entry,
    #[error("Descriptor chain has a loop, a hole or more descriptors than the queue")]
    Chain,
    #[error("Descriptor chain has a readable descriptor behind a writable one")]
    Order,
    #[error(transparent)]
    Device(#[from] Malformed),
}

/// Why a queue does nothing, in the order in which a driver and its device overcome it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// The driver has not set `DRIVER_OK`, or not enabled the queue.
    Idle,
    Live,
    Broken,
}

/// A virtqueue.
pub(crate) struct VirtQueue {
    ring: Queue,
    ram: Arc<Ram>,
    bell: Arc<dyn Bell>,
    phase: Phase,
    bus_master: bool,
    vector: u16,
    /// Buffers taken and not yet given back.
    outstanding: u16,
    completions: Arc<Completions>,
}

impl VirtQueue {
    pub(crate) fn new(max_size: u16, ram: Arc<Ram>, bell: Arc<dyn Bell>) -> Result<Self, RingError> {
        Ok(Self {
            ring: Queue::new(max_size)?,
            ram,
            phase: Phase::Idle,
            bus_master: false,
            vector: NO_VECTOR,
            outstanding: 0,
            completions: Completions::new(bell.clone()),
            bell,
        })
    }

    pub(crate) fn reset(&mut self) {
        let Self { ring, ram: _, bell, phase, bus_master: _, vector, outstanding, completions } = self;
        ring.reset();
        *phase = Phase::Idle;
        *vector = NO_VECTOR;
        *outstanding = 0;
        completions.close();
        *completions = Completions::new(bell.clone());
    }

    /// The driver is ready: an enabled queue starts.
    pub(crate) fn start(&mut self, event_idx: bool) {
        self.ring.set_event_idx(event_idx);
        if self.ring.ready() {
            self.phase = Phase::Live;
            self.bell.ring();
        }
    }

    pub(crate) fn set_bus_master(&mut self, enabled: bool) {
        self.bus_master = enabled;
        if enabled && self.phase == Phase::Live {
            self.bell.ring();
        }
    }

    pub(crate) fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Sizes the driver may not choose are ignored.
    pub(crate) fn set_size(&mut self, size: u16) {
        if !self.ring.ready() {
            let _ = self.ring.try_set_size(size);
        }
    }

    pub(crate) const fn vector(&self) -> u16 {
        self.vector
    }

    pub(crate) fn set_vector(&mut self, vector: u16) {
        self.vector = vector;
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.ring.ready()
    }

    /// There is no way back but a reset.
    pub(crate) fn enable(&mut self) {
        self.ring.set_ready(true);
    }

    pub(crate) fn address(&self, part: Part) -> u64 {
        match part {
            Part::Desc => self.ring.desc_table(),
            Part::Driver => self.ring.avail_ring(),
            Part::Device => self.ring.used_ring(),
        }
    }

    /// Misaligned addresses, and any for an enabled queue, are ignored.
    pub(crate) fn set_address(&mut self, part: Part, half: Half, value: u32) {
        if self.ring.ready() {
            return;
        }
        let address = GuestAddress(half.replace(self.address(part), value));
        let _ = match part {
            Part::Desc => self.ring.try_set_desc_table_address(address),
            Part::Driver => self.ring.try_set_avail_ring_address(address),
            Part::Device => self.ring.try_set_used_ring_address(address),
        };
    }

    /// Hands new buffers to `handle` and gives completed ones back, calling `interrupt` when the driver wants to know.
    /// A broken queue stays so until it is reset.
    pub(crate) fn process(
        &mut self,
        handle: impl FnMut(Buffer) -> Result<(), Malformed>,
        interrupt: impl FnMut(),
    ) -> Result<(), Broken> {
        if self.phase != Phase::Live || !self.bus_master {
            return Ok(());
        }
        self.completions.attend();
        let result = self.work(handle, interrupt);
        if result.is_err() {
            self.phase = Phase::Broken;
            self.completions.close();
        }
        result
    }

    /// What is saved of the queue, after completed buffers have been given back. `None` while the device holds some.
    pub(crate) fn save(&mut self, mut interrupt: impl FnMut()) -> Option<QueueSaved> {
        let works = self.phase == Phase::Live && self.bus_master;
        if works && self.give_back(&mut interrupt).is_err() {
            self.phase = Phase::Broken;
        }
        let quiet = self.outstanding == 0 || self.phase == Phase::Broken;
        quiet.then(|| QueueSaved::new(&self.ring.state(), self.phase, self.vector))
    }

    /// Takes a saved queue over. Fails when the driver could not have made it.
    pub(crate) fn restore(&mut self, saved: QueueSaved) -> Result<(), RingError> {
        let (ring, phase, vector) = saved.into_parts(self.ring.max_size());
        self.ring = Queue::try_from(ring)?;
        (self.phase, self.vector) = (phase, vector);
        // Whatever was announced is still in the ring.
        self.bell.ring();
        Ok(())
    }

    fn work(
        &mut self,
        mut handle: impl FnMut(Buffer) -> Result<(), Malformed>,
        mut interrupt: impl FnMut(),
    ) -> Result<(), Broken> {
        let mut budget = BUDGET;
        loop {
            self.ring.disable_notification(&*self.ram)?;
            while budget > 0
                && let Some(buffer) = self.next_buffer()?
            {
                budget -= 1;
                handle(buffer)?;
                self.give_back(&mut interrupt)?;
            }
            if budget == 0 {
                self.bell.ring();
                break;
            }
            if !self.ring.enable_notification(&*self.ram)? {
                break;
            }
            // A driver that moves its index back and forth gets no further rounds than an honest one.
            budget -= 1;
        }
        self.give_back(&mut interrupt)?;
        while !self.completions.leave() {
            self.give_back(&mut interrupt)?;
        }
        Ok(())
    }

    fn next_buffer(&mut self) -> Result<Option<Buffer>, Broken> {
        if self.ring.avail_idx(&*self.ram, Ordering::Acquire)?.0 == self.ring.next_avail() {
            return Ok(None);
        }
        let chain = self.ring.iter(&*self.ram)?.next().ok_or(Broken::Entry)?;
        // An honest driver reuses a head only after it came back.
        self.outstanding = self.outstanding.checked_add(1).ok_or(Broken::Entry)?;
        if self.outstanding > self.ring.size() {
            return Err(Broken::Entry);
        }
        self.buffer(chain).map(Some)
    }

    fn buffer(&self, chain: DescriptorChain<&Ram>) -> Result<Buffer, Broken> {
        let mut readable = Segments::new(self.ram.clone());
        let mut writable = Segments::new(self.ram.clone());
        let token = Token::new(chain.head_index(), self.completions.clone());
        // The iterator ends early at a fault, and after as many descriptors as the table has in a loop.
        let mut ended = false;
        let mut room = self.ring.size();
        for descriptor in chain {
            room = room.checked_sub(1).ok_or(Broken::Chain)?;
            ended = !descriptor.has_next();
            let segment = Segment { gpa: descriptor.addr().0, len: descriptor.len() };
            if descriptor.is_write_only() {
                writable.push(segment);
            } else if writable.as_slice().is_empty() {
                readable.push(segment);
            } else {
                return Err(Broken::Order);
            }
        }
        if ended { Ok(Buffer { readable, writable, token }) } else { Err(Broken::Chain) }
    }

    fn give_back(&mut self, interrupt: &mut impl FnMut()) -> Result<(), Broken> {
        let completions = self.completions.take();
        for completion in &completions {
            self.ring.add_used(&*self.ram, completion.head, completion.finish())?;
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        if !completions.is_empty() && self.ring.needs_notification(&*self.ram)? {
            interrupt();
        }
        Ok(())
    }
}
