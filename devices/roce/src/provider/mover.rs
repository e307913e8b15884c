//! The mover: carries the engine's plans out on guest memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::net::{MAX_FRAME, MacAddr};
use device_model::ram::GuestRam;
use verbs::{QpId, Segments};
use vm_memory::VolatileMemory;
use vm_memory::bitmap::Bitmap;

use crate::engine::Engine;
use crate::engine::plan::{Effect, Outgoing, Source};
use crate::psn::Psn;
use crate::wire::{AtomicKind, Header, icrc};

/// Bytes an atomic operation works on.
const WORD: usize = size_of::<u64>();

/// Executes plans. Every write is entered in the memory's dirty bitmap.
pub(super) struct Mover {
    mac: MacAddr,
    ram: Arc<dyn GuestRam>,
    /// The frame being sent.
    frame: Box<[u8]>,
    len: usize,
}

impl Mover {
    pub(super) fn new(mac: MacAddr, ram: Arc<dyn GuestRam>) -> Self {
        Self { mac, ram, frame: vec![0; MAX_FRAME].into(), len: 0 }
    }

    /// The frame that was gathered last.
    pub(super) fn frame(&self) -> &[u8] {
        self.frame.get(..self.len).unwrap_or_default()
    }

    /// Builds the frame of a packet. Fails when its payload is not all RAM.
    ///
    /// The payload is copied before the CRC is computed, since the guest may write to it meanwhile.
    #[must_use]
    pub(super) fn gather(&mut self, out: &Outgoing) -> bool {
        let header = Header::encode(self.mac, &out.path, &out.packet, out.len);
        let start = header.bytes().len();
        let end = start + out.len as usize;
        let icrc_at = end + header.pad();
        let total = icrc_at + icrc::LEN;
        let Some(frame) = self.frame.get_mut(..total) else { return false };
        let (head, rest) = frame.split_at_mut(start);
        head.copy_from_slice(header.bytes());
        let (mut payload, tail) = rest.split_at_mut(end - start);
        for segment in &out.segments {
            let Some((place, rest)) = payload.split_at_mut_checked(segment.len as usize) else {
                return false;
            };
            if self.ram.read(segment.gpa, place).is_err() {
                return false;
            }
            payload = rest;
        }
        tail.fill(0);
        let mut crc = header.icrc();
        crc.update(frame.get(start..icrc_at).unwrap_or_default());
        if let Some(place) = frame.get_mut(icrc_at..) {
            place.copy_from_slice(&crc.finish());
        }
        self.len = total;
        true
    }

    /// Executes what the engine wants done after a frame was received.
    pub(super) fn apply(&self, engine: &mut Engine, frame: &[u8]) {
        while let Some(effect) = engine.next_effect() {
            match effect {
                Effect::Place { qp, from, to } => {
                    let placed = match from {
                        Source::Frame(range) => self.place(frame, range, &to),
                        Source::Value(bytes) => self.place(&bytes, 0..WORD, &to),
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
