//! Requests carried out by the kernel, through io_uring.
//!
//! # Unsafe
//!
//! The kernel reads and writes buffers that the compiler believes to be idle. Each buffer is owned by a [`Flight`], whose
//! heap memory does not move and is freed only after the kernel has said that it is done with it; dropping the ring waits
//! for that.
#![allow(unsafe_code, reason = "io_uring takes raw pointers to buffers; see above for why they are good")]

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};
use rustix::io::Errno;

use super::{Completion, Request, too_short};

/// `RWF_DSYNC` of `linux/fs.h`.
const RWF_DSYNC: i32 = 2;
/// Most bytes of one operation of the kernel.
const MAX_OPERATION: usize = 1 << 30;

/// An io_uring and what is in it.
pub(super) struct Uring {
    ring: IoUring,
    /// By the number that the kernel gets; `None` is free.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Numbers that the kernel does not have yet, or not any more because it has done a part.
    ready: VecDeque<usize>,
    /// What has no number yet.
    parked: VecDeque<Flight>,
}

impl Uring {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth)?;
        // Without it results would be lost when they are collected late.
        if !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let depth = depth as usize;
        let flights = std::iter::repeat_with(|| None).take(depth).collect();
        Ok(Self {
            ring,
            flights,
            free: (0..depth).collect(),
            ready: VecDeque::new(),
            parked: VecDeque::new(),
        })
    }

    pub(super) fn submit(&mut self, file: &Arc<File>, mut request: Request, cookie: u64) {
        if let Request::Read { length, into, .. } = &mut request {
            into.reserve_exact(*length);
        }
        self.parked.push_back(Flight { file: Arc::clone(file), request, cookie, moved: 0 });
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        while !self.parked.is_empty()
            && let Some(number) = self.free.pop()
        {
            self.flights[number] = self.parked.pop_front();
            self.ready.push_back(number);
        }
        while let Some(number) = self.ready.front().copied() {
            let Some(flight) = &mut self.flights[number] else { break };
            let entry = flight.entry().user_data(number as u64);
            // SAFETY: The entry's pointers lead into buffers that `flights` owns until the kernel has completed it.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                break;
            }
            self.ready.pop_front();
        }
        match self.ring.submit() {
            // What the kernel has not taken stays in the ring until something that it has is done.
            Err(error)
                if !matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::BUSY | Errno::INTR | Errno::AGAIN)
                ) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn completed(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            let number = entry.user_data() as usize;
            let Some(mut flight) = self.flights.get_mut(number).and_then(Option::take) else { continue };
            if let Some(result) = flight.advance(entry.result()) {
                self.free.push(number);
                return Some(Completion {
                    cookie: flight.cookie,
                    result: result.map(|()| flight.into_bytes()),
                });
            }
            self.flights[number] = Some(flight);
            self.ready.push_back(number);
        }
    }

    /// Whether the kernel has any of the buffers.
    fn is_busy(&self) -> bool {
        self.flights.len() > self.free.len() + self.ready.len()
    }
}

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The descriptor is the ring's, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.parked.clear();
        while self.is_busy() {
            // Entries that are pushed and not taken are taken by this too.
            if self.ring.submit_and_wait(1).is_err() && self.ring.completion().is_empty() {
                // The buffers are the kernel's for an unknown time.
                self.flights.drain(..).flatten().for_each(std::mem::forget);
                return;
            }
            while self.completed().is_some() {}
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.flights.len() - self.free.len();
        f.debug_struct("Uring")
            .field("busy", &busy)
            .field("parked", &self.parked.len())
            .finish_non_exhaustive()
    }
}

/// A request under way.
struct Flight {
    file: Arc<File>,
    request: Request,
    cookie: u64,
    /// Bytes moved so far.
    moved: usize,
}

impl Flight {
    /// What the kernel is to do next.
    fn entry(&mut self) -> Entry {
        let fd = Fd(self.file.as_raw_fd());
        let moved = self.moved;
        match &mut self.request {
            Request::Read { offset, length, into } => {
                let rest = &mut into.spare_capacity_mut()[..*length - moved];
                let part = rest.len().min(MAX_OPERATION) as u32;
                opcode::Read::new(fd, rest.as_mut_ptr().cast(), part).offset(*offset + moved as u64).build()
            }
            Request::Write { offset, data, durable } => {
                let rest = &data[moved..];
                let part = rest.len().min(MAX_OPERATION) as u32;
                opcode::Write::new(fd, rest.as_ptr(), part)
                    .offset(*offset + moved as u64)
                    .rw_flags(if *durable { RWF_DSYNC } else { 0 })
                    .build()
            }
            Request::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Request::Allocate { mode, offset, length } => {
                opcode::Fallocate::new(fd, *length).offset(*offset).mode(mode.bits() as i32).build()
            }
        }
    }

    /// The kernel has done something; `None` if there is more to do.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        let count = match usize::try_from(result) {
            Ok(count) => count,
            Err(_) if matches!(Errno::from_raw_os_error(-result), Errno::INTR | Errno::AGAIN) => return None,
            Err(_) => return Some(Err(io::Error::from_raw_os_error(-result))),
        };
        let whole = match &mut self.request {
            Request::Read { length, into, .. } => {
                let count = count.min(*length - self.moved);
                // SAFETY: The kernel has written `count` bytes behind the first `into.len()`, where there is room.
                unsafe { into.set_len(into.len() + count) };
                *length
            }
            Request::Write { data, .. } => data.len(),
            Request::Sync | Request::Allocate { .. } => return Some(Ok(())),
        };
        self.moved += count;
        match count {
            _ if self.moved >= whole => Some(Ok(())),
            0 => Some(Err(too_short())),
            _ => None,
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        if let Request::Read { into, .. } = self.request { into } else { Vec::new() }
    }
}
