//! Memory on its way: copied over several connections, and received from them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::ram::{Memory, PageSet, Run, piece, stretches};
use super::stream::{Connection, Lost};
use super::wire::{Message, PAGE, encode_pages};
use crate::error::{Error, Result};
use crate::machine::Controls;

/// Pieces of time in which a machine that is held back runs and stands still. Shorter than a peer waits for an acknowledgement.
const PERIOD: Duration = Duration::from_millis(20);

/// Sends pages over all connections, each piece of memory over the one that is its own. Returns the bytes sent; `progress`
/// counts down the pages that are left.
pub(super) fn send(
    memory: Memory<'_>,
    pages: &PageSet,
    connections: &mut [Connection],
    skip_zeros: bool,
    progress: &AtomicU64,
) -> Result<u64> {
    let count = connections.len() as u64;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(connections)
            .map(|(index, connection)| {
                let mine = move |run: &Run| piece(run.first) % count == index;
                let mut sender = Sender { memory, connection, skip_zeros, sent: 0, buffer: Vec::new() };
                scope.spawn(move || {
                    for run in pages.runs().filter(mine) {
                        sender.send(run)?;
                        progress.fetch_sub(run.count.into(), Ordering::Relaxed);
                    }
                    Ok::<_, Error>(sender.sent)
                })
            })
            .collect();
        workers.into_iter().map(join).sum()
    })
}

fn join<T>(worker: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    worker.join().unwrap_or_else(|_| Err(Error::Failure("A thread that moves memory panicked".to_owned())))
}

struct Sender<'a> {
    memory: Memory<'a>,
    connection: &'a mut Connection,
    /// The target's memory is all zeros still.
    skip_zeros: bool,
    sent: u64,
    buffer: Vec<u8>,
}

impl Sender<'_> {
    /// Sends a run from a copy of it, since the guest may be writing to it.
    fn send(&mut self, run: Run) -> Result<()> {
        let mut pages = Vec::with_capacity(run.count as usize * PAGE);
        self.memory.read(run, &mut pages)?;
        for (zero, at, count) in stretches(&pages) {
            let first = run.first + at as u64;
            if !zero {
                let part = pages.get(at * PAGE..(at + count) * PAGE).unwrap_or_default();
                let buffer = std::mem::take(&mut self.buffer);
                self.buffer = encode_pages(buffer, first, |buffer| buffer.extend_from_slice(part));
                self.connection.send_section(&self.buffer)?;
                self.sent += self.buffer.len() as u64;
            } else if !self.skip_zeros {
                self.connection.send(&Message::Zeros(first, u32::try_from(count).unwrap_or(0)))?;
            }
        }
        Ok(())
    }
}

/// Takes memory from one connection until there is no more.
pub(super) fn receive(memory: Memory<'_>, connection: &mut Connection, received: &AtomicU64) -> Result<()> {
    loop {
        match connection.receive()? {
            Message::Pages(first, pages) => {
                memory.write(first, &pages)?;
                received.fetch_add(pages.len() as u64, Ordering::Relaxed);
            }
            Message::Zeros(first, count) => memory.clear(first, count)?,
            Message::End => return Ok(()),
            _ => return Err(Lost::Damaged(super::wire::Damaged("it is no memory")).into()),
        }
    }
}

/// Holds a machine back for so many percent of its time until `done`: neither its CPUs nor its devices write to memory
/// then, and peers that send to it have to wait for acknowledgements.
pub(super) fn hold_back(controls: &Controls, percent: u8, done: &AtomicBool) {
    let still = PERIOD * u32::from(percent.min(100)) / 100;
    while percent > 0 && !done.load(Ordering::Acquire) {
        // A machine that has just ended is none of this thread's business.
        if controls.pause().is_ok() {
            thread::sleep(still);
            controls.resume();
        }
        thread::sleep(PERIOD.saturating_sub(still));
    }
}
