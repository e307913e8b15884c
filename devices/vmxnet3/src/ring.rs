//! Rings of descriptors in guest memory.

use std::sync::atomic::Ordering;

use device_model::ram::{GuestRam, RamError};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::spec::desc::{COMPLETION_GENERATION_WORD, DESC_GENERATION_WORD, DESC_SIZE};

/// Place and size of a ring; checked to be RAM from end to end when the device was activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingArea {
    pub(crate) base: u64,
    /// Descriptors, not zero.
    pub(crate) size: u32,
}

/// A position in a ring and the generation bit that marks descriptors of this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub(crate) index: u32,
    pub(crate) generation: bool,
}

impl Cursor {
    /// `VMXNET3_INIT_GEN` at the ring's start.
    pub(crate) const START: Self = Self { index: 0, generation: true };

    /// Steps to the next descriptor; the generation flips at the ring's end.
    pub(crate) fn advance(&mut self, size: u32) {
        self.index += 1;
        if self.index >= size {
            *self = Self { index: 0, generation: !self.generation };
        }
    }
}

impl RingArea {
    fn address(&self, cursor: Cursor) -> u64 {
        self.base + u64::from(cursor.index) * DESC_SIZE
    }

    /// Copies the descriptor at `cursor` if the driver has handed it over.
    ///
    /// `generation` picks the generation bit out of the descriptor's third word.
    pub(crate) fn take<T: FromBytes + IntoBytes>(
        &self,
        ram: &dyn GuestRam,
        cursor: Cursor,
        generation: impl Fn(u32) -> bool,
    ) -> Result<Option<T>, RamError> {
        let address = self.address(cursor);
        // The driver writes this word last: whoever sees its bit sees the rest of the descriptor.
        let word = ram.load_u32(address + DESC_GENERATION_WORD, Ordering::Acquire)?;
        if generation(word) == cursor.generation { ram.read_obj(address).map(Some) } else { Ok(None) }
    }

    /// Writes a completion, its last word after the others.
    pub(crate) fn complete<T: IntoBytes + Immutable>(
        &self,
        ram: &dyn GuestRam,
        cursor: Cursor,
        completion: &T,
    ) -> Result<(), RamError> {
        let address = self.address(cursor);
        let Some((head, tail)) = completion.as_bytes().split_last_chunk::<4>() else { return Ok(()) };
        ram.write(address, head)?;
        ram.store_u32(address + COMPLETION_GENERATION_WORD, u32::from_le_bytes(*tail), Ordering::Release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_flips_at_the_end_of_every_round() {
        let mut cursor = Cursor::START;
        let mut seen = Vec::new();
        for _ in 0..7 {
            seen.push((cursor.index, cursor.generation));
            cursor.advance(3);
        }
        assert_eq!(seen, [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false), (0, true)]);
    }
}
