//! Requests carried out by threads.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::io::{ReadWriteFlags, pwritev2};

use super::{Completion, Request, too_short};
use crate::event::Event;

/// Threads: as many requests as wait for storage at a time.
const THREADS: usize = 4;

/// A request under way.
type Work = (Arc<File>, Request, u64);

/// A few threads, and what they have done.
#[derive(Debug)]
pub(super) struct Pool {
    /// Dropped first, which ends the threads.
    work: Option<Sender<Work>>,
    done: Receiver<Completion>,
    event: Event,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn new() -> io::Result<Self> {
        let (work, waiting) = channel();
        let (finished, done) = channel();
        let event = Event::new()?;
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (waiting, finished, event) = (Arc::clone(&waiting), finished.clone(), event.try_clone()?);
            let serve = move || serve(&waiting, &finished, &event);
            threads.push(Builder::new().name("file-io".to_owned()).spawn(serve)?);
        }
        Ok(Self { work: Some(work), done, event, threads })
    }

    pub(super) fn submit(&mut self, file: &Arc<File>, request: Request, cookie: u64) {
        if let Some(work) = &self.work {
            // Threads end only after the sender.
            let _ = work.send((Arc::clone(file), request, cookie));
        }
    }

    pub(super) fn completed(&mut self) -> Option<Completion> {
        self.done.try_recv().ok().or_else(|| {
            // Cleared before the last look, so that what comes in between signals again.
            self.event.clear();
            self.done.try_recv().ok()
        })
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(waiting: &Mutex<Receiver<Work>>, finished: &Sender<Completion>, event: &Event) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((file, request, cookie)) = next else { return };
        if finished.send(Completion { cookie, result: carry_out(&file, request) }).is_err() {
            return;
        }
        event.signal();
    }
}

fn carry_out(file: &File, request: Request) -> io::Result<Vec<u8>> {
    match request {
        Request::Read { offset, length, into } => read(file, offset, length, into),
        Request::Write { offset, data, durable } => {
            write(file, offset, &data, durable)?;
            Ok(Vec::new())
        }
        Request::Sync => file.sync_data().map(|()| Vec::new()),
        Request::Allocate { mode, offset, length } => {
            rustix::fs::fallocate(file, mode, offset, length)?;
            Ok(Vec::new())
        }
    }
}

fn read(file: &File, offset: u64, length: usize, mut into: Vec<u8>) -> io::Result<Vec<u8>> {
    let start = into.len();
    into.resize(start + length, 0);
    file.read_exact_at(&mut into[start..], offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => too_short(),
        _ => error,
    })?;
    Ok(into)
}

fn write(file: &File, mut offset: u64, mut data: &[u8], durable: bool) -> io::Result<()> {
    if !durable {
        return file.write_all_at(data, offset);
    }
    while !data.is_empty() {
        match pwritev2(file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
