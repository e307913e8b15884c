//! Rings as the driver sees them.

use vmxnet3::spec::desc::DESC_SIZE;
use zerocopy::little_endian::U32;

use crate::machine::Machine;

/// A ring of which the driver fills entries and the device uses them.
pub(super) struct CommandRing {
    pub(super) base: u64,
    pub(super) size: u32,
    pub(super) fill: u32,
    pub(super) comp: u32,
    pub(super) generation: bool,
}

impl CommandRing {
    pub(super) fn free(&self) -> u32 {
        (if self.comp > self.fill { 0 } else { self.size }) + self.comp - self.fill - 1
    }

    pub(super) fn at(&self, index: u32) -> u64 {
        self.base + u64::from(index) * DESC_SIZE
    }

    pub(super) fn advance_fill(&mut self) {
        self.fill += 1;
        if self.fill == self.size {
            self.fill = 0;
            self.generation = !self.generation;
        }
    }
}

/// A ring of completions.
pub(super) struct CompletionRing {
    pub(super) base: u64,
    pub(super) size: u32,
    pub(super) next: u32,
    pub(super) generation: bool,
}

impl CompletionRing {
    pub(super) fn take<T: zerocopy::FromBytes + zerocopy::IntoBytes>(
        &mut self,
        machine: &Machine,
    ) -> Option<T> {
        let address = self.base + u64::from(self.next) * DESC_SIZE;
        let tail: U32 = machine.ram().read_obj(address + 12).unwrap();
        if (tail.get() >> 31 == 1) != self.generation {
            return None;
        }
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.generation = !self.generation;
        }
        Some(machine.ram().read_obj(address).unwrap())
    }
}
