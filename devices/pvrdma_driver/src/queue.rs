//! Rings as the Linux driver and its library use them (`pvrdma_ring.h`).

use alloc::vec::Vec;

use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::queue::{CONS_HEAD_OFFSET, PROD_TAIL_OFFSET, RecvWqeHeader, SendWqeHeader, Sge, WrOpcode};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{Buffer, Platform};

/// One direction of a shared ring. Pages are named by the buffer it lives in.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Byte offset of the indices in the buffer.
    pub state: u64,
    /// Byte offset of slot 0.
    pub base: u64,
    /// Slots. Not a power of two for the device's own rings.
    pub slots: u32,
    /// Bytes of a slot.
    pub stride: u32,
}

impl Ring {
    /// The driver's increment.
    pub const fn next(self, index: u32) -> u32 {
        (index + 1) & ((self.slots << 1) - 1)
    }

    /// Byte offset of the slot of an index.
    pub fn slot(self, index: u32) -> u64 {
        self.base + u64::from(index & (self.slots - 1)) * u64::from(self.stride)
    }

    /// Reads the producer's index.
    pub fn tail<P: Platform>(self, platform: &P, buffer: &Buffer) -> u32 {
        platform.load(buffer.address(self.state + PROD_TAIL_OFFSET))
    }

    /// Reads the consumer's index.
    pub fn head<P: Platform>(self, platform: &P, buffer: &Buffer) -> u32 {
        platform.load(buffer.address(self.state + CONS_HEAD_OFFSET))
    }

    /// Writes the producer's index.
    pub fn set_tail<P: Platform>(self, platform: &P, buffer: &Buffer, index: u32) {
        platform.store(buffer.address(self.state + PROD_TAIL_OFFSET), index);
    }

    /// Writes the consumer's index.
    pub fn set_head<P: Platform>(self, platform: &P, buffer: &Buffer, index: u32) {
        platform.store(buffer.address(self.state + CONS_HEAD_OFFSET), index);
    }

    /// Fills the next slot; `false` when the ring is full.
    pub fn push<P: Platform>(self, platform: &P, buffer: &Buffer, bytes: &[u8]) -> bool {
        let tail = self.tail(platform, buffer);
        if tail == self.head(platform, buffer) ^ self.slots {
            return false;
        }
        buffer.write(platform, self.slot(tail), bytes);
        self.set_tail(platform, buffer, self.next(tail));
        true
    }

    /// Takes the next element; `None` when the ring is empty.
    pub fn pop<P: Platform, T: FromBytes + IntoBytes>(self, platform: &P, buffer: &Buffer) -> Option<T> {
        let head = self.head(platform, buffer);
        if self.tail(platform, buffer) == head {
            return None;
        }
        let mut element = T::new_zeroed();
        buffer.read(platform, self.slot(head), element.as_mut_bytes());
        self.set_head(platform, buffer, self.next(head));
        Some(element)
    }
}

/// Bytes of a slot for a header and `max_sge` elements.
pub(crate) fn stride(header: usize, max_sge: u32) -> u32 {
    (header as u32 + max_sge * size_of::<Sge>() as u32).next_power_of_two()
}

/// Pages of `slots` slots.
pub(crate) fn pages(slots: u32, stride: u32) -> u32 {
    (u64::from(slots) * u64::from(stride)).div_ceil(PAGE_SIZE) as u32
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWork {
    /// Header, operands included.
    pub header: SendWqeHeader,
    /// Gather list.
    pub sges: Vec<Sge>,
}

impl SendWork {
    /// A request with an opcode, no operands and the given elements.
    pub fn new(wr_id: u64, opcode: WrOpcode, send_flags: u32, sges: &[Sge]) -> Self {
        let mut header = SendWqeHeader::new_zeroed();
        header.wr_id = wr_id;
        header.num_sge = sges.len() as u32;
        header.opcode = opcode as u32;
        header.send_flags = send_flags;
        Self { header, sges: sges.to_vec() }
    }

    /// With operands.
    #[must_use]
    pub fn operands(mut self, operands: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        let bytes = operands.as_bytes();
        self.header.wr[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// With immediate data or a key to invalidate.
    #[must_use]
    pub const fn extra(mut self, ex: [u8; 4]) -> Self {
        self.header.ex = ex;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.header.as_bytes(), self.sges.as_slice().as_bytes()].concat()
    }
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Header.
    pub header: RecvWqeHeader,
    /// Scatter list.
    pub sges: Vec<Sge>,
}

impl Recv {
    /// A request with the given elements.
    pub fn new(wr_id: u64, sges: &[Sge]) -> Self {
        let header = RecvWqeHeader { wr_id, num_sge: sges.len() as u32, total_len: 0 };
        Self { header, sges: sges.to_vec() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.header.as_bytes(), self.sges.as_slice().as_bytes()].concat()
    }
}
