//! One channel: records with credits, and payloads that are fetched.
//!
//! ```text
//! 0   kind: RECORD, COUNT or QUESTION
//! 1   zero
//! 4   records of the peer that are done with, little-endian, modulo 2^32
//! 8   RECORD: the record
//! ```
//!
//! A side sends no more records than the peer has room for, so that no SEND ever finds no buffer. How many the peer is done
//! with stands in every message; a message of its own tells when a quarter of the credits is owed, or when the peer asked and
//! all it sent before is done with.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_model::direct::{Channel, Fetcher, MAX_RECORD, Piece};
use device_model::ram::{RamError, RamSlice};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::outer::{CREDITS, Done, HEAD, Outer, SLOTS, Slot};

/// How long a peer is waited for that has to let go of memory, and the device that fetches.
const PATIENCE: Duration = Duration::from_millis(100);
/// Records that are done with and not told, after which the peer is told.
const OWED: u32 = CREDITS as u32 / 4;

const RECORD: u8 = 1;
const COUNT: u8 = 2;
const QUESTION: u8 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    kind: u8,
    zero: [u8; 3],
    finished: U32,
}

const _: () = assert!(size_of::<RawHead>() == HEAD);

/// A part of a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
}

/// What is known of the machine at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its memory.
    pub regions: Vec<Region>,
    /// Addresses that its guest may send from; `None`: any.
    pub addresses: Option<Vec<IpAddr>>,
}

/// A channel to a machine of another host.
pub struct Tunnel<O: Outer> {
    outer: O,
    peer: Peer,
    /// Buffers to send by that are not in use.
    free: Vec<Slot>,
    /// Records sent, and those of them that the peer is done with.
    sent: u32,
    acknowledged: u32,
    /// The latest record found no room.
    full: bool,
    /// Messages with records that were received and not taken.
    inbox: VecDeque<(Slot, usize)>,
    /// Records received, those of them that are done with, and what of that the peer was told.
    received: u32,
    finished: u32,
    told: u32,
    /// The peer has asked, and this side.
    asked: bool,
    asking: bool,
    /// Pieces of each fetch that is on its way.
    flying: VecDeque<usize>,
    /// Fetches that have ended and were not asked for.
    landed: usize,
    broken: bool,
    waiting: Option<Instant>,
    alive: Arc<AtomicBool>,
}

impl<O: Outer> Tunnel<O> {
    /// A channel over a connected queue pair.
    pub fn new(outer: O, peer: Peer) -> Self {
        Self {
            outer,
            peer,
            free: (0..SLOTS as Slot).collect(),
            sent: 0,
            acknowledged: 0,
            full: false,
            inbox: VecDeque::new(),
            received: 0,
            finished: 0,
            told: 0,
            asked: false,
            asking: false,
            flying: VecDeque::new(),
            landed: 0,
            broken: false,
            waiting: None,
            alive: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Becomes `false` when the channel is dropped.
    pub fn alive(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.alive)
    }

    /// Takes note of what the queue pair has finished.
    fn pump(&mut self) {
        while !self.broken
            && let Some(done) = self.outer.poll()
        {
            match done {
                Done::Sent(slot) => self.free.push(slot),
                Done::Received(slot, len) => self.broken |= self.take(slot, len).is_none(),
                Done::Fetched => {
                    self.landed += usize::from(self.flying.pop_front().is_some());
                }
                Done::Failed => self.broken = true,
            }
        }
    }

    /// Takes a message. `None` for one that no honest peer sends.
    fn take(&mut self, slot: Slot, len: usize) -> Option<()> {
        let head = self.outer.received(slot, len, &mut [])?;
        let RawHead { kind, zero: _, finished } = RawHead::read_from_bytes(&head).ok()?;
        let news = finished.get().wrapping_sub(self.acknowledged);
        if news > self.in_flight() {
            return None;
        }
        self.acknowledged = finished.get();
        match kind {
            RECORD if self.received.wrapping_sub(self.finished) < CREDITS as u32 => {
                self.received = self.received.wrapping_add(1);
                self.inbox.push_back((slot, len));
                return Some(());
            }
            COUNT => self.asking = false,
            QUESTION => self.asked = true,
            _ => return None,
        }
        self.outer.repost(slot).ok()
    }

    /// Records sent that the peer is not done with, as far as is known.
    const fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.acknowledged)
    }

    /// Sends a message. Returns `false` when no buffer is free.
    fn message(&mut self, kind: u8, body: &[u8]) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        let head = RawHead { kind, zero: [0; 3], finished: self.finished.into() };
        let mut bytes = [0; HEAD];
        bytes.copy_from_slice(head.as_bytes());
        self.broken |= self.outer.send(slot, &bytes, body).is_err();
        self.told = self.finished;
        true
    }

    /// Tells the peer what is done with if it should hear that.
    fn tell(&mut self) {
        let answers = self.asked && self.finished == self.received;
        let owes = self.finished.wrapping_sub(self.told) >= OWED;
        if (answers || owes) && self.message(COUNT, &[]) {
            self.asked &= !answers;
        }
    }

    /// Whether a record finds room.
    fn has_room(&self) -> bool {
        self.in_flight() < CREDITS as u32 && !self.free.is_empty()
    }
}

impl<O: Outer> Channel for Tunnel<O> {
    fn send(&mut self, record: &[u8]) -> bool {
        if !self.has_room() {
            self.pump();
        }
        self.full = self.broken || record.len() > MAX_RECORD || !self.has_room();
        if self.full {
            return false;
        }
        self.sent = self.sent.wrapping_add(1);
        self.message(RECORD, record)
    }

    fn flush(&mut self) {
        self.tell();
    }

    fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        if self.inbox.is_empty() {
            self.pump();
        }
        if self.broken {
            return None;
        }
        let (slot, len) = self.inbox.pop_front()?;
        let taken = self.outer.received(slot, len, buf);
        self.broken |= taken.is_none() || self.outer.repost(slot).is_err();
        taken.map(|_| len - HEAD)
    }

    fn may_use(&self, source: IpAddr) -> bool {
        self.peer.addresses.as_ref().is_none_or(|allowed| allowed.contains(&source))
    }

    fn reaches(&self, gpa: u64, len: u32) -> bool {
        let contains = |region: &Region| {
            let start = gpa.checked_sub(region.gpa);
            start.and_then(|start| start.checked_add(u64::from(len))).is_some_and(|end| end <= region.len)
        };
        self.peer.regions.iter().any(contains)
    }

    fn pull(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        // Nothing of the peer's memory is mapped here.
        Err(RamError { gpa, len: to.len() })
    }

    fn fetcher(&mut self) -> Option<&mut dyn Fetcher> {
        Some(self)
    }

    fn is_settled(&mut self) -> bool {
        self.pump();
        let settled = self.in_flight() == 0;
        if settled {
            self.waiting = None;
        }
        settled
    }

    fn wait(&mut self) -> bool {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        if self.in_flight() > 0 && !self.asking {
            self.asking = self.message(QUESTION, &[]);
        }
        let works = self.outer.pause();
        self.pump();
        self.broken |= !works || since.elapsed() >= PATIENCE;
        self.is_up()
    }

    fn rest(&mut self) -> bool {
        self.outer.arm();
        self.pump();
        self.tell();
        let has_news = !self.inbox.is_empty() || self.landed > 0 || (self.full && self.has_room());
        !has_news && self.is_up()
    }

    fn is_up(&self) -> bool {
        !self.broken
    }
}

impl<O: Outer> Fetcher for Tunnel<O> {
    fn fetch(&mut self, pieces: &[Piece]) -> bool {
        if self.flying.iter().sum::<usize>() + pieces.len() > self.outer.room() {
            return false;
        }
        self.flying.push_back(pieces.len());
        self.broken |= self.outer.fetch(pieces).is_err();
        true
    }

    fn fetched(&mut self) -> bool {
        if self.landed == 0 {
            self.pump();
        }
        let fetched = self.landed > 0;
        if fetched {
            self.landed -= 1;
            self.waiting = None;
        }
        fetched
    }

    fn finish(&mut self) {
        self.finished = self.finished.wrapping_add(1);
    }
}

impl<O: Outer> Drop for Tunnel<O> {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}
