//! A page of memory that a guest is given for a while.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Bytes of a page.
const SIZE: usize = super::PAGE_SIZE as usize;

/// A page of this process that guests can write to, unless they are kept from it.
#[derive(Debug)]
pub struct GuestPage(NonNull<c_void>);

// SAFETY: the pointer is to a mapping that this alone owns and that only atomic operations touch from this side.
unsafe impl Send for GuestPage {}
// SAFETY: as above.
unsafe impl Sync for GuestPage {}

impl GuestPage {
    /// A page of zeros.
    ///
    /// # Errors
    ///
    /// When the host has no memory left.
    pub fn new() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), SIZE, access, MapFlags::PRIVATE) }?;
        NonNull::new(address).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The aligned word at `offset`; zero outside of the page.
    pub fn load(&self, offset: u64) -> u32 {
        let word = usize::try_from(offset).ok().filter(|offset| *offset < SIZE && offset.is_multiple_of(4));
        let Some(offset) = word else { return 0 };
        // SAFETY: the word lies in the mapping.
        let word = unsafe { self.0.cast::<u8>().add(offset) };
        // SAFETY: it is aligned, and nothing but atomic operations accesses it from this side.
        let word = unsafe { word.cast::<AtomicU32>().as_ref() };
        u32::from_le(word.load(Ordering::Acquire))
    }

    /// Lets guests write to the page or keeps them from it. On return no CPU knows better.
    ///
    /// # Errors
    ///
    /// When the host cannot divide its mappings any further.
    pub fn set_writable(&self, writable: bool) -> io::Result<()> {
        let access = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is the mapping that this owns, and nobody here writes to it.
        Ok(unsafe { mprotect(self.0.as_ptr(), SIZE, access) }?)
    }

    /// Where it is in this process.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

impl Drop for GuestPage {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that this owns. Guests that were given it do not have it any more: whoever
        // gives it to them holds a reference.
        let _ = unsafe { munmap(self.0.as_ptr(), SIZE) };
    }
}
