//! The receive side: `vmxnet3_rq_rx_complete` and `vmxnet3_rq_alloc_rx_buf`.

use vmxnet3::spec::desc::*;
use vmxnet3::spec::shared::RxQueueDesc;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

use super::Driver;
use super::rings::{CommandRing, CompletionRing};
use crate::machine::Machine;

/// `PAGE_SIZE`, the size of a body buffer.
const PAGE: u16 = 4096;
/// `VMXNET3_MAX_SKB_BUF_SIZE`.
const HEAD_MAX: u32 = 3072;
/// `VMXNET3_MAX_ETH_HDR_SIZE`.
const ETHERNET_MAX: u32 = 22;
/// `MAX_SKB_FRAGS`, where pages have 4096 bytes.
const MAX_FRAGMENTS: usize = 17;

/// A packet received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub tag: Option<u16>,
    /// The completion's words 0 and 3 of the packet's end.
    pub place: RxPlace,
    pub verdict: RxVerdict,
}

pub(super) struct RxBufferInfo {
    pub(super) address: u64,
    pub(super) len: u16,
    body: bool,
}

pub(super) struct RxQueue {
    pub(super) rings: [CommandRing; 2],
    pub(super) info: [Vec<RxBufferInfo>; 2],
    pub(super) completions: CompletionRing,
    ids: [u16; 2],
    /// A packet whose end has not been seen.
    partial: Option<Vec<u8>>,
    /// Body buffers in it.
    fragments: usize,
}

impl Driver<'_> {
    /// `rx_buf_per_pkt`.
    fn buffers_per_packet(&self) -> u32 {
        1 + (self.options.mtu + ETHERNET_MAX).saturating_sub(HEAD_MAX).div_ceil(u32::from(PAGE))
    }

    pub(super) fn make_rx(&mut self, queue: u8) -> RxQueue {
        let per_packet = self.buffers_per_packet();
        let unit = per_packet * 32;
        let sizes = [self.options.rx_ring, self.options.body_ring].map(|size| size.next_multiple_of(unit));
        let head_len = u16::try_from((self.options.mtu + ETHERNET_MAX).clamp(128, HEAD_MAX)).unwrap();
        let rings = sizes.map(|size| self.command_ring(size));
        let completions = self.completion_ring(sizes[0] + sizes[1]);
        let mut info = [Vec::new(), Vec::new()];
        for (ring, size) in sizes.into_iter().enumerate() {
            for index in 0..size {
                let body = ring == 1 || index % per_packet != 0;
                let len = if body { PAGE } else { head_len };
                let address = self.allocate(u64::from(len));
                info[ring].push(RxBufferInfo { address, len, body });
            }
        }
        let ids = [queue, queue + self.options.queues].map(u16::from);
        let mut queue = RxQueue { rings, info, completions, ids, partial: None, fragments: 0 };
        for ring in 0..2 {
            let count = queue.rings[ring].size.saturating_sub(1);
            queue.fill(self.machine, ring, count);
        }
        queue
    }

    /// `vmxnet3_rq_rx_complete`: takes what was received and posts the buffers again.
    pub fn poll_rx(&mut self, queue: usize) -> Vec<Received> {
        let mut received = Vec::new();
        let rx = &mut self.rx[queue];
        while let Some(completion) = rx.completions.take::<RxCompletion>(self.machine) {
            received.extend(rx.take(self.machine, &completion));
        }
        received
    }
}

impl RxQueue {
    pub(super) fn desc(&self, index: usize) -> RxQueueDesc {
        let mut desc = RxQueueDesc::new_zeroed();
        desc.rings = self.rings.each_ref().map(|ring| U64::new(ring.base));
        desc.ring_sizes = self.rings.each_ref().map(|ring| U32::new(ring.size));
        desc.completion_ring = U64::new(self.completions.base);
        desc.completion_ring_size = U32::new(self.completions.size);
        desc.vector = index as u8;
        desc
    }

    /// Posts `count` buffers.
    fn fill(&mut self, machine: &Machine, ring: usize, count: u32) {
        for _ in 0..count {
            let info = &self.info[ring][self.rings[ring].fill as usize];
            let buffer = RxBuffer::new()
                .with_length(info.len)
                .with_body(info.body)
                .with_generation(self.rings[ring].generation);
            let desc = RxDesc {
                address: U64::new(info.address),
                buffer: U32::new(buffer.into_bits()),
                reserved: U32::ZERO,
            };
            machine.ram().write_obj(self.rings[ring].at(self.rings[ring].fill), &desc).unwrap();
            self.rings[ring].advance_fill();
        }
    }

    /// One completion; a packet if it ends one.
    fn take(&mut self, machine: &Machine, completion: &RxCompletion) -> Option<Received> {
        let place = RxPlace::from_bits(completion.place.get());
        let length = RxLength::from_bits(completion.length.get());
        let verdict = RxVerdict::from_bits(completion.verdict.get());
        let ring = self.ids.iter().position(|id| *id == place.ring()).expect("one of the queue's rings");
        let index = u32::from(place.index());
        let info = &self.info[ring][index as usize];
        let desc: RxDesc = machine.ram().read_obj(self.rings[ring].at(index)).unwrap();
        let buffer = RxBuffer::from_bits(desc.buffer.get());
        assert_eq!((desc.address.get(), buffer.length()), (info.address, info.len), "descriptor left alone");
        assert_eq!(verdict.kind(), RX_COMPLETION);
        assert!(length.length() <= info.len && length.length() > 0);
        let mut bytes = vec![0; usize::from(length.length())];
        machine.ram().read(info.address, &mut bytes).unwrap();
        if place.start_of_packet() {
            assert!(ring == 0 && !info.body, "a packet starts in a head buffer of the first ring");
            assert!(self.partial.is_none());
            self.partial = Some(bytes);
            self.fragments = 0;
        } else {
            assert!(info.body, "a packet goes on in body buffers");
            self.partial.as_mut().expect("a packet was started").extend(bytes);
            self.fragments += 1;
            assert!(self.fragments <= MAX_FRAGMENTS);
        }
        self.repost(machine, ring, index);
        if !place.end_of_packet() {
            return None;
        }
        assert!(!length.error());
        assert_eq!(verdict.checksum(), 0, "would be taken for a partial checksum");
        if verdict.l4_checksum_ok() && (verdict.ipv6() || verdict.ip_checksum_ok()) {
            assert!((verdict.tcp() || verdict.udp()) && !verdict.fragment(), "WARN_ON_ONCE of the driver");
        }
        let tag = length.tag_stripped().then_some(length.tag());
        Some(Received { bytes: self.partial.take().unwrap(), tag, place, verdict })
    }

    /// Buffers before the completed one were passed over and are posted again with those used.
    fn repost(&mut self, machine: &Machine, ring: usize, index: u32) {
        self.rings[ring].comp = index;
        let free = self.rings[ring].free();
        self.fill(machine, ring, free);
    }
}
