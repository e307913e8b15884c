//! Two queue pairs that are connected to each other, without a device: work takes time, which a test gives.
//!
//! A READ reads and writes memory when it ends, not when it is posted. So who gives memory up too early is found out.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use device_model::direct::Piece;
use device_model::ram::GuestRam;
use device_model::time::Instant;

use crate::outer::{Done, HEAD, Outer, SLOT, SLOTS, Slot};

/// READs that may be on their way.
const ROOM: usize = 600;

/// Something to do.
enum Work {
    Send(Slot, Vec<u8>),
    Fetch(Vec<Piece>),
}

/// One end.
#[derive(Default)]
struct End {
    /// With the time when it ends, once there is one.
    work: VecDeque<(Option<Instant>, Work)>,
    done: VecDeque<Done>,
    buffers: Vec<Vec<u8>>,
    posted: VecDeque<Slot>,
}

/// Both ends, and the memory of both machines.
struct Both {
    ends: [End; 2],
    ram: [Arc<dyn GuestRam>; 2],
    up: bool,
    patient: bool,
}

impl Both {
    /// Does the oldest work of an end. Returns `false` when there is none, or no buffer for it.
    fn step(&mut self, n: usize) -> bool {
        let [first, second] = &mut self.ends;
        let (own, peer) = if n == 0 { (first, second) } else { (second, first) };
        match own.work.front() {
            None => return false,
            Some((_, Work::Send(slot, bytes))) => {
                let Some(to) = peer.posted.pop_front() else { return false };
                if let Some(buffer) = peer.buffers.get_mut(usize::from(to)) {
                    buffer.clone_from(bytes);
                }
                peer.done.push_back(Done::Received(to, bytes.len()));
                own.done.push_back(Done::Sent(*slot));
            }
            Some((_, Work::Fetch(pieces))) => {
                let copied = pieces.iter().all(|piece| copy(&self.ram, n, *piece).is_some());
                own.done.push_back(if copied { Done::Fetched } else { Done::Failed });
            }
        }
        own.work.pop_front();
        true
    }

    fn arrive(&mut self, now: Instant) {
        for n in 0..2 {
            let is_due =
                |both: &Self| both.ends[n].work.front().is_some_and(|(at, _)| at.is_some_and(|at| at <= now));
            while self.up && is_due(self) && self.step(n) {}
        }
    }
}

fn copy(ram: &[Arc<dyn GuestRam>; 2], n: usize, piece: Piece) -> Option<()> {
    let Piece { from, to, len } = piece;
    let mut bytes = vec![0; len as usize];
    ram[1 - n].read(from, &mut bytes).ok()?;
    ram[n].write(to, &bytes).ok()
}

/// One of two queue pairs.
pub struct FakeOuter {
    both: Arc<Mutex<Both>>,
    n: usize,
}

/// What lies between them.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<Both>>);

/// Two queue pairs of machines with these memories.
pub fn pair(ram: [Arc<dyn GuestRam>; 2]) -> (Fabric, [FakeOuter; 2]) {
    let end =
        || End { buffers: vec![Vec::new(); SLOTS], posted: (0..SLOTS as Slot).collect(), ..End::default() };
    let both = Arc::new(Mutex::new(Both { ends: [end(), end()], ram, up: true, patient: false }));
    let outer = [0, 1].map(|n| FakeOuter { both: Arc::clone(&both), n });
    (Fabric(both), outer)
}

fn lock(both: &Mutex<Both>) -> std::sync::MutexGuard<'_, Both> {
    both.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    /// Breaks the connection.
    pub fn cut(&self) {
        lock(&self.0).up = false;
    }

    /// Lets who waits for the other machine do so, as if there were time.
    pub fn be_patient(&self) {
        lock(&self.0).patient = true;
    }

    /// Whether it is not broken.
    pub fn is_up(&self) -> bool {
        lock(&self.0).up
    }

    /// Gives what was posted until now the time when it ends; returns the next such time.
    pub fn depart(&self, end: Instant) -> Option<Instant> {
        let both = &mut *lock(&self.0);
        let up = both.up;
        let next = both.ends.iter_mut().filter_map(|side| {
            side.work.iter_mut().for_each(|(at, _)| *at = Some(at.unwrap_or(end)));
            side.work.front().and_then(|(at, _)| *at)
        });
        next.min().filter(|_| up)
    }

    /// Does what ends until now.
    pub fn arrive(&self, now: Instant) {
        lock(&self.0).arrive(now);
    }
}

impl FakeOuter {
    fn post(&self, work: Work) -> io::Result<()> {
        let mut both = lock(&self.both);
        if !both.up {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        both.ends[self.n].work.push_back((None, work));
        Ok(())
    }
}

impl Outer for FakeOuter {
    fn room(&self) -> usize {
        ROOM
    }

    fn send(&mut self, slot: Slot, head: &[u8; HEAD], body: &[u8]) -> io::Result<()> {
        self.post(Work::Send(slot, [head, body].concat()))
    }

    fn received(&self, slot: Slot, len: usize, buf: &mut [u8]) -> Option<[u8; HEAD]> {
        let both = lock(&self.both);
        let message = both.ends[self.n].buffers.get(usize::from(slot))?.get(..len)?;
        let (head, body) = message.split_first_chunk::<HEAD>().filter(|_| len <= SLOT)?;
        buf.iter_mut().zip(body).for_each(|(to, from)| *to = *from);
        Some(*head)
    }

    fn repost(&mut self, slot: Slot) -> io::Result<()> {
        lock(&self.both).ends[self.n].posted.push_back(slot);
        Ok(())
    }

    fn fetch(&mut self, pieces: &[Piece]) -> io::Result<()> {
        self.post(Work::Fetch(pieces.to_vec()))
    }

    fn poll(&mut self) -> Option<Done> {
        let both = &mut *lock(&self.both);
        both.ends[self.n].done.pop_front().or_else(|| (!both.up).then_some(Done::Failed))
    }

    fn arm(&mut self) {}

    fn pause(&mut self) -> bool {
        // The other machine runs in the same thread: only the device moves.
        let both = &mut *lock(&self.both);
        let fetches = both.ends[self.n].work.iter().any(|(_, work)| matches!(work, Work::Fetch(_)));
        both.up && (both.patient || fetches && both.step(self.n))
    }
}

impl Drop for FakeOuter {
    fn drop(&mut self) {
        lock(&self.both).up = false;
    }
}
