//! The mover: carries the engine's plans out on guest memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::net::{MAX_FRAME, MacAddr};
use device_model::ram::{GuestRam, RamError, RamSlice};
use verbs::{QpId, Segment, Segments};
use vm_memory::VolatileMemory;
use vm_memory::bitmap::Bitmap;

use crate::engine::Engine;
use crate::engine::plan::{Effect, Outgoing, Source};
use crate::psn::Psn;
use crate::wire::message::{self, FRAME, FRAME_AT, MAX_VALUE};
use crate::wire::{AtomicKind, Header, icrc};

/// Bytes an atomic operation works on.
const WORD: usize = size_of::<u64>();

/// Executes plans. Every write is entered in the memory's dirty bitmap.
pub(super) struct Mover {
    mac: MacAddr,
    ram: Arc<dyn GuestRam>,
    /// The frame being sent as a record of a channel.
    frame: Box<[u8]>,
    /// The message being sent.
    message: Box<[u8; message::MAX_MESSAGE]>,
}

/// A payload that was received.
#[derive(Clone, Copy)]
pub(super) enum Received<'a> {
    /// The frame or record that it is in.
    Here(&'a [u8]),
    /// The runs of memory that it is in, and who copies them.
    There(&'a [Segment], &'a dyn Fn(u64, &RamSlice<'_>) -> Result<(), RamError>),
    /// Where it belongs already, if it belongs there.
    Fetched(Option<&'a Segments>),
}

impl Mover {
    pub(super) fn new(mac: MacAddr, ram: Arc<dyn GuestRam>) -> Self {
        let mut frame: Box<[u8]> = vec![0; FRAME_AT + MAX_FRAME].into();
        frame[0] = FRAME;
        Self { mac, ram, frame, message: Box::new([0; message::MAX_MESSAGE]) }
    }

    /// Builds the frame of a packet, as a record of a channel. Fails when its payload is not all RAM.
    pub(super) fn frame_record(&mut self, out: &Outgoing) -> Option<&[u8]> {
        let mut frame = std::mem::take(&mut self.frame);
        let len = frame.get_mut(FRAME_AT..).and_then(|place| self.gather(out, place));
        self.frame = frame;
        self.frame.get(..FRAME_AT + len?)
    }

    /// Guest memory.
    pub(super) fn ram(&self) -> &dyn GuestRam {
        &*self.ram
    }

    /// Builds the message of a packet: a short payload is in it, a longer one stays where it is. Fails when a short one is
    /// not all RAM.
    pub(super) fn message(&mut self, out: &Outgoing) -> Option<&[u8]> {
        let by_value = out.len <= MAX_VALUE;
        let runs = if by_value { &[] } else { &out.segments[..] };
        let end = message::encode(&mut self.message, &out.path, &out.packet, out.len, runs)?;
        let (record, _) = self.message.split_at_mut_checked(end)?;
        if by_value {
            let (_, place) = record.split_at_mut_checked(end.checked_sub(out.len as usize)?)?;
            collect(&*self.ram, &out.segments, place)?;
        }
        Some(record)
    }

    /// Builds the frame of a packet at the start of `place`; returns its length. Fails when its payload is not all RAM.
    ///
    /// The payload is copied before the CRC is computed, since the guest may write to it meanwhile. It is in the nearest
    /// cache then, so both together cost one pass over memory.
    pub(super) fn gather(&self, out: &Outgoing, place: &mut [u8]) -> Option<usize> {
        let header = Header::encode(self.mac, &out.path, &out.packet, out.len);
        let (head, rest) = place.split_at_mut_checked(header.bytes().len())?;
        head.copy_from_slice(header.bytes());
        let (body, rest) = rest.split_at_mut_checked(out.len as usize + header.pad())?;
        let (payload, pad) = body.split_at_mut_checked(out.len as usize)?;
        collect(&*self.ram, &out.segments, payload)?;
        pad.fill(0);
        let mut crc = header.icrc();
        crc.update(body);
        rest.get_mut(..icrc::LEN)?.copy_from_slice(&crc.finish());
        Some(head.len() + body.len() + icrc::LEN)
    }

    /// Executes what the engine wants done after a packet was received.
    pub(super) fn apply(&self, engine: &mut Engine, received: Received<'_>) {
        while let Some(effect) = engine.next_effect() {
            match effect {
                Effect::Place { qp, from, to } => {
                    let placed = match (from, received) {
                        (Source::Value(bytes), _) => self.place(&bytes, 0..WORD, &to),
                        (Source::Payload(range), Received::Here(bytes)) => self.place(bytes, range, &to),
                        (Source::Payload(range), Received::There(runs, pull)) => {
                            engine.counters_mut().direct_copied_bytes += range.len() as u64;
                            self.pull(runs, range, &to, pull)
                        }
                        (Source::Payload(range), Received::Fetched(there)) => {
                            engine.counters_mut().tunnel_fetched_bytes += range.len() as u64;
                            there.filter(|there| **there == to).and_then(|there| self.mark_dirty(there))
                        }
                    };
                    if placed.is_none() {
                        engine.memory_fault(qp);
                    }
                }
                Effect::Rmw { qp, psn, gpa, kind } => self.modify(engine, qp, psn, gpa, kind),
            }
        }
    }

    fn place(&self, bytes: &[u8], range: Range<usize>, to: &Segments) -> Option<()> {
        let mut rest = bytes.get(range)?;
        for segment in to {
            let (part, after) = rest.split_at_checked(segment.len as usize)?;
            self.ram.write(segment.gpa, part).ok()?;
            rest = after;
        }
        Some(())
    }

    /// Copies a range of what lies in `runs`, in pieces that are one run on either side.
    fn pull(
        &self,
        runs: &[Segment],
        range: Range<usize>,
        to: &Segments,
        copy: &dyn Fn(u64, &RamSlice<'_>) -> Result<(), RamError>,
    ) -> Option<()> {
        let mut skip = u32::try_from(range.start).ok()?;
        let mut runs = runs.iter().copied();
        let mut from = Segment { gpa: 0, len: 0 };
        for segment in to {
            let Segment { mut gpa, mut len } = *segment;
            while len > 0 {
                if skip >= from.len {
                    skip -= from.len;
                    from = runs.next()?;
                    continue;
                }
                let take = len.min(from.len - skip);
                let place = self.ram.slice(gpa, take as usize).ok()?;
                copy(from.gpa.checked_add(u64::from(skip))?, &place).ok()?;
                (gpa, len, skip) = (gpa + u64::from(take), len - take, skip + take);
            }
        }
        Some(())
    }

    /// Notes what was written without the dirty bitmap's knowledge.
    fn mark_dirty(&self, segments: &Segments) -> Option<()> {
        for segment in segments {
            let len = segment.len as usize;
            self.ram.slice(segment.gpa, len).ok()?.bitmap().mark_dirty(0, len);
        }
        Some(())
    }

    fn modify(&self, engine: &mut Engine, qp: QpId, psn: Psn, gpa: u64, kind: AtomicKind) {
        match self.rmw(gpa, kind) {
            Some(original) => engine.rmw_done(qp, psn, original),
            None => engine.memory_fault(qp),
        }
    }

    /// One locked instruction, so that it is atomic against the guest's CPUs too.
    fn rmw(&self, gpa: u64, kind: AtomicKind) -> Option<u64> {
        let slice = self.ram.slice(gpa, WORD).ok()?;
        let word = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
        let original = match kind {
            AtomicKind::FetchAdd(add) => {
                // Guest memory is little-endian, as is every host this runs on; a conversion would be a compare loop.
                word.fetch_add(add, Ordering::SeqCst)
            }
            AtomicKind::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
        };
        slice.bitmap().mark_dirty(0, WORD);
        Some(original)
    }
}

/// Copies what lies in `segments` to `place`, which has their length.
fn collect(ram: &dyn GuestRam, segments: &Segments, mut place: &mut [u8]) -> Option<()> {
    for segment in segments {
        let (part, rest) = place.split_at_mut_checked(segment.len as usize)?;
        ram.read(segment.gpa, part).ok()?;
        place = rest;
    }
    Some(())
}
