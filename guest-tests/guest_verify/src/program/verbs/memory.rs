//! Memory that a device may read and write, registered with it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use ibverbs_sys as ffi;

use super::device::Domain;

const PAGE: usize = 4096;

/// A registered range that the peer may read, write and change atomically.
pub struct Memory {
    region: NonNull<ffi::ibv_mr>,
    bytes: NonNull<u8>,
    layout: Layout,
    _domain: Rc<Domain>,
}

impl Memory {
    /// Allocates and registers zeroed memory of at least `size` bytes.
    pub fn new(domain: &Rc<Domain>, size: usize) -> io::Result<Self> {
        let size = size.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).map_err(io::Error::other)?;
        // SAFETY: the layout is not of size zero.
        let Some(bytes) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the domain is alive and the range is allocated; it is freed only after deregistration.
        let region = unsafe { ffi::ibv_reg_mr(domain.raw(), bytes.as_ptr().cast(), size, access.0 as i32) };
        let Some(region) = NonNull::new(region) else {
            let error = io::Error::last_os_error();
            // SAFETY: allocated above with this layout, and nothing else knows of it.
            unsafe { dealloc(bytes.as_ptr(), layout) };
            return Err(error);
        };
        Ok(Self { region, bytes, layout, _domain: Rc::clone(domain) })
    }

    /// Key for work requests of this side.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is registered as long as `self`, and its keys do not change.
        unsafe { self.region.as_ref() }.lkey
    }

    /// Key for the peer.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.rkey
    }

    /// Address of the byte at `offset`.
    ///
    /// # Panics
    ///
    /// When `length` bytes from there do not lie in the memory.
    pub fn address(&self, offset: usize, length: usize) -> u64 {
        self.at(offset, length) as u64
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// When they do not fit at `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` has checked the range; the source is another allocation. A device that writes the same
        // bytes at the same time makes the content wrong, which the check of the content finds.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    ///
    /// When they do not lie in the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.layout.size()), "Range lies outside the memory");
        self.bytes.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region was registered and is deregistered once.
        let failed = unsafe { ffi::ibv_dereg_mr(self.region.as_ptr()) };
        if failed == 0 {
            // SAFETY: allocated with this layout; the device has let go of it. Otherwise it is leaked.
            unsafe { dealloc(self.bytes.as_ptr(), self.layout) };
        }
    }
}
