//! The capture file and the thread that writes it.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use super::encoder::Encoder;

/// Bytes that wait for the disk, at most. More frames than that are left out and counted.
const MAX_PENDING: usize = 8 << 20;

/// Which way a frame went, seen from the virtual machine (`epb_flags`, bits 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound = 1,
    /// Sent.
    Outbound = 2,
}

/// An interface of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// What a file has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Frames in the file, or on their way to it.
    pub frames: u64,
    /// Frames left out: the disk was too slow, writing has failed, or the size limit is reached.
    pub dropped: u64,
}

/// Why a capture could not be started.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// No file.
    #[error("Cannot create capture file {path}")]
    Create {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No thread.
    #[error("Cannot start the thread that writes capture file {path}")]
    Thread {
        /// Of which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A growing pcapng file, private to its user. Dropping the last reference writes what is left.
///
/// Frames are encoded into memory where they pass; a thread brings them to the disk. However slow that is, no frame on
/// a link waits for it.
#[derive(Debug)]
pub struct CaptureFile {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is something to write, or it is time to end.
    work: Condvar,
    /// Signalled when all has been written.
    idle: Condvar,
}

#[derive(Debug)]
struct State {
    encoder: Encoder,
    /// Whether the thread has taken bytes that are not in the file yet.
    writing: bool,
    /// For each interface, the frames left out since the last one that was not.
    left_out: Vec<u64>,
    counters: CaptureCounters,
    /// Bytes that may still be added to the file.
    room: u64,
    failed: bool,
    ending: bool,
}

impl CaptureFile {
    /// Creates the file at `path`, or empties it. Frames that would make it larger than `max_bytes` are left out.
    ///
    /// # Errors
    ///
    /// When the file or its thread cannot be made.
    pub fn create(path: &Path, max_bytes: Option<u64>) -> Result<Self, CaptureError> {
        let fail = |source| CaptureError::Create { path: path.into(), source };
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path).map_err(fail)?;
        let mut encoder = Encoder::new().map_err(|error| fail(io::Error::other(error)))?;
        let room = max_bytes.unwrap_or(u64::MAX).saturating_sub(encoder.buffer().len() as u64);
        let state = State {
            encoder,
            writing: false,
            left_out: Vec::new(),
            counters: CaptureCounters::default(),
            room,
            failed: false,
            ending: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), idle: Condvar::new() });
        let (theirs, name) = (Arc::clone(&shared), path.to_owned());
        let writer = thread::Builder::new()
            .name("capture".into())
            .spawn(move || theirs.write_to(file, &name))
            .map_err(|source| CaptureError::Thread { path: path.into(), source })?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// Adds an interface, as which a link appears.
    pub fn add_interface(&self, name: &str, description: &str) -> InterfaceId {
        let mut state = self.shared.state.lock();
        let id = InterfaceId(u32::try_from(state.left_out.len()).unwrap_or(u32::MAX));
        // Without its description every frame of the interface would be unreadable, so no limit applies.
        if state.append(|encoder| encoder.interface(name, description)) {
            state.left_out.push(0);
        }
        drop(state);
        self.shared.work.notify_one();
        id
    }

    /// Adds a frame with the time of the call. Never waits for the disk.
    pub fn record(&self, interface: InterfaceId, direction: Direction, parts: &[IoSlice<'_>]) {
        let mut state = self.shared.state.lock();
        let idle = state.encoder.buffer().is_empty();
        state.record(interface, direction, parts);
        drop(state);
        if idle {
            self.shared.work.notify_one();
        }
    }

    /// What the file has taken so far.
    pub fn counters(&self) -> CaptureCounters {
        self.shared.state.lock().counters
    }

    /// Waits until everything recorded so far is in the file, or writing has failed.
    pub fn flush(&self) {
        let mut state = self.shared.state.lock();
        while (state.writing || !state.encoder.buffer().is_empty()) && !state.failed {
            self.shared.idle.wait(&mut state);
        }
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("Capture thread has panicked; the file lacks its last frames");
        }
    }
}

impl Shared {
    /// The thread: writes whole blocks, so that a reader of the growing file finds no half of one for long.
    fn write_to(&self, mut file: File, path: &Path) {
        let mut bytes = Vec::new();
        let mut state = self.state.lock();
        loop {
            while state.encoder.buffer().is_empty() && !state.ending {
                self.work.wait(&mut state);
            }
            if state.encoder.buffer().is_empty() {
                return;
            }
            std::mem::swap(state.encoder.buffer(), &mut bytes);
            state.writing = true;
            drop(state);
            let outcome = file.write_all(&bytes);
            bytes.clear();
            state = self.state.lock();
            state.writing = false;
            if let Err(error) = outcome {
                tracing::error!(path = %path.display(), %error, "Capture has stopped");
                state.failed = true;
                state.encoder.buffer().clear();
            }
            if state.encoder.buffer().is_empty() {
                self.idle.notify_all();
            }
            if state.failed {
                return;
            }
        }
    }
}

impl State {
    fn record(&mut self, interface: InterfaceId, direction: Direction, parts: &[IoSlice<'_>]) {
        let index = interface.0 as usize;
        let Some(left_out) = self.left_out.get(index).copied() else { return };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kept = self.has_room(Encoder::cost(parts))
            && self.append(|encoder| encoder.packet(interface.0, direction, time, left_out, parts));
        if let Some(left_out) = self.left_out.get_mut(index) {
            *left_out = if kept { 0 } else { *left_out + 1 };
        }
        let counter = if kept { &mut self.counters.frames } else { &mut self.counters.dropped };
        *counter += 1;
    }

    fn has_room(&mut self, cost: usize) -> bool {
        !self.failed && self.encoder.buffer().len() + cost <= MAX_PENDING && cost as u64 <= self.room
    }

    /// Adds a block to what is to be written, and reports whether that was done.
    fn append<E>(&mut self, encode: impl FnOnce(&mut Encoder) -> Result<(), E>) -> bool {
        let before = self.encoder.buffer().len();
        if encode(&mut self.encoder).is_err() {
            self.encoder.buffer().truncate(before);
            return false;
        }
        let added = self.encoder.buffer().len() - before;
        self.room = self.room.saturating_sub(added as u64);
        true
    }
}
