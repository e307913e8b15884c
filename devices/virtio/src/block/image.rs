//! A raw image: the sectors of a disk as they lie in a file or on a block device of the host.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use device_model::guest_warn;
use vmm_sys_util::fallocate::{FallocateMode, fallocate};

use super::SECTOR;
use super::backend::{BlockBackend, BlockError, Capabilities, Operation, Request};
use crate::buffer::{AccessError, Segments};

/// Bytes copied at a time between file and guest.
const CHUNK: usize = 64 * 1024;

/// Why a file cannot be a disk.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be opened.
    #[error("Cannot open disk image {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a directory, a pipe or the like.
    #[error("Disk image {0} is neither a file nor a block device")]
    Kind(PathBuf),
    /// It is in use.
    #[error("Disk image {0} is in use by another process: stop it, or open the image read-only in both")]
    Locked(PathBuf),
    /// There is nothing in it.
    #[error("Disk image {0} is empty: create one with `truncate -s 1G FILE`")]
    Empty(PathBuf),
    /// Its size is not a whole number of sectors.
    #[error(
        "Disk image {path} has {size} bytes, not a multiple of 512: is it a raw image? `truncate -s %512 FILE` pads it"
    )]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
}

/// A raw image.
#[derive(Debug)]
pub struct RawImage {
    path: PathBuf,
    file: File,
    sectors: u64,
    read_only: bool,
}

/// Opens `path` and locks it against use by another process: shared if read-only, exclusively otherwise. Returns its size
/// in sectors too.
///
/// # Errors
///
/// [`ImageError`] names the file and what is wrong with it.
pub fn open_image(path: &Path, read_only: bool) -> Result<(File, u64), ImageError> {
    let (file, sectors) = open_unlocked(path, read_only)?;
    lock(&file, path, read_only)?;
    Ok((file, sectors))
}

fn open_unlocked(path: &Path, read_only: bool) -> Result<(File, u64), ImageError> {
    let open_error = |source| ImageError::Open { path: path.into(), source };
    // Before opening, because opening a pipe waits for its other end.
    let kind = path.metadata().map_err(open_error)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(ImageError::Kind(path.into()));
    }
    let mut file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(open_error)?;
    let sectors = image_sectors(&mut file, path)?;
    Ok((file, sectors))
}

fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), ImageError> {
    let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(ImageError::Locked(path.into())),
        // Some network file systems have no locks.
        Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(()),
        Err(TryLockError::Error(source)) => Err(ImageError::Open { path: path.into(), source }),
    }
}

/// How many sectors an image has at present.
///
/// # Errors
///
/// [`ImageError`] if it cannot be a disk any more.
pub fn image_sectors(mut file: impl Seek, path: &Path) -> Result<u64, ImageError> {
    // Unlike the metadata, this is right for block devices too.
    let size =
        file.seek(SeekFrom::End(0)).map_err(|source| ImageError::Open { path: path.into(), source })?;
    match size {
        0 => Err(ImageError::Empty(path.into())),
        _ if !size.is_multiple_of(SECTOR) => Err(ImageError::Unaligned { path: path.into(), size }),
        _ => Ok(size / SECTOR),
    }
}

impl RawImage {
    /// Opens `path`; see [`open_image`].
    ///
    /// # Errors
    ///
    /// [`ImageError`] names the file and what is wrong with it.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, ImageError> {
        let image = Self::open_unlocked(path, read_only)?;
        image.lock()?;
        Ok(image)
    }

    /// Opens `path` while another process may still use it: nothing may be read or written before [`RawImage::lock`].
    ///
    /// # Errors
    ///
    /// [`ImageError`] names the file and what is wrong with it.
    pub fn open_unlocked(path: &Path, read_only: bool) -> Result<Self, ImageError> {
        let (file, sectors) = open_unlocked(path, read_only)?;
        Ok(Self { path: path.into(), file, sectors, read_only })
    }

    /// Takes the image for this process.
    ///
    /// # Errors
    ///
    /// [`ImageError::Locked`] when another process has it.
    pub fn lock(&self) -> Result<(), ImageError> {
        lock(&self.file, &self.path, self.read_only)
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    ///
    /// When writing fails.
    pub fn sync(&self) -> io::Result<()> {
        self.sync_if(!self.read_only)
    }

    /// Makes all that was written durable, and lets another process take the image. Nothing may be read or written until
    /// [`RawImage::lock`] is called again.
    ///
    /// # Errors
    ///
    /// When writing fails; this process then keeps the image.
    pub fn release(&self) -> io::Result<()> {
        self.sync()?;
        match self.file.unlock() {
            Err(error) if !is_unsupported(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn carry_out(&self, operation: &Operation) -> Result<(), Failure> {
        match *operation {
            Operation::Read { offset, ref data } => self.read(offset, data),
            Operation::Write { offset, ref data, durable } => {
                self.write(offset, data)?;
                Ok(self.sync_if(durable)?)
            }
            Operation::Flush => Ok(self.sync_if(!self.read_only)?),
            Operation::Discard { offset, length } => self.discard(offset, length),
            Operation::WriteZeroes { offset, length, unmap, durable } => {
                self.write_zeroes(offset, length, unmap)?;
                Ok(self.sync_if(durable)?)
            }
        }
    }

    fn read(&self, offset: u64, data: &Segments) -> Result<(), Failure> {
        for_each_chunk(data.len(), |at, chunk| {
            self.file.read_exact_at(chunk, offset + at)?;
            Ok(data.write_at(at, chunk)?)
        })
    }

    fn write(&self, offset: u64, data: &Segments) -> Result<(), Failure> {
        for_each_chunk(data.len(), |at, chunk| {
            data.read_at(at, chunk)?;
            Ok(self.file.write_all_at(chunk, offset + at)?)
        })
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), Failure> {
        match self.allocate(FallocateMode::PunchHole, offset, length) {
            Err(error) if is_unsupported(&error) => Ok(()),
            result => Ok(result?),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> Result<(), Failure> {
        let mode = if unmap { FallocateMode::PunchHole } else { FallocateMode::ZeroRange };
        match self.allocate(mode, offset, length) {
            Err(error) if is_unsupported(&error) => for_each_chunk(length, |at, chunk| {
                chunk.fill(0);
                Ok(self.file.write_all_at(chunk, offset + at)?)
            }),
            result => Ok(result?),
        }
    }

    fn allocate(&self, mode: FallocateMode, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        Ok(fallocate(&self.file, mode, true, offset, length)?)
    }

    fn sync_if(&self, wanted: bool) -> io::Result<()> {
        if wanted { self.file.sync_data() } else { Ok(()) }
    }
}

impl BlockBackend for RawImage {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: self.read_only, discard: !self.read_only }
    }

    fn submit(&self, request: Request) {
        let result = self.carry_out(&request.operation);
        if let Err(error) = &result {
            guest_warn!(%error, "Disk request failed");
        }
        request.complete(result.map_err(|_| BlockError::Io));
    }
}

/// Why an operation failed, for the log.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("Disk image: {0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    Guest(#[from] AccessError),
}

/// Calls `step` with the position of, and a buffer for, each piece of `length` bytes.
fn for_each_chunk(
    length: u64,
    mut step: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; usize::try_from(length).map_or(CHUNK, |length| length.min(CHUNK))];
    let mut at = 0;
    while at < length {
        let left = usize::try_from(length - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        step(at, &mut buffer[..left])?;
        at += left as u64;
    }
    Ok(())
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}
