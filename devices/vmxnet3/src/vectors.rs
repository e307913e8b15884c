//! Masking of interrupt vectors by the device's own registers, on top of MSI-X.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use device_model::irq::Interrupts;

use crate::spec::MAX_VECTORS;

/// IMR is set: the vector does not fire.
const MASKED: u8 = 1;
/// Something happened while the vector could not fire.
const PENDING: u8 = 2;

/// The vectors' mask and pending bits.
///
/// With auto-mask a vector masks itself as it fires, and the driver's interrupt handler unmasks it when it has seen
/// everything; what happened in between fires then, so nothing is lost and a busy driver is not interrupted.
pub(crate) struct Vectors {
    interrupts: Arc<dyn Interrupts>,
    auto_mask: AtomicBool,
    state: [AtomicU8; MAX_VECTORS as usize],
}

impl Vectors {
    pub(crate) fn new(interrupts: Arc<dyn Interrupts>) -> Self {
        Self {
            interrupts,
            auto_mask: AtomicBool::new(true),
            state: std::array::from_fn(|_| AtomicU8::new(MASKED)),
        }
    }

    /// Whether firing masks, and the state of each vector.
    pub(crate) fn state(&self) -> (bool, Vec<u8>) {
        let states = self.state.iter().map(|state| state.load(Ordering::Relaxed));
        (self.auto_mask.load(Ordering::Relaxed), states.collect())
    }

    /// Takes a saved state over; `false` when it is not one.
    #[must_use]
    pub(crate) fn restore(&self, auto_mask: bool, states: &[u8]) -> bool {
        let valid = states.len() == self.state.len() && states.iter().all(|state| *state <= MASKED | PENDING);
        if valid {
            self.auto_mask.store(auto_mask, Ordering::Relaxed);
            self.state.iter().zip(states).for_each(|(own, saved)| own.store(*saved, Ordering::Relaxed));
        }
        valid
    }

    /// Masks everything and forgets what is pending.
    pub(crate) fn reset(&self) {
        let Self { interrupts: _, auto_mask, state } = self;
        auto_mask.store(true, Ordering::Relaxed);
        for vector in state {
            vector.store(MASKED, Ordering::Relaxed);
        }
    }

    /// Forgets what is pending and sets whether firing masks.
    pub(crate) fn activate(&self, auto_mask: bool) {
        self.auto_mask.store(auto_mask, Ordering::Relaxed);
        for vector in &self.state {
            vector.fetch_and(!PENDING, Ordering::Relaxed);
        }
    }

    /// Reports an event on `vector`: fires it, or remembers to.
    pub(crate) fn raise(&self, vector: u8, may_fire: bool) {
        self.update(vector, |state| {
            if state & MASKED != 0 || !may_fire { (state | PENDING, false) } else { self.fire(state) }
        });
    }

    /// The driver unmasked `vector`: fires it if something is pending.
    pub(crate) fn unmask(&self, vector: u8, may_fire: bool) {
        self.update(vector, |state| {
            let state = state & !MASKED;
            if state & PENDING != 0 && may_fire { self.fire(state) } else { (state, false) }
        });
    }

    pub(crate) fn mask(&self, vector: u8) {
        self.update(vector, |state| (state | MASKED, false));
    }

    pub(crate) fn is_masked(&self, vector: u8) -> bool {
        self.state.get(usize::from(vector)).is_some_and(|state| state.load(Ordering::Relaxed) & MASKED != 0)
    }

    /// The state after firing.
    fn fire(&self, state: u8) -> (u8, bool) {
        let mask = if self.auto_mask.load(Ordering::Relaxed) { MASKED } else { 0 };
        ((state & !PENDING) | mask, true)
    }

    /// Replaces the state atomically and signals if the step says so.
    fn update(&self, vector: u8, step: impl Fn(u8) -> (u8, bool)) {
        let Some(cell) = self.state.get(usize::from(vector)) else { return };
        let old = cell
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| Some(step(state).0))
            .unwrap_or_else(|state| state);
        if step(old).1 {
            self.interrupts.signal(u16::from(vector));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Fired(Mutex<Vec<u16>>);

    impl Interrupts for Fired {
        fn signal(&self, vector: u16) {
            self.0.lock().unwrap().push(vector);
        }
    }

    fn vectors() -> (Arc<Fired>, Vectors) {
        let fired = Arc::new(Fired::default());
        (fired.clone(), Vectors::new(fired))
    }

    fn taken(fired: &Fired) -> Vec<u16> {
        std::mem::take(&mut fired.0.lock().unwrap())
    }

    #[test]
    fn event_while_masked_fires_on_unmask_once() {
        let (fired, vectors) = vectors();
        vectors.raise(3, true);
        vectors.raise(3, true);
        assert!(taken(&fired).is_empty());
        vectors.unmask(3, true);
        assert_eq!(taken(&fired), [3]);
        vectors.unmask(3, true);
        assert!(taken(&fired).is_empty());
    }

    #[test]
    fn auto_mask_holds_back_until_unmasked() {
        let (fired, vectors) = vectors();
        vectors.unmask(0, true);
        vectors.raise(0, true);
        vectors.raise(0, true);
        assert_eq!(taken(&fired), [0]);
        assert!(vectors.is_masked(0));
        vectors.unmask(0, true);
        assert_eq!(taken(&fired), [0]);
    }

    #[test]
    fn without_auto_mask_every_event_fires() {
        let (fired, vectors) = vectors();
        vectors.activate(false);
        vectors.unmask(1, true);
        vectors.raise(1, true);
        vectors.raise(1, true);
        assert_eq!(taken(&fired), [1, 1]);
    }

    #[test]
    fn nothing_fires_when_it_may_not_and_nothing_is_lost() {
        let (fired, vectors) = vectors();
        vectors.unmask(2, true);
        vectors.raise(2, false);
        assert!(taken(&fired).is_empty());
        vectors.raise(2, true);
        assert_eq!(taken(&fired), [2]);
    }

    #[test]
    fn vectors_that_do_not_exist_are_ignored() {
        let (fired, vectors) = vectors();
        vectors.unmask(255, true);
        vectors.raise(255, true);
        assert!(!vectors.is_masked(255));
        assert!(taken(&fired).is_empty());
    }
}
