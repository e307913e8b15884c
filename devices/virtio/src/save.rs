//! A virtio device as it is saved: the transport's registers and its queues. Device types have no state of their own but
//! the features they were activated with.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use device_model::save::{Record, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};
use virtio_queue::QueueState;

use crate::lock;
use crate::queue::{Phase, VirtQueue};
use crate::transport::{Common, DRIVER_OK, FEATURES_OK, ISR_QUEUE, VirtioPci};

/// A queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QueueSaved {
    next_avail: u16,
    next_used: u16,
    event_idx: bool,
    size: u16,
    ready: bool,
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
    phase: Phase,
    vector: u16,
}

impl QueueSaved {
    pub(crate) const fn new(ring: &QueueState, phase: Phase, vector: u16) -> Self {
        Self {
            next_avail: ring.next_avail,
            next_used: ring.next_used,
            event_idx: ring.event_idx_enabled,
            size: ring.size,
            ready: ring.ready,
            desc_table: ring.desc_table,
            avail_ring: ring.avail_ring,
            used_ring: ring.used_ring,
            phase,
            vector,
        }
    }

    /// State of a ring whose largest size is `max_size`, phase and vector.
    pub(crate) const fn into_parts(self, max_size: u16) -> (QueueState, Phase, u16) {
        let ring = QueueState {
            max_size,
            next_avail: self.next_avail,
            next_used: self.next_used,
            event_idx_enabled: self.event_idx,
            size: self.size,
            ready: self.ready,
            desc_table: self.desc_table,
            avail_ring: self.avail_ring,
            used_ring: self.used_ring,
        };
        (ring, self.phase, self.vector)
    }
}

/// A device behind the transport.
#[derive(Serialize, Deserialize)]
struct VirtioState {
    /// Virtio device id.
    id: u16,
    common: Common,
    status: u8,
    isr: u8,
    config_vector: u16,
    config_generation: u8,
    queues: Vec<QueueSaved>,
}

impl Saved for VirtioState {
    const KIND: &'static str = "virtio device";
    const VERSION: u16 = 1;
}

impl VirtioPci {
    pub(crate) fn save_state(&self) -> Result<Record, SaveError> {
        let common = lock(&self.common);
        self.device.quiesce();
        let save = |queue: &Mutex<VirtQueue>| {
            let mut queue = lock(queue);
            let vector = queue.vector();
            queue.save(|| self.signal(vector, ISR_QUEUE))
        };
        let queues: Option<Vec<_>> = self.queues.iter().map(save).collect();
        let busy = || SaveError::Unsupported(format!("virtio device {} is at work", self.device.id()));
        Record::new(&VirtioState {
            id: self.device.id(),
            queues: queues.ok_or_else(busy)?,
            common: common.clone(),
            status: self.status.load(Ordering::SeqCst),
            isr: self.isr.load(Ordering::SeqCst),
            config_vector: self.config_vector.load(Ordering::SeqCst),
            config_generation: self.config_generation.load(Ordering::SeqCst),
        })
    }

    pub(crate) fn restore_state(&self, record: &Record) -> Result<(), RestoreError> {
        let invalid = |why: &str| RestoreError::invalid::<VirtioState>(why);
        let state: VirtioState = record.open()?;
        if state.id != self.device.id() || state.queues.len() != self.queues.len() {
            return Err(invalid("it is of another type of device"));
        }
        let features = state.common.driver_features();
        if state.status & (FEATURES_OK | DRIVER_OK) != 0 && !self.accepts(features) {
            return Err(invalid("the driver uses features that this device does not have"));
        }
        let mut common = lock(&self.common);
        *common = state.common;
        if state.status & DRIVER_OK != 0 {
            self.device.activate(features);
        }
        for (queue, saved) in self.queues.iter().zip(state.queues) {
            lock(queue).restore(saved).map_err(RestoreError::invalid::<VirtioState>)?;
        }
        self.isr.store(state.isr, Ordering::SeqCst);
        self.config_vector.store(state.config_vector, Ordering::SeqCst);
        self.config_generation.store(state.config_generation, Ordering::SeqCst);
        self.status.store(state.status, Ordering::SeqCst);
        Ok(())
    }
}
