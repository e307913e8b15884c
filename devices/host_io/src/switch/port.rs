//! One port of a running switch: its socket, its queue, its counters.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use device_model::time::Instant;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::protocol::{Answer, HEADER_LEN, Introduction};
use super::socket::{self, Received};
use super::stats::PortCounters;
use crate::backlog::Backlog;

/// What became of a message for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Handed to the kernel.
    Sent,
    /// The kernel has no room: put into the empty queue, which now waits for the socket to become writable.
    StartedQueue,
    /// Behind others in the queue, or lost and counted.
    QueuedOrLost,
    /// The port's owner is gone.
    Gone,
}

/// A connection; a port once it has introduced itself.
#[derive(Debug)]
pub(super) struct Port {
    socket: OwnedFd,
    queue: Backlog,
    /// Longest frame the owner takes; `None` until it has said so.
    max_frame: Option<usize>,
    /// When the connection was accepted.
    pub(super) since: Instant,
    pub(super) counters: Arc<PortCounters>,
}

impl Port {
    pub(super) fn new(socket: OwnedFd, queue_bytes: usize, since: Instant) -> Self {
        let counters = Arc::default();
        Self { socket, queue: Backlog::new(queue_bytes), max_frame: None, since, counters }
    }

    /// Whether the owner has introduced itself.
    pub(super) fn is_open(&self) -> bool {
        self.max_frame.is_some()
    }

    /// Opens the port and tells its owner.
    pub(super) fn open(&mut self, introduction: &Introduction, welcome: &Answer) -> Result<(), Errno> {
        socket::send(&self.socket, &[IoSlice::new(&welcome.encode())])?;
        self.max_frame = Some(introduction.max_frame);
        Ok(())
    }

    /// Tells the owner why it will be hung up on.
    pub(super) fn refuse(&self, reason: String) {
        // An owner that cannot be told finds out by the hang-up.
        let _ = socket::send(&self.socket, &[IoSlice::new(&Answer::Refused(reason).encode())]);
    }

    /// The process of its owner.
    pub(super) fn pid(&self) -> Option<i32> {
        sockopt::socket_peercred(&self.socket).ok().map(|credentials| credentials.pid.as_raw_pid())
    }

    /// Gives up the connection as a port.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub(super) fn recv(&self, buf: &mut [u8]) -> Result<Received, Errno> {
        socket::recv(&self.socket, &mut [IoSliceMut::new(buf)])
    }

    /// Hands a frame, with its message header, to the owner. Does nothing for a connection that is no port yet.
    pub(super) fn deliver(&mut self, message: &[u8]) -> Delivery {
        let Some(max_frame) = self.max_frame else { return Delivery::QueuedOrLost };
        if message.len() - HEADER_LEN.min(message.len()) > max_frame {
            self.counters.dropped_too_long.add(1);
            return Delivery::QueuedOrLost;
        }
        if !self.queue.is_empty() {
            self.enqueue(message);
            return Delivery::QueuedOrLost;
        }
        match socket::send(&self.socket, &[IoSlice::new(message)]) {
            Ok(()) => {
                self.count_sent(message.len());
                Delivery::Sent
            }
            Err(errno) if is_full(errno) => match self.enqueue(message) {
                true => Delivery::StartedQueue,
                false => Delivery::QueuedOrLost,
            },
            Err(_) => Delivery::Gone,
        }
    }

    /// Sends what waits in the queue for as long as the kernel takes it. `Ok(true)` when the queue is empty.
    pub(super) fn flush(&mut self) -> Result<bool, Errno> {
        while let Some(message) = self.queue.front() {
            match socket::send(&self.socket, &[IoSlice::new(message)]) {
                Ok(()) => self.count_sent(message.len()),
                Err(errno) if is_full(errno) => return Ok(false),
                Err(errno) => return Err(errno),
            }
            self.queue.pop();
        }
        Ok(true)
    }

    fn enqueue(&mut self, message: &[u8]) -> bool {
        let fits = self.queue.push(&[IoSlice::new(message)]);
        let counter = if fits { &self.counters.queued_frames } else { &self.counters.dropped_full };
        counter.add(1);
        fits
    }

    fn count_sent(&self, message_len: usize) {
        self.counters.sent_frames.add(1);
        self.counters.sent_bytes.add(message_len.saturating_sub(HEADER_LEN) as u64);
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether an error of `send` means that room will come.
pub(super) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR)
}
