//! What the figures are compared with.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use device_model::ram::{GuestRam, Ram};

use super::side::{SOURCE, Side, TARGET, memory};

/// A memory copy between two files of memory, of the same pieces in the same order.
pub struct Copies {
    from: Arc<Ram>,
    to: Arc<Ram>,
    size: u32,
    set: u64,
    next: u64,
}

impl Copies {
    pub fn new(side: &Side, size: u32, set: u64) -> Self {
        let mut copies = Self { from: Arc::clone(&side.ram), to: memory(), size, set, next: 0 };
        // Touches each page.
        (0..set / u64::from(size)).for_each(|_| copies.copy());
        copies
    }

    fn copy(&mut self) {
        let (offset, len) = (self.next % self.set, self.size as usize);
        let from = GuestRam::slice(&*self.from, SOURCE + offset, len).expect("memory");
        from.copy_to_volatile_slice(GuestRam::slice(&*self.to, TARGET + offset, len).expect("memory"));
        self.next += u64::from(self.size);
    }

    /// Gigabytes a second.
    pub fn run(&mut self, span: Duration) -> f64 {
        let (start, mut copied) = (Clock::now(), 0u64);
        while start.elapsed() < span {
            for _ in 0..8 {
                self.copy();
                copied += u64::from(self.size);
            }
        }
        copied as f64 / start.elapsed().as_nanos() as f64
    }
}

/// Nanoseconds that a cache line takes from one core to another.
pub fn cache_line(span: Duration) -> f64 {
    let line = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&line);
    // Odd values are answered by the next even one; the largest ends it.
    let echo = thread::spawn(move || {
        super::pin(1);
        loop {
            match theirs.load(Ordering::Acquire) {
                u64::MAX => return,
                value if value % 2 == 1 => theirs.store(value + 1, Ordering::Release),
                _ => spin_loop(),
            }
        }
    });
    let (start, mut rounds) = (Clock::now(), 0u64);
    while start.elapsed() < span {
        for _ in 0..64 {
            line.store(2 * rounds + 1, Ordering::Release);
            while line.load(Ordering::Acquire) != 2 * rounds + 2 {
                spin_loop();
            }
            rounds += 1;
        }
    }
    let nanos = start.elapsed().as_nanos() as f64 / (2 * rounds) as f64;
    line.store(u64::MAX, Ordering::Release);
    echo.join().expect("the other core");
    nanos
}
