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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGE: usize = 4096;

    fn file() -> File {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        for page in 0..4_u8 {
            file.write_all_at(&[page; PAGE], u64::from(page) * PAGE as u64).unwrap();
        }
        file
    }

    fn byte(area: &Area, at: usize) -> u8 {
        assert!(at < area.len());
        // SAFETY: the area is mapped from end to end, as its pieces fill it.
        unsafe { area.base().cast::<u8>().wrapping_add(at).read_volatile() }
    }

    #[test]
    fn pieces_lie_one_behind_the_other_and_are_the_file_itself() {
        let file = file();
        let pieces = [(3, 1), (0, 2)].map(|(page, count)| Ok((&file, page * PAGE as u64, count * PAGE)));
        let area = Area::map(3 * PAGE, pieces.into_iter()).unwrap();
        assert_eq!([0, PAGE, 3 * PAGE - 1].map(|at| byte(&area, at)), [3, 0, 1]);
        file.write_all_at(&[9], PAGE as u64).unwrap();
        assert_eq!(byte(&area, 2 * PAGE), 9);
    }

    #[test]
    fn pieces_beyond_the_area_and_failed_ones_leave_nothing() {
        let file = file();
        let too_long = [Ok((&file, 0, 2 * PAGE))];
        assert!(Area::map(PAGE, too_long.into_iter()).is_err());
        let failed = [Ok((&file, 0, PAGE)), Err(io::ErrorKind::NotFound.into())];
        assert_eq!(Area::map(2 * PAGE, failed.into_iter()).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
