//! What atomics must answer: the values one initiator finds in a counter that only it changes.

/// One atomic on a 64-bit counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// FETCH AND ADD.
    Add(u64),
    /// COMPARE AND SWAP.
    CompareSwap {
        /// Swapped only if the counter is this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// The atomics of a run with the value each must find, in order.
pub struct Script {
    value: u64,
    next: u32,
    count: u32,
}

impl Script {
    /// `count` additions, then as many swaps. The counter starts at zero.
    pub fn new(count: u32) -> Self {
        Self { value: 0, next: 0, count }
    }

    /// Value of the counter behind everything given so far.
    pub fn value(&self) -> u64 {
        self.value
    }

    fn atomic(&self) -> Atomic {
        let n = u64::from(self.next) + 1;
        if self.next < self.count {
            // Large steps, so that every byte of the counter takes part.
            return Atomic::Add(n.wrapping_mul(0x0101_0101_0101_0101));
        }
        let swap = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hits = self.next.is_multiple_of(2);
        Atomic::CompareSwap { compare: if hits { self.value } else { !self.value }, swap }
    }
}

impl Iterator for Script {
    type Item = (Atomic, u64);

    /// The next atomic and what it must find.
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == 2 * self.count {
            return None;
        }
        let (atomic, found) = (self.atomic(), self.value);
        self.value = match atomic {
            Atomic::Add(amount) => found.wrapping_add(amount),
            Atomic::CompareSwap { compare, swap } if compare == found => swap,
            Atomic::CompareSwap { .. } => found,
        };
        self.next += 1;
        Some((atomic, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_adds_then_swaps_with_hits_and_misses() {
        let mut script = Script::new(2);
        let steps: Vec<_> = script.by_ref().collect();
        let sum = 3 * 0x0101_0101_0101_0101;
        assert_eq!(steps[0], (Atomic::Add(0x0101_0101_0101_0101), 0));
        assert_eq!(steps[1].1, 0x0101_0101_0101_0101);
        assert!(
            matches!(steps[2], (Atomic::CompareSwap { compare, .. }, found) if found == sum && compare == sum)
        );
        assert!(matches!(steps[3], (Atomic::CompareSwap { compare, .. }, found) if compare != found));
        assert_eq!(steps.len(), 4);
        assert_eq!(script.value(), steps[3].1);
    }
}
