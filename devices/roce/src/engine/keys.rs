//! Numbers on the wire that cannot be guessed from one another.

/// A secret permutation of the 24-bit numbers: a Feistel network of two halves of 12 bits.
///
/// It turns dense object numbers into keys and queue pair numbers and back, without a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    rounds: [u32; 4],
}

const HALF: u32 = 12;
const HALF_MASK: u32 = (1 << HALF) - 1;

impl Permutation {
    /// The permutation chosen by a secret.
    pub(crate) fn new(secret: u64) -> Self {
        let mut state = secret;
        // SplitMix64 (Steele, Lea, Flood 2014): spreads the secret over the round keys.
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) as u32
        };
        Self { rounds: [next(), next(), next(), next()] }
    }

    /// The wire number of a 24-bit number.
    pub(crate) fn hide(self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> HALF & HALF_MASK, number & HALF_MASK);
        for key in self.rounds {
            (left, right) = (right, left ^ mix(right, key));
        }
        left << HALF | right
    }

    /// The number behind a wire number.
    pub(crate) fn reveal(self, hidden: u32) -> u32 {
        let (mut left, mut right) = (hidden >> HALF & HALF_MASK, hidden & HALF_MASK);
        for key in self.rounds.into_iter().rev() {
            (left, right) = (right ^ mix(left, key), left);
        }
        left << HALF | right
    }
}

fn mix(half: u32, key: u32) -> u32 {
    let x = (half ^ key).wrapping_mul(0x9e37_79b1);
    let x = (x ^ x >> 15).wrapping_mul(key | 1);
    (x ^ x >> 13) >> 7 & HALF_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reveal_undoes_hide_for_every_number() {
        let secret = Permutation::new(42);
        assert!((0..1 << 24).step_by(977).all(|n| secret.reveal(secret.hide(n)) == n));
    }

    #[test]
    fn neighbours_and_secrets_give_unrelated_numbers() {
        let (a, b) = (Permutation::new(1), Permutation::new(2));
        let steps: std::collections::HashSet<_> =
            (0..100).map(|n| a.hide(n + 1).wrapping_sub(a.hide(n))).collect();
        assert!(steps.len() > 95);
        assert!((0..100).filter(|n| a.hide(*n) == b.hide(*n)).count() < 2);
    }
}
