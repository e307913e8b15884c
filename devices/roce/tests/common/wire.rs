//! The wire between two nodes.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Duration;

use device_model::net::Link;

/// Changes frames on their way: gets the sender's number and a frame, gives what goes on.
pub type WireFault = Box<dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>>;

/// A small deterministic generator (xorshift64*).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// Random misfortune, in percent of frames.
#[derive(Clone, Debug)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    pub rng: Rng,
}

impl Faults {
    pub fn none() -> Self {
        Self { loss: 0, duplication: 0, reordering: 0, rng: Rng::new(1) }
    }

    pub fn rough(seed: u64) -> Self {
        Self { loss: 10, duplication: 10, reordering: 10, rng: Rng::new(seed) }
    }

    /// After which delays the copies of a frame arrive.
    pub fn delays(&mut self, flight: Duration) -> Vec<Duration> {
        if self.rng.percent(self.loss) {
            return vec![];
        }
        let copies = if self.rng.percent(self.duplication) { 2 } else { 1 };
        (0..copies)
            .map(|_| {
                let late = if self.rng.percent(self.reordering) { self.rng.below(40) as u32 } else { 0 };
                flight + flight * late
            })
            .collect()
    }
}

/// A link that keeps what is sent until the test takes it.
#[derive(Debug)]
pub struct TestLink {
    sent: Mutex<Vec<Vec<u8>>>,
    /// Buffers to use again.
    spare: Mutex<Vec<Vec<u8>>>,
    /// Frames it holds before it refuses more.
    pub room: Mutex<usize>,
    pub mtu: u16,
}

impl TestLink {
    pub fn new(mtu: u16) -> Self {
        Self { sent: Mutex::new(vec![]), spare: Mutex::new(vec![]), room: Mutex::new(usize::MAX), mtu }
    }

    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// Gives buffers back that [`TestLink::take_sent`] gave away.
    pub fn recycle(&self, mut frames: Vec<Vec<u8>>) {
        self.spare.lock().unwrap().append(&mut frames);
    }
}

impl Link for TestLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut sent = self.sent.lock().unwrap();
        if sent.len() >= *self.room.lock().unwrap() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut frame = self.spare.lock().unwrap().pop().unwrap_or_default();
        frame.clear();
        parts.iter().for_each(|part| frame.extend_from_slice(part));
        sent.push(frame);
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}
