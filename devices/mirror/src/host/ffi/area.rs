//! Guest pages in one piece of the host's address space.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping of pieces of files, one behind the other.
pub(in crate::host) struct Area {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this type does not access it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Maps `pieces`, each an offset and a length of a file and a multiple of the page size, `len` bytes in all.
    pub(in crate::host) fn map<'a>(
        len: usize,
        pieces: impl Iterator<Item = io::Result<(&'a File, u64, usize)>>,
    ) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks the place, so nothing that exists is touched.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Self { base, len };
        let mut at = 0;
        for piece in pieces {
            let (file, offset, size) = piece?;
            if size > len - at {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            area.map_piece(at, size, file, offset)?;
            at += size;
        }
        Ok(area)
    }

    fn map_piece(&self, at: usize, size: usize, file: &File, offset: u64) -> io::Result<()> {
        let place = self.base.as_ptr().wrapping_byte_add(at);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the caller checked that the place lies in our own reservation, which nothing else uses.
        unsafe { mmap(place, size, access, flags, file, offset) }?;
        Ok(())
    }

    /// Where it starts.
    pub(super) fn base(&self) -> *mut c_void {
        self.base.as_ptr()
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the range is our own reservation, and whoever was given its address has been dropped before.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.len) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "Failed to unmap guest memory");
        }
    }
}
