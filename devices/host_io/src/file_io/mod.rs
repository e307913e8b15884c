//! Files that are read and written without waiting.
//!
//! [`FileIo`] takes requests for any number of files and gives their results back later, by io_uring where the kernel
//! allows it and by a few threads where it does not. Its descriptor is readable when results wait. Buffers belong to it
//! from submission to result, so that no one can take them away from the kernel.

mod pool;
mod uring;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::FallocateFlags;

use pool::Pool;
use uring::Uring;

/// What is to be done with a file. Whoever asks knows that it is inside the file.
#[derive(Debug)]
pub enum Request {
    /// Reads exactly `length` bytes to the end of `into`.
    Read {
        /// Position in bytes.
        offset: u64,
        /// How many bytes.
        length: usize,
        /// What comes before them.
        into: Vec<u8>,
    },
    /// Writes all of `data`.
    Write {
        /// Position in bytes.
        offset: u64,
        /// The bytes.
        data: Bytes,
        /// Ends only when they would survive a power failure.
        durable: bool,
    },
    /// Makes all writes that have ended durable.
    Sync,
    /// Changes how a range is stored.
    Allocate {
        /// How.
        mode: FallocateFlags,
        /// Position in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion {
    /// The number it was submitted with.
    pub cookie: u64,
    /// The bytes of a read; nothing for other requests.
    pub result: io::Result<Vec<u8>>,
}

/// Takes requests and gives back results.
#[derive(Debug)]
pub struct FileIo(Backend);

#[derive(Debug)]
enum Backend {
    Uring(Box<Uring>),
    Pool(Pool),
}

impl FileIo {
    /// By io_uring, with up to `depth` requests in the kernel at a time; where that is forbidden or unknown, by threads,
    /// and the log says so.
    ///
    /// # Errors
    ///
    /// When the host has no room for threads or descriptors.
    pub fn new(depth: u32) -> io::Result<Self> {
        match Uring::new(depth) {
            Ok(uring) => Ok(Self(Backend::Uring(Box::new(uring)))),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "This kernel refuses io_uring, so threads read and write files, which is slower; \
                     see /proc/sys/kernel/io_uring_disabled and the seccomp profile of a container"
                );
                Self::with_threads()
            }
        }
    }

    /// By threads.
    ///
    /// # Errors
    ///
    /// When the host has no room for them.
    pub fn with_threads() -> io::Result<Self> {
        Ok(Self(Backend::Pool(Pool::new()?)))
    }

    /// Takes a request. Its result comes with `cookie`, after [`FileIo::start`].
    pub fn submit(&mut self, file: &Arc<File>, request: Request, cookie: u64) {
        match &mut self.0 {
            Backend::Uring(uring) => uring.submit(file, request, cookie),
            Backend::Pool(pool) => pool.submit(file, request, cookie),
        }
    }

    /// Starts what was submitted.
    ///
    /// # Errors
    ///
    /// When the kernel refuses for good. What it has no room for at present is tried again with the next call.
    pub fn start(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Backend::Uring(uring) => uring.start(),
            Backend::Pool(_) => Ok(()),
        }
    }

    /// The next result.
    pub fn completed(&mut self) -> Option<Completion> {
        match &mut self.0 {
            Backend::Uring(uring) => uring.completed(),
            Backend::Pool(pool) => pool.completed(),
        }
    }
}

impl AsFd for FileIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Backend::Uring(uring) => uring.as_fd(),
            Backend::Pool(pool) => pool.as_fd(),
        }
    }
}

/// A file that ends before a read does.
fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was")
}

#[cfg(test)]
mod tests;
