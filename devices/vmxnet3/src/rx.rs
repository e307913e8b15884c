//! A receive queue: frames in, scattered over the buffers the driver posted.

use device_model::guest_warn;
use device_model::ram::{GuestRam, RamError, RamSlice};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::ring::{Cursor, RingArea};
use crate::spec::QueueError;
use crate::spec::desc::{RX_COMPLETION, RxBuffer, RxCompletion, RxDesc, RxLength, RxPlace, RxVerdict};

/// Buffers one frame may take: a head and as many page fragments as a Linux socket buffer holds.
pub(crate) const MAX_PACKET_BUFFERS: usize = 18;

/// An active receive queue. Plain data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RxQueue {
    /// Head ring and body ring; drivers may do without the second.
    pub(crate) rings: [Option<RingArea>; 2],
    pub(crate) completions: RingArea,
    /// Vector to raise after completions.
    pub(crate) vector: u8,
    /// The rings' numbers in completions.
    pub(crate) ring_ids: [u16; 2],
    /// Buffers the driver takes per frame, at most [`MAX_PACKET_BUFFERS`].
    pub(crate) max_buffers: usize,
    pub(crate) next: [Cursor; 2],
    pub(crate) next_completion: Cursor,
    /// Set once the rings cannot be understood any more; only a new activation helps.
    pub(crate) stopped: Option<QueueError>,
}

/// A packet for the guest.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    /// Its bytes, in pieces.
    pub(crate) parts: SmallVec<[&'a [u8]; 2]>,
    /// The VLAN tag that was left out.
    pub(crate) tag: Option<u16>,
    /// What is known of its checksums; `None` to report nothing.
    pub(crate) verdict: Option<RxVerdict>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is in the guest's buffers.
    Done,
    /// It was dropped for want of buffers.
    OutOfBuffers,
    /// It was dropped as the queue stopped, just now or earlier.
    Stopped {
        /// Just now.
        now: bool,
    },
}

/// What makes a posted buffer, and with it the ring, unusable.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum BadBuffer {
    #[error(transparent)]
    Memory(#[from] RamError),
    #[error("Receive buffer of 0 bytes")]
    Empty,
}

/// A buffer chosen for a frame.
struct Buffer<'a> {
    ring: usize,
    index: u32,
    memory: RamSlice<'a>,
}

type Buffers<'a> = SmallVec<[Buffer<'a>; 4]>;

impl RxQueue {
    /// Writes a packet into the next buffers and completes them.
    pub(crate) fn receive(&mut self, ram: &dyn GuestRam, packet: &Packet<'_>) -> Delivery {
        if self.stopped.is_some() {
            return Delivery::Stopped { now: false };
        }
        match self.try_receive(ram, packet) {
            Ok(true) => Delivery::Done,
            Ok(false) => Delivery::OutOfBuffers,
            Err(error) => {
                guest_warn!(%error, "Receive queue stopped; the driver has to reset the device");
                self.stopped = Some(QueueError::DescriptorNotSupported);
                Delivery::Stopped { now: true }
            }
        }
    }

    /// `false` if the buffers posted do not hold the packet; none is used then.
    fn try_receive(&mut self, ram: &dyn GuestRam, packet: &Packet<'_>) -> Result<bool, BadBuffer> {
        let len = packet.parts.iter().map(|part| part.len()).sum();
        let Some((buffers, next)) = self.choose(ram, len)? else { return Ok(false) };
        let mut left = Source { parts: &packet.parts, written: 0 };
        let last = buffers.len().saturating_sub(1);
        for (position, buffer) in buffers.iter().enumerate() {
            let written = left.fill(&buffer.memory);
            self.complete(ram, buffer, written, position == 0, (position == last).then_some(packet))?;
        }
        self.next = next;
        Ok(true)
    }

    /// Picks buffers for `len` bytes: a head buffer, then body buffers that follow it in the first ring, then body
    /// buffers of the second. Also gives the rings' cursors after them.
    fn choose<'a>(
        &mut self,
        ram: &'a dyn GuestRam,
        len: usize,
    ) -> Result<Option<(Buffers<'a>, [Cursor; 2])>, BadBuffer> {
        self.skip_to_head(ram)?;
        let mut next = self.next;
        let mut buffers = Buffers::new();
        let mut room = 0;
        while room < len || buffers.is_empty() {
            let body = !buffers.is_empty();
            let chosen = match self.peek(ram, next, 0, body)? {
                None if body => self.peek(ram, next, 1, body)?,
                other => other,
            };
            let Some(buffer) = chosen.filter(|_| buffers.len() < self.max_buffers) else { return Ok(None) };
            room += buffer.memory.len();
            if let Some((cursor, ring)) = next.get_mut(buffer.ring).zip(self.ring(buffer.ring)) {
                cursor.advance(ring.size);
            }
            buffers.push(buffer);
        }
        Ok(Some((buffers, next)))
    }

    /// Passes over body buffers left behind by a short packet. The driver takes every buffer before a completed one
    /// for free, and re-posts it. Each posted buffer is passed over once, so the loop costs what the driver paid.
    fn skip_to_head(&mut self, ram: &dyn GuestRam) -> Result<(), BadBuffer> {
        let Some(ring) = self.ring(0) else { return Ok(()) };
        for _ in 0..ring.size {
            if self.peek(ram, self.next, 0, true)?.is_none() {
                break;
            }
            let [head, _] = &mut self.next;
            head.advance(ring.size);
        }
        Ok(())
    }

    fn ring(&self, ring: usize) -> Option<RingArea> {
        self.rings.get(ring).copied().flatten()
    }

    /// The buffer at a ring's cursor, if one of the wanted type is posted there.
    fn peek<'a>(
        &self,
        ram: &'a dyn GuestRam,
        next: [Cursor; 2],
        ring: usize,
        body: bool,
    ) -> Result<Option<Buffer<'a>>, BadBuffer> {
        let Some((area, cursor)) = self.ring(ring).zip(next.get(ring).copied()) else { return Ok(None) };
        let desc: Option<RxDesc> = area.take(ram, cursor, |word| RxBuffer::from_bits(word).generation())?;
        let Some(desc) = desc else { return Ok(None) };
        let buffer = RxBuffer::from_bits(desc.buffer.get());
        if buffer.body() != body {
            return Ok(None);
        }
        if buffer.length() == 0 {
            return Err(BadBuffer::Empty);
        }
        let memory = ram.slice(desc.address.get(), usize::from(buffer.length()))?;
        Ok(Some(Buffer { ring, index: cursor.index, memory }))
    }

    /// Completes one buffer; the last one of a packet carries what is known of `packet`.
    fn complete(
        &mut self,
        ram: &dyn GuestRam,
        buffer: &Buffer<'_>,
        len: usize,
        first: bool,
        packet: Option<&Packet<'_>>,
    ) -> Result<(), BadBuffer> {
        let verdict = packet.and_then(|packet| packet.verdict);
        let tag = packet.and_then(|packet| packet.tag);
        let place = RxPlace::new()
            .with_index(u16::try_from(buffer.index).unwrap_or(0))
            .with_ring(self.ring_ids.get(buffer.ring).copied().unwrap_or(0))
            .with_start_of_packet(first)
            .with_end_of_packet(packet.is_some())
            .with_checksum_not_calculated(verdict.is_none());
        let length = RxLength::new()
            .with_length(u16::try_from(len).unwrap_or(0))
            .with_tag_stripped(tag.is_some())
            .with_tag(tag.unwrap_or(0));
        let verdict = verdict
            .unwrap_or_default()
            .with_frame_checksum_ok(packet.is_some())
            .with_kind(RX_COMPLETION)
            .with_generation(self.next_completion.generation);
        let completion = RxCompletion {
            place: U32::new(place.into_bits()),
            hash: U32::ZERO,
            length: U32::new(length.into_bits()),
            verdict: U32::new(verdict.into_bits()),
        };
        self.completions.complete(ram, self.next_completion, &completion)?;
        self.next_completion.advance(self.completions.size);
        Ok(())
    }
}

/// The part of a packet not yet written.
struct Source<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that are written.
    written: usize,
}

impl Source<'_> {
    /// Moves as much as fits into `memory` and returns the number of bytes.
    fn fill(&mut self, memory: &RamSlice<'_>) -> usize {
        let mut offset = 0;
        while let Some((part, rest)) = self.parts.split_first()
            && offset < memory.len()
        {
            let bytes = part.get(self.written..).unwrap_or_default();
            let len = bytes.len().min(memory.len() - offset);
            let (now, later) = bytes.split_at(len);
            if let Ok(target) = memory.subslice(offset, len) {
                target.copy_from(now);
            }
            offset += len;
            if later.is_empty() {
                *self = Self { parts: rest, written: 0 };
            } else {
                self.written += len;
            }
        }
        offset
    }
}
