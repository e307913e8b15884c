//! Guest output on its way to the host.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device_model::doorbell::Bell;

use crate::io::EventBell;

struct State {
    bytes: VecDeque<u8>,
    /// Whether somebody reads at the other end.
    reader: bool,
    closed: bool,
    /// The machine ends: its vCPUs must not wait any more.
    released: bool,
    dropped: u64,
}

/// A bounded queue of bytes from vCPUs to the console thread.
pub struct OutputQueue {
    state: Mutex<State>,
    room: Condvar,
    bell: Arc<EventBell>,
}

impl OutputQueue {
    /// Bytes that wait at most. Beyond it a vCPU waits for its reader, or the oldest bytes go if there is no reader.
    pub const CAPACITY: usize = 1 << 20;

    /// An empty queue that rings `bell` when it becomes non-empty.
    pub fn new(bell: Arc<EventBell>, reader: bool) -> Self {
        let state = State { bytes: VecDeque::new(), reader, closed: false, released: false, dropped: 0 };
        Self { state: Mutex::new(state), room: Condvar::new(), bell }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends `bytes` and returns at once, even if that is more than the queue should hold.
    pub fn push(&self, bytes: &[u8]) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let was_empty = state.bytes.is_empty();
        state.bytes.extend(bytes);
        if !state.reader && state.bytes.len() > Self::CAPACITY {
            let excess = state.bytes.len() - Self::CAPACITY;
            state.bytes.drain(..excess);
            state.dropped += excess as u64;
        }
        drop(state);
        if was_empty {
            self.bell.ring();
        }
    }

    /// Waits until the queue holds no more than it should. Called by vCPU threads with no lock held.
    pub fn wait_for_room(&self) {
        let state = self.lock();
        let full = |state: &mut State| {
            state.reader && !state.closed && !state.released && state.bytes.len() > Self::CAPACITY
        };
        drop(self.room.wait_while(state, full).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets waiting vCPUs go (`true`) because their machine ends, or has new ones wait again (`false`).
    pub fn release_writers(&self, released: bool) {
        self.lock().released = released;
        self.room.notify_all();
    }

    /// Copies up to `chunk.len()` bytes from the front without taking them.
    pub fn peek(&self, chunk: &mut [u8]) -> usize {
        let state = self.lock();
        let (front, back) = state.bytes.as_slices();
        let from_front = front.len().min(chunk.len());
        chunk[..from_front].copy_from_slice(&front[..from_front]);
        let from_back = back.len().min(chunk.len() - from_front);
        chunk[from_front..from_front + from_back].copy_from_slice(&back[..from_back]);
        from_front + from_back
    }

    /// Takes `count` bytes that were peeked at.
    pub fn consume(&self, count: usize) {
        let mut state = self.lock();
        let count = count.min(state.bytes.len());
        state.bytes.drain(..count);
        self.room.notify_all();
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lock().bytes.is_empty()
    }

    /// Waits until everything is read, as long as the reader does not stand still for `patience`.
    pub fn wait_until_read(&self, patience: Duration) {
        let mut state = self.lock();
        while state.reader && !state.bytes.is_empty() {
            let waiting = state.bytes.len();
            state = self.room.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
            if state.bytes.len() >= waiting {
                return;
            }
        }
    }

    /// Says whether somebody reads at the other end. Returns how many bytes were dropped while nobody did.
    pub fn set_reader(&self, present: bool) -> u64 {
        let mut state = self.lock();
        state.reader = present;
        self.room.notify_all();
        if present { std::mem::take(&mut state.dropped) } else { 0 }
    }

    /// Ends the queue: what waits may still be read, what comes now is dropped, and no vCPU waits any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(reader: bool) -> (Arc<OutputQueue>, Arc<EventBell>) {
        let bell = Arc::new(EventBell::new().unwrap());
        (Arc::new(OutputQueue::new(Arc::clone(&bell), reader)), bell)
    }

    #[test]
    fn bell_rings_once_until_the_queue_is_empty_again() {
        let (queue, bell) = queue(true);
        queue.push(b"ab");
        queue.push(b"c");
        assert!(bell.clear());
        let mut chunk = [0; 8];
        assert_eq!(queue.peek(&mut chunk), 3);
        assert_eq!(&chunk[..3], b"abc");
        queue.consume(3);
        queue.push(b"d");
        assert!(bell.clear());
    }

    #[test]
    fn without_a_reader_the_newest_bytes_are_kept_and_the_loss_is_counted() {
        let (queue, _) = queue(false);
        queue.push(b"old");
        queue.push(&vec![b'x'; OutputQueue::CAPACITY - 3]);
        queue.push(b"new");
        queue.wait_for_room();
        assert_eq!(queue.set_reader(true), 3);
        let mut all = vec![0; OutputQueue::CAPACITY + 1];
        assert_eq!(queue.peek(&mut all), OutputQueue::CAPACITY);
        assert!(all.starts_with(b"xxx") && all[..OutputQueue::CAPACITY].ends_with(b"new"));
    }

    #[test]
    fn a_slow_reader_holds_the_writer_back_and_loses_nothing() {
        let (queue, _) = queue(true);
        queue.push(&vec![b'x'; OutputQueue::CAPACITY + 1]);
        let writer = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                queue.wait_for_room();
                queue.push(b"end");
            })
        };
        queue.consume(OutputQueue::CAPACITY);
        writer.join().unwrap();
        let mut rest = [0; 8];
        assert_eq!(queue.peek(&mut rest), 4);
        assert_eq!(&rest[..4], b"xend");
    }

    #[test]
    fn closing_or_releasing_lets_a_waiting_writer_go() {
        for let_go in [OutputQueue::close, |queue: &OutputQueue| queue.release_writers(true)] {
            let (queue, _) = queue(true);
            queue.push(&vec![b'x'; OutputQueue::CAPACITY + 1]);
            let writer = {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || queue.wait_for_room())
            };
            let_go(&queue);
            writer.join().unwrap();
        }
    }
}
