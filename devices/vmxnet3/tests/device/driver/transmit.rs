//! The transmit side: `vmxnet3_tq_xmit` and `vmxnet3_tq_tx_complete`.

use vmxnet3::spec::desc::*;
use vmxnet3::spec::regs::BAR_DATA;
use vmxnet3::spec::shared::TxQueueDesc;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

use super::rings::{CommandRing, CompletionRing};
use super::{Driver, TXPROD};
use crate::machine::Machine;

/// `VMXNET3_HDR_COPY_SIZE`.
const HEADER_COPY: usize = 128;

/// An offload request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub mode: u8,
    pub header_len: u16,
    pub mss_or_offset: u16,
    pub tag: Option<u16>,
}

pub(super) struct TxQueue {
    pub(super) ring: CommandRing,
    pub(super) completions: CompletionRing,
    data: u64,
    buffers: u64,
    /// Start of the packet that ends at this index.
    start_of: Vec<Option<u32>>,
}

impl Driver<'_> {
    pub(super) fn make_tx(&mut self) -> TxQueue {
        let size = self.options.tx_ring;
        let ring = self.command_ring(size);
        let completions = self.completion_ring(size);
        let data = self.allocate(u64::from(size) * HEADER_COPY as u64);
        let buffers = self.allocate(0x2_0000);
        TxQueue { ring, completions, data, buffers, start_of: vec![None; size as usize] }
    }

    /// Whether a packet of `pieces` pieces fits the ring.
    pub fn can_send(&self, queue: usize, pieces: usize) -> bool {
        (self.tx[queue].ring.free() as usize) > pieces + 1
    }

    /// Queues a packet whose first bytes are copied next to the ring, as Linux does with headers, and whose rest lies
    /// in several pieces; then kicks.
    pub fn send(&mut self, queue: usize, frame: &[u8], pieces: usize, offload: Offload) {
        let header = match offload.mode {
            OFFLOAD_TSO => usize::from(offload.header_len),
            _ => frame.len().min(HEADER_COPY),
        };
        let machine = self.machine;
        let tx = &mut self.tx[queue];
        assert!(tx.ring.free() as usize > pieces);
        let start = tx.ring.fill;
        let mut place = tx.data + u64::from(start) * HEADER_COPY as u64;
        machine.ram().write(place, &frame[..header]).unwrap();
        let rest = &frame[header..];
        machine.ram().write(tx.buffers, rest).unwrap();
        let chunk = rest.len().div_ceil(pieces.max(1)).clamp(1, TX_BUFFER_MAX as usize);
        let lens = std::iter::once(header).chain(rest.chunks(chunk).map(<[u8]>::len));
        let count = 1 + rest.chunks(chunk).len();
        let mut next = tx.buffers;
        let first = (start, tx.ring.generation);
        for (position, len) in lens.enumerate() {
            let end = position + 1 == count;
            tx.write_desc(machine, place, len, position == 0, end, offload);
            place = next;
            next += chunk as u64;
            if end {
                tx.start_of[tx.ring.fill as usize] = Some(start);
            }
            tx.ring.advance_fill();
        }
        // The first descriptor's generation bit is set last.
        let address = tx.ring.at(first.0) + DESC_GENERATION_WORD;
        let word: U32 = machine.ram().read_obj(address).unwrap();
        let word = TxBuffer::from_bits(word.get()).with_generation(first.1);
        machine.ram().write_obj(address, &U32::new(word.into_bits())).unwrap();
        let fill = tx.ring.fill;
        self.write(BAR_DATA, TXPROD + 8 * queue as u64, fill);
    }

    /// `vmxnet3_tq_tx_complete`: takes completions; returns the number of packets.
    pub fn complete_tx(&mut self, queue: usize) -> usize {
        let tx = &mut self.tx[queue];
        let mut packets = 0;
        while let Some(completion) = tx.completions.take::<TxCompletion>(self.machine) {
            let index = completion.index.get();
            assert_eq!(index >> 12, 0);
            assert_eq!(CompletionTail::from_bits(completion.tail.get()).kind(), 0);
            let start = tx.start_of[index as usize].take();
            assert_eq!(start, Some(tx.ring.comp), "completed the end of the oldest packet");
            let desc: TxDesc = self.machine.ram().read_obj(tx.ring.at(index)).unwrap();
            assert!(TxOptions::from_bits(desc.options.get()).end_of_packet());
            tx.ring.comp = (index + 1) % tx.ring.size;
            packets += 1;
        }
        packets
    }
}

impl TxQueue {
    pub(super) fn desc(&self, index: usize) -> TxQueueDesc {
        let mut desc = TxQueueDesc::new_zeroed();
        desc.ring = U64::new(self.ring.base);
        desc.ring_size = U32::new(self.ring.size);
        desc.data_ring = U64::new(self.data);
        desc.data_ring_size = U32::new(self.ring.size);
        desc.completion_ring = U64::new(self.completions.base);
        desc.completion_ring_size = U32::new(self.completions.size);
        desc.vector = index as u8;
        desc
    }

    fn write_desc(
        &self,
        machine: &Machine,
        address: u64,
        len: usize,
        first: bool,
        end: bool,
        offload: Offload,
    ) {
        let mut buffer = TxBuffer::new()
            .with_length(u16::try_from(len % TX_BUFFER_MAX as usize).unwrap())
            .with_generation(self.ring.generation != first);
        let mut options = TxOptions::new().with_end_of_packet(end).with_completion(end);
        if first {
            buffer.set_mss_or_checksum_offset(offload.mss_or_offset);
            options.set_header_len(offload.header_len);
            options.set_offload(offload.mode);
            options.set_insert_tag(offload.tag.is_some());
            options.set_tag(offload.tag.unwrap_or(0));
        }
        let desc = TxDesc {
            address: U64::new(address),
            buffer: U32::new(buffer.into_bits()),
            options: U32::new(options.into_bits()),
        };
        machine.ram().write_obj(self.ring.at(self.ring.fill), &desc).unwrap();
    }
}
