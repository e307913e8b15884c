//! Guest memory that is shared with another process, and that of another process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use device_model::ram::{Ram, RamError, RamSlice};
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_get_seals, fstat, open};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Address, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};

/// A part of a file that appears in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// Why memory cannot be shared.
fn refuse(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Refuses a file that someone could resize: to touch a page that is gone would kill this process.
pub(super) fn check_seals(fd: impl AsFd) -> io::Result<()> {
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let seals = fcntl_get_seals(fd).map_err(|_| refuse("not a memory file"))?;
    if seals.contains(needed) { Ok(()) } else { Err(refuse("a memory file that is not sealed")) }
}

/// The file behind `ram`, opened for reading only, and what of it is where.
///
/// # Errors
///
/// When the memory is not that of one sealed file.
pub fn share(ram: &Ram) -> io::Result<(OwnedFd, Vec<Range>)> {
    let mut ranges = Vec::new();
    let mut first: Option<&FileOffset> = None;
    for region in ram.iter() {
        let file = region.file_offset().ok_or_else(|| refuse("memory without a file"))?;
        if !std::ptr::eq(first.get_or_insert(file).file(), file.file()) {
            return Err(refuse("memory of several files"));
        }
        let (gpa, len) = (region.start_addr().raw_value(), region.len());
        ranges.push(Range { gpa, len, offset: file.start() });
    }
    let file = first.ok_or_else(|| refuse("no memory"))?.file();
    check_seals(file)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, ranges))
}

/// Another machine's memory. It cannot be written to.
#[derive(Debug)]
pub struct PeerMemory(GuestMemoryMmap<()>);

impl PeerMemory {
    /// Maps the parts of a file that a peer sent.
    ///
    /// # Errors
    ///
    /// When the file could be resized, or the parts are not inside it, overlap or cannot be mapped.
    pub fn map(fd: OwnedFd, ranges: &[Range]) -> io::Result<Self> {
        check_seals(&fd)?;
        let size = u64::try_from(fstat(&fd)?.st_size).map_err(|_| refuse("a file of no size"))?;
        let file = std::sync::Arc::new(File::from(fd));
        let region = |range: &Range| {
            let inside = range.offset.checked_add(range.len).is_some_and(|end| end <= size);
            let len = usize::try_from(range.len).ok().filter(|len| *len > 0 && inside);
            let region = MmapRegionBuilder::new(len.ok_or_else(|| refuse("memory outside its file"))?)
                .with_file_offset(FileOffset::from_arc(std::sync::Arc::clone(&file), range.offset))
                .with_mmap_prot(libc::PROT_READ)
                .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
                .build()
                .map_err(io::Error::other)?;
            GuestRegionMmap::new(region, GuestAddress(range.gpa)).ok_or_else(|| refuse("memory that wraps"))
        };
        let regions = ranges.iter().map(region).collect::<io::Result<Vec<_>>>()?;
        GuestMemoryMmap::from_regions(regions).map(Self).map_err(io::Error::other)
    }

    /// Whether there is memory at all `len` bytes from `gpa` on, in one piece.
    pub fn reaches(&self, gpa: u64, len: u32) -> bool {
        self.0.to_region_addr(GuestAddress(gpa)).is_some_and(|(region, start)| {
            start.raw_value().checked_add(u64::from(len)).is_some_and(|end| end <= region.len())
        })
    }

    /// Fills `to` with the bytes at `gpa`.
    ///
    /// # Errors
    ///
    /// When there is no memory there.
    pub fn copy(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        let error = RamError { gpa, len: to.len() };
        let (region, start) = self.0.to_region_addr(GuestAddress(gpa)).ok_or(error)?;
        region.get_slice(start, to.len()).map_err(|_| error)?.copy_to_volatile_slice(*to);
        Ok(())
    }
}
