//! The block device (virtio 1.2, section 5.2).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use device_model::guest_warn;
use host_io::file_io::{FileIo, Request};
use rustix::fs::FallocateFlags;
use virtio::block::protocol::{Command, Header, Id, Io, Limits, Range, id};
use virtio::block::{
    BlockError, Capabilities, ImageError, configuration, features, image_sectors, open_image,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use zerocopy::FromBytes;

use super::{Export, Work};
use crate::target::{Device, Done, Job};
use crate::wire::{Name, Status};

/// The vendor that exports name: that of virtio devices of nobody in particular.
pub(super) const VENDOR: u32 = 0x1af4;
const QUEUE_SIZE: u16 = 128;
/// Segments of a request that fill it up to the transfer limit.
const SEGMENTS: u32 = 128;
/// Bytes of zeros written at a time where storage cannot make them itself.
const ZEROS: u64 = 1 << 20;
/// Bytes of a request's header and of its status.
const HEADER: usize = size_of::<Header>();

/// How a disk is exported.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Under this name.
    pub name: Name,
    /// A raw image or a block device.
    pub path: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Virtqueues.
    pub queues: u16,
    /// What it answers to get-id.
    pub id: String,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    name: Name,
    path: PathBuf,
    file: Arc<File>,
    sectors: u64,
    capabilities: Capabilities,
    queues: u16,
    max_segment: u32,
    id: Id,
    pending: BTreeMap<Job, Pending>,
}

/// What storage is doing for a job.
#[derive(Debug)]
enum Pending {
    Read,
    /// Nothing comes back but the status.
    Other,
    /// A hint that storage may not understand.
    Hint,
    /// To be written if storage cannot make zeros itself.
    Zeroing(Zeros),
    /// Zeros are written.
    WritingZeros(Zeros),
    /// And then made durable.
    Syncing,
}

/// A range that is to become zero.
#[derive(Clone, Copy, Debug)]
struct Zeros {
    offset: u64,
    left: u64,
    durable: bool,
}

impl Disk {
    /// Opens and locks the image. Drivers are told of a segment size with which requests stay below `max_xfer`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] names the file and what is wrong with it.
    pub fn open(options: &DiskOptions, max_xfer: u32) -> Result<Self, ImageError> {
        let (file, sectors) = open_image(&options.path, options.read_only)?;
        let read_only = options.read_only;
        Ok(Disk {
            name: options.name.clone(),
            path: options.path.clone(),
            file: Arc::new(file),
            sectors,
            capabilities: Capabilities { read_only, discard: !read_only },
            queues: options.queues.max(1),
            max_segment: (max_xfer / SEGMENTS).next_multiple_of(512) - 512,
            id: id(&options.id),
            pending: BTreeMap::new(),
        })
    }

    /// The image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn config(&self) -> Vec<u8> {
        configuration(self.sectors, self.queues, self.max_segment)
    }

    fn command(&self, work: &Work, header: &Header, data: &[u8]) -> Result<Command, BlockError> {
        let limits = Limits {
            sectors: self.sectors,
            capabilities: self.capabilities,
            write_through: work.features & 1 << VIRTIO_BLK_F_FLUSH == 0,
        };
        let in_length = u64::from(work.in_length) - 1;
        limits.command(header, data.len() as u64, in_length, || {
            Range::read_from_bytes(data).map_err(|_| BlockError::Io)
        })
    }

    /// Has storage do it.
    fn begin(&mut self, work: &Work, data: Bytes, io: &mut FileIo, command: Io) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (pending, request) = match command {
            Io::Read { offset } => {
                let length = work.in_length as usize - 1;
                // With room for the status behind it.
                (Pending::Read, Request::Read { offset, length, into: Vec::with_capacity(length + 1) })
            }
            Io::Write { offset, durable } => (Pending::Other, Request::Write { offset, data, durable }),
            Io::Flush => (Pending::Other, Request::Sync),
            Io::Discard { offset, length } => {
                (Pending::Hint, Request::Allocate { mode: punch, offset, length })
            }
            Io::WriteZeroes { offset, length, unmap, durable } => {
                let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                let mode = if unmap { punch } else { zero };
                let zeros = Zeros { offset, left: length, durable };
                (Pending::Zeroing(zeros), Request::Allocate { mode, offset, length })
            }
        };
        self.pending.insert(work.job, pending);
        io.submit(&self.file, request, work.job.0);
    }

    /// The next step of something that takes several; `None` if there is none.
    fn next(pending: Pending, result: &io::Result<Vec<u8>>) -> Option<(Pending, Request)> {
        let zeros = match (pending, result) {
            (Pending::Zeroing(zeros), Err(error)) if is_unsupported(error) => zeros,
            (Pending::Zeroing(Zeros { durable: true, .. }), Ok(_)) => {
                return Some((Pending::Syncing, Request::Sync));
            }
            (Pending::WritingZeros(zeros), Ok(_)) => zeros,
            _ => return None,
        };
        let part = zeros.left.min(ZEROS);
        let Zeros { offset, durable, .. } = zeros;
        let rest = Zeros { offset: offset + part, left: zeros.left - part, durable };
        let data = Bytes::from(vec![0; part as usize]);
        (part > 0).then_some((Pending::WritingZeros(rest), Request::Write { offset, data, durable }))
    }
}

impl Export for Disk {
    fn device(&self, _: u32) -> Device {
        Device {
            name: self.name.clone(),
            id: VIRTIO_ID_BLOCK,
            vendor: VENDOR,
            features: features(&self.capabilities, self.queues) | 1 << VIRTIO_F_VERSION_1,
            config: self.config(),
            writable: 0..0,
            queue_sizes: vec![QUEUE_SIZE; self.queues.into()],
            out_split: HEADER as u16,
        }
    }

    fn execute(&mut self, work: Work, io: &mut FileIo) -> Option<Done> {
        let Ok((header, _)) = Header::read_from_prefix(&work.out) else { return Some(malformed()) };
        if work.in_length == 0 {
            return Some(malformed());
        }
        let data = work.out.slice(HEADER..);
        match self.command(&work, &header, &data) {
            Ok(Command::GetId) => {
                let length = self.id.len().min(work.in_length as usize - 1);
                Some(answer(VIRTIO_BLK_S_OK, Bytes::copy_from_slice(&self.id[..length]), true))
            }
            Ok(Command::Io(Io::Discard { length: 0, .. } | Io::WriteZeroes { length: 0, .. })) => {
                Some(answer(VIRTIO_BLK_S_OK, Bytes::new(), true))
            }
            Ok(Command::Io(command)) => {
                self.begin(&work, data, io, command);
                None
            }
            Err(BlockError::Io) => Some(answer(VIRTIO_BLK_S_IOERR, Bytes::new(), true)),
            Err(BlockError::Unsupported) => Some(answer(VIRTIO_BLK_S_UNSUPP, Bytes::new(), true)),
        }
    }

    fn stored(&mut self, job: Job, result: io::Result<Vec<u8>>, io: &mut FileIo) -> Option<Done> {
        let pending = self.pending.remove(&job)?;
        let (is_read, is_hint) = (matches!(pending, Pending::Read), matches!(pending, Pending::Hint));
        if let Some((pending, request)) = Disk::next(pending, &result) {
            self.pending.insert(job, pending);
            io.submit(&self.file, request, job.0);
            return None;
        }
        Some(match result {
            Ok(mut data) if is_read => {
                data.push(VIRTIO_BLK_S_OK as u8);
                whole(data)
            }
            Ok(_) => answer(VIRTIO_BLK_S_OK, Bytes::new(), false),
            Err(error) if is_hint && is_unsupported(&error) => answer(VIRTIO_BLK_S_OK, Bytes::new(), false),
            Err(error) => {
                guest_warn!(path = %self.path.display(), %error, "A disk request failed");
                answer(VIRTIO_BLK_S_IOERR, Bytes::new(), is_read)
            }
        })
    }

    fn refresh(&mut self) -> Option<Vec<u8>> {
        match image_sectors(&*self.file, &self.path) {
            Ok(sectors) if sectors != self.sectors => {
                tracing::info!(path = %self.path.display(), from = self.sectors, to = sectors, "A disk has another size");
                self.sectors = sectors;
                Some(self.config())
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%error, "A disk keeps its old size");
                None
            }
        }
    }
}

/// Data from the start of the writable bytes, and the status in the last of them.
fn answer(status: u32, data: Bytes, repeatable: bool) -> Done {
    let used = data.len() as u32 + 1;
    Done { status: Status::Success, used, data, tail: Bytes::copy_from_slice(&[status as u8]), repeatable }
}

/// All writable bytes.
fn whole(data: Vec<u8>) -> Done {
    let used = data.len() as u32;
    Done { status: Status::Success, used, data: data.into(), tail: Bytes::new(), repeatable: true }
}

/// A request that has no place for a status.
fn malformed() -> Done {
    let (data, tail) = (Bytes::new(), Bytes::new());
    Done { status: Status::Protocol, used: 0, data, tail, repeatable: true }
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}
