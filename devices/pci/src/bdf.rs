//! Addresses of functions.

use std::fmt;

/// A device (slot) and function number on bus 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u8);

impl Bdf {
    /// Where the host bridge is: 00:00.0.
    pub const HOST_BRIDGE: Self = Self(0);

    /// Slots of the bus.
    pub const SLOTS: u8 = 32;

    /// Functions of a slot.
    pub const FUNCTIONS: u8 = 8;

    /// The function at `slot` (0 to 31) and `function` (0 to 7); `None` when a number is too large.
    pub const fn new(slot: u8, function: u8) -> Option<Self> {
        if slot < Self::SLOTS && function < Self::FUNCTIONS { Some(Self(slot << 3 | function)) } else { None }
    }

    /// From the device and function byte of a config address.
    pub(crate) const fn from_devfn(devfn: u8) -> Self {
        Self(devfn)
    }

    /// Slot number, 0 to 31.
    pub const fn slot(self) -> u8 {
        self.0 >> 3
    }

    /// Function number, 0 to 7.
    pub const fn function(self) -> u8 {
        self.0 & 7
    }

    /// Function 0 of the same slot.
    pub(crate) const fn function_zero(self) -> Self {
        Self(self.0 & !7)
    }

    /// Index into a table of all functions of the bus.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00:{:02x}.{}", self.slot(), self.function())
    }
}
