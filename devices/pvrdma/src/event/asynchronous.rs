//! Asynchronous events.

use device_model::guest_warn;
use pvrdma_spec::event::{Eqe, EventType};
use pvrdma_spec::register::Vector;
use zerocopy::IntoBytes;

use crate::ring::RingError;
use crate::state::Core;

/// Port number in port events.
const PORT: u32 = 1;

impl Core {
    /// Tells the guest of an event. One that already waits to be told is not told twice.
    pub(crate) fn raise_event(&mut self, kind: EventType, info: u32) {
        let dumb = self.phase.active().is_none() || self.events.events_broken;
        if dumb || self.events.events.contains(&(kind, info)) {
            return;
        }
        self.events.events.push_back((kind, info));
        self.flush_events();
    }

    /// The link came up or went down.
    pub(crate) fn set_link(&mut self, up: bool) {
        let before = self.is_port_up();
        self.link_up = up;
        self.tell_of_port(before);
    }

    /// The provider's own port came up or went down.
    pub(super) fn set_port(&mut self, up: bool) {
        let before = self.is_port_up();
        self.provider_up = up;
        self.tell_of_port(before);
    }

    /// Whether link and provider carry traffic.
    pub(crate) const fn is_port_up(&self) -> bool {
        self.link_up && self.provider_up
    }

    /// Whether packets come and go: the port is up and so is the paired network interface.
    pub(crate) fn carries_packets(&self) -> bool {
        self.is_port_up() && (self.interface_up)()
    }

    /// Tells the provider whether packets come and go.
    pub(crate) fn follow_port(&mut self) {
        let up = self.carries_packets();
        self.provider.set_port(up);
    }

    fn tell_of_port(&mut self, before: bool) {
        let up = self.is_port_up();
        if up != before {
            self.raise_event(if up { EventType::PortActive } else { EventType::PortErr }, PORT);
        }
    }

    /// Moves waiting events to the ring as far as it has room.
    pub(crate) fn flush_events(&mut self) {
        if !self.irq.bus_master() || self.events.events.is_empty() {
            return;
        }
        let moved = self.move_events();
        if let Err(error) = moved {
            guest_warn!(%error, "asynchronous event ring broken by the guest");
            self.counters.broken_rings += 1;
            self.events.events_broken = true;
            self.events.events.clear();
        } else {
            self.irq.raise(Vector::Async);
        }
    }

    fn move_events(&mut self) -> Result<(), RingError> {
        let Some(region) = self.phase.active_mut() else { return Ok(()) };
        let space = region.events.space(&*self.ram)? as usize;
        let count = space.min(self.events.events.len());
        for (kind, info) in self.events.events.drain(..count) {
            region.events.push(&*self.ram, Eqe { kind: kind as u32, info }.as_bytes())?;
            self.counters.events += 1;
        }
        Ok(())
    }

    /// Signals events the driver has left in the ring.
    pub(crate) fn remind_of_events(&mut self) {
        self.flush_events();
        let left = self.phase.active().map(|region| region.events.waiting(&*self.ram));
        if self.irq.bus_master() && matches!(left, Some(Ok(1..))) {
            self.irq.raise(Vector::Async);
        }
    }
}
