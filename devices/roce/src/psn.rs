//! Packet sequence numbers: 24 bits that wrap.

use serde::{Deserialize, Serialize};

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u32")]
pub struct Psn(u32);

impl Psn {
    /// Bits of a sequence number.
    pub const MASK: u32 = 0xff_ffff;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// As a number below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The sequence number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The sequence number just before.
    #[must_use]
    pub const fn before(self) -> Self {
        self.plus(Self::MASK)
    }

    /// Packets from `earlier` up to this one, when the caller knows which of the two comes first.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// How far this one is ahead of `other`, taking the shorter way around: negative when it comes first.
    pub const fn ahead_of(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl From<u32> for Psn {
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(2), Psn::new(1));
        assert_eq!(Psn::new(0).before(), last);
        assert_eq!(Psn::new(1).since(last), 2);
        assert_eq!(Psn::new(1).ahead_of(last), 2);
        assert_eq!(last.ahead_of(Psn::new(1)), -2);
        assert_eq!(Psn::new(0xff00_0001), Psn::new(1));
    }
}
