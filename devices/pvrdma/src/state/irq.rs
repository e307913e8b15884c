//! Interrupt causes, their mask, and bus mastering.

use std::sync::Arc;

use device_model::irq::Interrupts;
use pvrdma_spec::register::Vector;

/// Delivers interrupts, or keeps them until it may.
pub(crate) struct Irq {
    sink: Arc<dyn Interrupts>,
    /// `IMR`.
    mask: u32,
    /// `ICR`.
    causes: u32,
    /// Causes that came while masked or while the function was not allowed to signal.
    pending: u32,
    bus_master: bool,
    /// Interrupts signalled, by vector.
    pub(crate) signalled: [u64; Vector::COUNT as usize],
}

impl Irq {
    pub(crate) const fn new(sink: Arc<dyn Interrupts>) -> Self {
        Self {
            sink,
            mask: 0,
            causes: 0,
            pending: 0,
            bus_master: false,
            signalled: [0; Vector::COUNT as usize],
        }
    }

    /// Signals a cause, now or when it is unmasked.
    pub(crate) fn raise(&mut self, vector: Vector) {
        self.causes |= vector.bit();
        self.pending |= vector.bit();
        self.deliver();
    }

    /// Whether the device may read and write guest memory.
    pub(crate) const fn bus_master(&self) -> bool {
        self.bus_master
    }

    pub(crate) fn set_bus_master(&mut self, enabled: bool) {
        self.bus_master = enabled;
        self.deliver();
    }

    /// `IMR`
    pub(crate) const fn mask(&self) -> u32 {
        self.mask
    }

    pub(crate) fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
        self.deliver();
    }

    /// Reads `ICR`, which clears it.
    pub(crate) fn take_causes(&mut self) -> u32 {
        std::mem::take(&mut self.causes)
    }

    /// Forgets causes and mask, but not whether the function masters the bus.
    pub(crate) const fn reset(&mut self) {
        (self.mask, self.causes, self.pending) = (0, 0, 0);
    }

    /// `IMR`, `ICR`, and causes not signalled yet.
    pub(crate) const fn state(&self) -> (u32, u32, u32) {
        (self.mask, self.causes, self.pending)
    }

    /// Takes a saved state over.
    pub(crate) fn restore(&mut self, (mask, causes, pending): (u32, u32, u32)) {
        (self.mask, self.causes, self.pending) = (mask, causes, pending);
        self.deliver();
    }

    fn deliver(&mut self) {
        if !self.bus_master {
            return;
        }
        for vector in Vector::ALL {
            if self.pending & !self.mask & vector.bit() != 0 {
                self.pending &= !vector.bit();
                self.signalled[vector as usize] += 1;
                self.sink.signal(vector as u16);
            }
        }
    }
}
