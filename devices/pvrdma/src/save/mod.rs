//! The device as it is saved.
//!
//! Page lists move as they were copied when the guest handed them over, never read again: the guest may have changed what
//! they were copied from. Sizes are not saved where they follow from something else, so that nothing can contradict them.
//! Counters and the list of failures stay behind.

mod objects;
mod region;

use device_model::save::{Record, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};
use verbs::Gid;
use zerocopy::IntoBytes;

use self::objects::ObjectsState;
use self::region::PhaseState;
use crate::event::{EventQueue, EventQueueState};
use crate::state::Core;
use crate::work::Source;

/// Everything the device knows.
#[derive(Debug, Serialize, Deserialize)]
struct PvrdmaState {
    /// What it advertised to the driver.
    caps: Vec<u8>,
    /// Interrupt mask, causes, and causes not signalled yet.
    irq: (u32, u32, u32),
    phase: PhaseState,
    dsr_low: u32,
    error: u32,
    mac: [u8; 8],
    link_up: bool,
    gids: Vec<(u16, Gid)>,
    objects: ObjectsState,
    events: EventQueueState,
    provider: Record,
}

impl Saved for PvrdmaState {
    const KIND: &'static str = "pvrdma";
    const VERSION: u16 = 1;
}

fn invalid(why: &str) -> RestoreError {
    RestoreError::invalid::<PvrdmaState>(why)
}

impl Core {
    pub(crate) fn save(&mut self) -> Result<Record, SaveError> {
        Record::new(&PvrdmaState {
            caps: self.caps.as_bytes().to_vec(),
            irq: self.irq.state(),
            phase: PhaseState::of(&self.phase),
            dsr_low: self.dsr_low,
            error: self.error,
            mac: self.mac,
            link_up: self.link_up,
            gids: self.gids.iter().map(|(row, gid)| (*row, *gid)).collect(),
            objects: ObjectsState::of(&self.objects, &self.polled),
            events: self.events.state(),
            provider: self.provider.save((self.clock)())?,
        })
    }

    /// Restores a saved state; the device is in its power-on state if that fails.
    pub(crate) fn restore(&mut self, record: &Record) -> Result<(), RestoreError> {
        let state: PvrdmaState = record.open()?;
        // The driver has read them, and its tables are as large as they say.
        if state.caps != self.caps.as_bytes() {
            return Err(invalid("the device was of another size or address"));
        }
        let restored = self.adopt(state);
        if restored.is_err() {
            self.abandon();
        }
        restored
    }

    fn adopt(&mut self, state: PvrdmaState) -> Result<(), RestoreError> {
        let PvrdmaState {
            caps: _,
            irq,
            phase,
            dsr_low,
            error,
            mac,
            link_up,
            gids,
            objects,
            events,
            provider,
        } = state;
        self.provider.restore((self.clock)(), &provider)?;
        self.phase = phase.restore(&*self.ram)?;
        (self.dsr_low, self.error, self.mac) = (dsr_low, error, mac);
        self.restore_objects(objects)?;
        self.gids = gids.into_iter().collect();
        if events.notifications.iter().any(|cq| self.objects.cqs.get(*cq).is_none()) {
            return Err(invalid("a notification is of no completion queue"));
        }
        self.events = EventQueue::restored(events).ok_or_else(|| invalid("an event is unknown"))?;
        self.irq.restore(irq);
        // The cable here may be plugged in or not; the guest knows how it was there.
        let up = std::mem::replace(&mut self.link_up, link_up);
        self.set_link(up);
        self.look_everywhere();
        self.arms_unchecked = true;
        Ok(())
    }

    fn abandon(&mut self) {
        let bus_master = self.irq.bus_master();
        self.provider.reset();
        self.doorbells.unregister_all();
        self.power_on();
        self.irq.set_bus_master(bus_master);
    }

    /// Looks at every ring once: a doorbell may have rung that nobody answered.
    fn look_everywhere(&mut self) {
        let qps: Vec<u32> = self.objects.all_qps().map(|(handle, _)| handle).collect();
        for handle in qps {
            self.enqueue(Source::Send(handle));
            self.enqueue(Source::Recv(handle));
        }
        for handle in self.objects.srqs.handles(|_| true) {
            self.enqueue(Source::Srq(handle));
        }
    }
}
