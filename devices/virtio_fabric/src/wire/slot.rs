//! The reply body of get_slot_keys, and the head of a completion that returns a slot.

use zerocopy::little_endian::{U16, U32};

layout! {
    /// The key of a slot that the target offers.
    SlotKey [8] {
        /// Which slot.
        slot: U16 = 0,
        /// Zero.
        reserved: U16 = 2,
        /// The key that the next write to it must name.
        rkey: U32 = 4,
    }
}
