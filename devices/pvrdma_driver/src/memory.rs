//! Pages and page directories.

use alloc::vec::Vec;

use pvrdma_spec::{PAGE_DIR_ENTRIES, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::Platform;

/// A page directory in memory.
#[derive(Debug)]
pub struct PageDir {
    /// Address of its first page, which the device is given.
    pub root: u64,
    /// Addresses of its tables.
    pub tables: Vec<u64>,
}

impl PageDir {
    /// Writes a directory of `pages`.
    pub fn new<P: Platform>(platform: &P, pages: &[u64]) -> Self {
        let root = platform.alloc_page();
        let mut tables = Vec::new();
        for chunk in pages.chunks(PAGE_DIR_ENTRIES as usize) {
            let table = platform.alloc_page();
            platform.write(table, chunk.as_bytes());
            tables.push(table);
        }
        platform.write(root, tables.as_slice().as_bytes());
        Self { root, tables }
    }

    /// Frees its pages, not those it names.
    pub fn free<P: Platform>(self, platform: &P) {
        platform.free_page(self.root);
        self.tables.iter().for_each(|table| platform.free_page(*table));
    }
}

/// Pages that need not follow one another, and a directory of them.
#[derive(Debug)]
pub struct Buffer {
    /// Addresses of the pages.
    pub pages: Vec<u64>,
    /// Their directory.
    pub dir: PageDir,
}

impl Buffer {
    /// Allocates zeroed pages for `bytes` bytes.
    pub fn new<P: Platform>(platform: &P, bytes: u64) -> Self {
        let pages: Vec<u64> = (0..bytes.div_ceil(PAGE_SIZE)).map(|_| platform.alloc_page()).collect();
        let dir = PageDir::new(platform, &pages);
        Self { pages, dir }
    }

    /// Frees everything.
    pub fn free<P: Platform>(self, platform: &P) {
        self.dir.free(platform);
        self.pages.iter().for_each(|page| platform.free_page(*page));
    }

    /// Address of a byte. Panics past the end.
    pub fn address(&self, offset: u64) -> u64 {
        self.pages[(offset / PAGE_SIZE) as usize] + offset % PAGE_SIZE
    }

    /// Copies out of the buffer.
    pub fn read<P: Platform>(&self, platform: &P, offset: u64, bytes: &mut [u8]) {
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = rest.len().min((PAGE_SIZE - offset % PAGE_SIZE) as usize);
            let (now, later) = rest.split_at_mut(take);
            platform.read(self.address(offset), now);
            offset += take as u64;
            rest = later;
        }
    }

    /// Copies into the buffer.
    pub fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = rest.len().min((PAGE_SIZE - offset % PAGE_SIZE) as usize);
            let (now, later) = rest.split_at(take);
            platform.write(self.address(offset), now);
            offset += take as u64;
            rest = later;
        }
    }
}
