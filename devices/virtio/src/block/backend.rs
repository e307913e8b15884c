//! The contract between the block device and what stores the sectors.

use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};

use crate::buffer::{Segments, Token};

/// What a backend can do beyond reading and flushing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Writes are refused.
    pub read_only: bool,
    /// Discard and write-zeroes work.
    pub discard: bool,
}

/// Stores the sectors of a disk: a file, or a target across a network.
pub trait BlockBackend: Send + Sync {
    /// Size in sectors of 512 bytes. May change; tell the transport by
    /// [`VirtioPci::config_changed`](crate::VirtioPci::config_changed).
    fn sectors(&self) -> u64;

    /// What it can do; constant.
    fn capabilities(&self) -> Capabilities;

    /// Carries out `request`, now or later, and completes it from any thread. Requests are independent of each other
    /// but for [`Operation::Flush`], which covers every write completed before it was submitted.
    fn submit(&self, request: Request);

    /// Returns when no request touches guest memory any more. Backends that complete within
    /// [`BlockBackend::submit`] have nothing to do.
    fn quiesce(&self) {}
}

/// An operation on a disk. All ranges are whole sectors inside the disk.
#[derive(Clone)]
pub enum Operation {
    /// Reads `data.len()` bytes.
    Read {
        /// Position in bytes.
        offset: u64,
        /// Where to.
        data: Segments,
    },
    /// Writes `data.len()` bytes.
    Write {
        /// Position in bytes.
        offset: u64,
        /// Where from.
        data: Segments,
        /// Completes only when the bytes would survive a power failure.
        durable: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Says that the contents are of no interest any more. A hint.
    Discard {
        /// Position in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Position in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The storage may be given up.
        unmap: bool,
        /// As for [`Operation::Write`].
        durable: bool,
    },
}

/// Why a request failed, as far as a guest can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The request cannot be carried out.
    #[error("Input or output failed")]
    Io,
    /// The operation is not known.
    #[error("Operation is not supported")]
    Unsupported,
}

/// An operation with the duty to answer. Dropped without [`Request::complete`] it fails.
pub struct Request {
    /// What to do.
    pub operation: Operation,
    pub(super) reply: Reply,
}

impl Request {
    /// Answers the driver.
    pub fn complete(self, result: Result<(), BlockError>) {
        let read = match &self.operation {
            Operation::Read { data, .. } => u32::try_from(data.len()).unwrap_or(0),
            _ => 0,
        };
        self.reply.send(result, read);
    }
}

/// Where the status byte goes, and the way back; taken when used.
pub(super) struct Reply(Option<(Segments, Token)>);

impl Reply {
    pub(super) const fn new(status: Segments, token: Token) -> Self {
        Self(Some((status, token)))
    }

    /// Answers, after `read` bytes were written in front of the status byte.
    pub(super) fn send(mut self, result: Result<(), BlockError>, read: u32) {
        self.finish(result, read);
    }

    fn finish(&mut self, result: Result<(), BlockError>, read: u32) {
        let status = match result {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(BlockError::Io) => VIRTIO_BLK_S_IOERR,
            Err(BlockError::Unsupported) => VIRTIO_BLK_S_UNSUPP,
        };
        if let Some((at, token)) = self.0.take() {
            token.complete_with_status(read, at, status as u8);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(Err(BlockError::Io), 0);
    }
}
