//! The driver's ring arithmetic (`pvrdma_ring.h`).
//!
//! An index of a ring of `N` slots counts modulo `2 * N`, so that full and empty differ, and it does so with bit masks. For
//! the rings of the device itself Linux picks an `N` that is no power of two (3072 notifications, 1536 events), where the
//! same masks yield a shorter cycle: increments never set the bits above the lowest zero of the mask, so the ring behaves as
//! one of [`Indices::capacity`] slots. The device has to follow suit, and mind the fill level itself, since the driver's
//! "full" test never holds there.

/// Arithmetic of the indices of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Indices {
    /// Slots, 1 to 2^30.
    slots: u32,
}

impl Indices {
    /// Arithmetic of a ring of `slots` slots; `None` outside 1 to 2^30.
    pub(crate) const fn new(slots: u32) -> Option<Self> {
        if slots == 0 || slots > 1 << 30 { None } else { Some(Self { slots }) }
    }

    /// Number of slots.
    pub(crate) const fn slots(self) -> u32 {
        self.slots
    }

    /// Entries that can wait at a time.
    pub(crate) const fn capacity(self) -> u32 {
        1 << (self.slots - 1).trailing_ones()
    }

    /// Number of different indices.
    const fn period(self) -> u32 {
        self.capacity() * 2
    }

    /// Whether increments from zero ever yield `index`.
    pub(crate) const fn is_valid(self, index: u32) -> bool {
        index < self.period()
    }

    /// Slot of a valid index.
    pub(crate) const fn slot(self, index: u32) -> u32 {
        index & (self.slots - 1)
    }

    /// The index after `index`.
    pub(crate) const fn next(self, index: u32) -> u32 {
        (index + 1) & (2 * self.slots - 1)
    }

    /// Increments that lead from one valid index to another.
    pub(crate) const fn distance(self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & (self.period() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All indices that increments from zero yield, in order.
    fn cycle(indices: Indices) -> Vec<u32> {
        let mut all = vec![0];
        let mut index = indices.next(0);
        while index != 0 {
            all.push(index);
            index = indices.next(index);
        }
        all
    }

    fn check(slots: u32, capacity: u32) {
        let indices = Indices::new(slots).unwrap();
        let cycle = cycle(indices);
        assert_eq!(indices.capacity(), capacity, "{slots} slots");
        assert_eq!(cycle.len() as u32, 2 * capacity, "{slots} slots");
        let touched: BTreeSet<_> = cycle.iter().map(|index| indices.slot(*index)).collect();
        assert_eq!(touched.len() as u32, capacity, "{slots} slots");
        assert!(cycle.iter().all(|index| indices.is_valid(*index)));
        assert!(!indices.is_valid(2 * capacity));
        for window in cycle.chunks(capacity as usize) {
            let slots: BTreeSet<_> = window.iter().map(|index| indices.slot(*index)).collect();
            assert_eq!(slots.len() as u32, capacity, "entries that wait together share no slot");
        }
        for (steps, index) in cycle.iter().enumerate() {
            assert_eq!(indices.distance(0, *index), steps as u32);
            assert_eq!(indices.distance(*index, 0), (2 * capacity - steps as u32) % (2 * capacity));
        }
    }

    #[test]
    fn powers_of_two_use_every_slot() {
        for shift in 0..12 {
            check(1 << shift, 1 << shift);
        }
    }

    #[test]
    fn rings_of_three_pages_cycle_as_the_driver_does() {
        check(3072, 1024);
        check(1536, 512);
    }

    #[test]
    fn other_page_counts_agree_with_brute_force() {
        for pages in 1..40 {
            let slots: u32 = pages * 512;
            let lowest_zero = (0..).find(|bit| (slots - 1) & (1 << bit) == 0).unwrap();
            check(slots, 1 << lowest_zero);
        }
    }

    #[test]
    fn sizes_whose_doubled_mask_would_overflow_are_refused() {
        assert_eq!(Indices::new(0), None);
        assert_eq!(Indices::new((1 << 30) + 1), None);
        assert!(Indices::new(1 << 30).unwrap().is_valid((1 << 31) - 1));
    }
}
