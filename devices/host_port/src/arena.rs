//! Memory of the process that peers and the engine reach.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use device_model::ram::{GuestRam, Ram, RamError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

/// Buffers start at multiples of this and are as long, so that no key reaches into another buffer's page.
pub const PAGE: u64 = 4096;

/// A buffer of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where it begins.
    pub at: u64,
    /// Bytes that were asked for.
    pub len: u32,
}

/// Memory, cut into buffers.
///
/// It is one sealed memory file, so that machines on the same switch can copy out of it without a frame.
pub struct Arena {
    ram: Arc<Ram>,
    /// Free runs: where each begins, and its bytes.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// An arena of `size` bytes, rounded up to pages. It takes memory as it is touched.
    ///
    /// # Errors
    ///
    /// When the host has no room for the mapping.
    pub fn new(size: u64) -> io::Result<Self> {
        let size = size.next_multiple_of(PAGE);
        let file = File::from(memfd_create("rdma-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let length = usize::try_from(size).map_err(io::Error::other)?;
        let region = MmapRegionBuilder::new_with_bitmap(length, AtomicBitmap::with_len(length))
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(io::Error::other)?;
        let region = GuestRegionMmap::new(region, GuestAddress(0));
        let region = region.ok_or_else(|| io::Error::other("the arena wraps around"))?;
        let ram = Ram::from_regions(vec![region]).map_err(io::Error::other)?;
        Ok(Self { ram: Arc::new(ram), free: BTreeMap::from([(0, size)]) })
    }

    /// The memory.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Takes a buffer; `None` when there is no room. What it holds is what was there before.
    pub fn alloc(&mut self, len: u32) -> Option<Buffer> {
        let need = u64::from(len).max(1).next_multiple_of(PAGE);
        let (at, room) = self.free.iter().find(|(_, room)| **room >= need).map(|(at, room)| (*at, *room))?;
        self.free.remove(&at);
        if room > need {
            self.free.insert(at + need, room - need);
        }
        Some(Buffer { at, len })
    }

    /// Gives a buffer back. Nobody may reach it any more.
    pub fn free(&mut self, buffer: Buffer) {
        let mut at = buffer.at;
        let mut len = u64::from(buffer.len).max(1).next_multiple_of(PAGE);
        if let Some(room) = self.free.remove(&(at + len)) {
            len += room;
        }
        if let Some((before, room)) = self.free.range(..at).next_back().map(|(at, room)| (*at, *room))
            && before + room == at
        {
            (at, len) = (before, room + len);
        }
        self.free.insert(at, len);
    }

    /// Writes into memory of a buffer, `offset` bytes from its start.
    ///
    /// # Errors
    ///
    /// When that is not all inside the arena.
    pub fn write(&self, buffer: Buffer, offset: u32, bytes: &[u8]) -> Result<(), RamError> {
        (&*self.ram as &dyn GuestRam).write(buffer.at + u64::from(offset), bytes)
    }

    /// Reads the first `len` bytes of a buffer.
    ///
    /// # Errors
    ///
    /// When that is not all inside the arena.
    pub fn read(&self, buffer: Buffer, len: u32) -> Result<Vec<u8>, RamError> {
        let mut bytes = vec![0; len.min(buffer.len) as usize];
        (&*self.ram as &dyn GuestRam).read(buffer.at, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_arena_has_nothing_and_a_freed_one_all() {
        let mut arena = Arena::new(4 * PAGE - 1).unwrap();
        let buffers: Vec<_> = [4096, 1, 8192].map(|len| arena.alloc(len).unwrap()).into();
        assert_eq!((buffers[1].at, buffers[2].at, arena.alloc(0)), (4096, 8192, None));
        arena.write(buffers[2], 8190, &[1, 2]).unwrap();
        assert!(arena.write(buffers[2], 8191, &[1, 2]).is_err());
        assert_eq!(arena.read(buffers[2], 8192).unwrap()[8190..], [1, 2]);
        for n in [1, 0, 2] {
            arena.free(buffers[n]);
        }
        assert_eq!(arena.free, BTreeMap::from([(0, 4 * PAGE)]));
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_nothing_is_lost(steps in proptest::collection::vec((0..5 * 4096_u32, any::<proptest::sample::Index>(), any::<bool>()), 0..60)) {
            let mut arena = Arena::new(32 * PAGE).unwrap();
            let mut held: Vec<Buffer> = Vec::new();
            for (len, which, take) in steps {
                if take {
                    held.extend(arena.alloc(len));
                } else if !held.is_empty() {
                    arena.free(held.swap_remove(which.index(held.len())));
                }
                held.sort_by_key(|buffer| buffer.at);
                let end = |buffer: &Buffer| buffer.at + u64::from(buffer.len);
                prop_assert!(held.windows(2).all(|two| end(&two[0]) <= two[1].at));
                prop_assert!(held.iter().all(|buffer| end(buffer) <= 32 * PAGE));
            }
            held.drain(..).for_each(|buffer| arena.free(buffer));
            prop_assert_eq!(&arena.free, &BTreeMap::from([(0, 32 * PAGE)]));
        }
    }
}
