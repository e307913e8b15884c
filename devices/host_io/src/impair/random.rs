//! The random numbers of an impairment.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"). Written out because a run must be
/// repeatable from its seed by any later release, which no library promises; nothing here needs to be unpredictable.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero when `bound` is.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: uniform to within 2^-64 of a frame count nobody reaches.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
