//! The memory that requests of a load work on: pages that lie scattered, so that addresses say nothing about places.

use std::ops::Range;
use std::sync::Arc;

use device_model::ram::{GuestRam, Ram};
use verbs::{Access, Keys, MrId, MrInit, MrKind, PageList, Provider, Sge};

use crate::common::Rng;
use crate::common::node::{HEAP, Node, PD};

const PAGE: usize = 4096;
/// Address the first byte of an area goes by.
const BASE: u64 = 0x7000_0000_0000;

/// Ranges of an area that together hold a message, in the order of its bytes.
pub type Pieces = Vec<Range<usize>>;

/// Bytes of all pieces.
pub fn total(pieces: &Pieces) -> usize {
    pieces.iter().map(ExactSizeIterator::len).sum()
}

/// Copies the start of a message to where it belongs.
pub fn scatter(to: &mut [u8], pieces: &Pieces, mut bytes: &[u8]) {
    for piece in pieces {
        let (part, rest) = bytes.split_at(piece.len().min(bytes.len()));
        to[piece.start..piece.start + part.len()].copy_from_slice(part);
        bytes = rest;
    }
}

/// The first `len` bytes of what pieces hold.
pub fn gather(from: &[u8], pieces: &Pieces, len: usize) -> Vec<u8> {
    pieces.iter().flat_map(|piece| from[piece.clone()].iter().copied()).take(len).collect()
}

/// One node's area. Places in it are counted from its start, whatever pages are behind.
#[derive(Clone)]
pub struct Area {
    ram: Arc<Ram>,
    pages: Vec<u64>,
    keys: Keys,
}

impl Area {
    pub fn new(node: &mut Node, bytes: usize, rng: &mut Rng) -> Self {
        let count = bytes.div_ceil(PAGE) as u64;
        // Every other page, so that no two touch.
        let mut pages: Vec<u64> = (0..count).map(|i| HEAP + 2 * i * PAGE as u64).collect();
        for i in (1..pages.len()).rev() {
            pages.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let kind = MrKind::Pages(PageList::new(12, &pages).unwrap());
        let init = MrInit { pd: PD, iova: BASE, length: count * PAGE as u64, access: Access::all(), kind };
        let keys = node.provider.register_mr(MrId(50), init).unwrap();
        Self { ram: node.ram.clone(), pages, keys }
    }

    /// The memory is another one now, with the same pages.
    pub fn move_to(&mut self, ram: &Arc<Ram>) {
        self.ram = ram.clone();
    }

    pub const fn rkey(&self) -> u32 {
        self.keys.rkey
    }

    /// The address of a place, as requests name it.
    pub const fn va(at: usize) -> u64 {
        BASE + at as u64
    }

    /// The place of an address.
    pub const fn place(va: u64) -> usize {
        (va - BASE) as usize
    }

    pub fn sges(&self, pieces: &Pieces) -> Vec<Sge> {
        let sge = |piece: &Range<usize>| Sge {
            addr: Self::va(piece.start),
            length: piece.len() as u32,
            lkey: self.keys.lkey,
        };
        pieces.iter().map(sge).collect()
    }

    /// Guest-physical pages behind a range that starts at a page.
    pub fn pages(&self, range: Range<usize>) -> &[u64] {
        &self.pages[range.start / PAGE..range.end / PAGE]
    }

    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Calls `f` for each stretch of a range that lies in one page, with its guest-physical address and its place in the
    /// range.
    fn stretches(&self, range: Range<usize>, mut f: impl FnMut(u64, Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / PAGE + 1) * PAGE);
            f(self.pages[at / PAGE] + (at % PAGE) as u64, at - range.start..end - range.start);
            at = end;
        }
    }

    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        let ram: &dyn GuestRam = &*self.ram;
        self.stretches(range, |gpa, part| ram.read(gpa, &mut out[part]).unwrap());
        out
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let ram: &dyn GuestRam = &*self.ram;
        self.stretches(at..at + bytes.len(), |gpa, part| ram.write(gpa, &bytes[part]).unwrap());
    }

    /// The first `len` bytes of what pieces hold now.
    pub fn gather(&self, pieces: &Pieces, len: usize) -> Vec<u8> {
        let all = pieces.iter().flat_map(|piece| self.read(piece.clone()));
        all.take(len).collect()
    }

    /// Whether the pages between those of the area hold only zeros.
    pub fn gaps_are_clean(&self) -> bool {
        let ram: &dyn GuestRam = &*self.ram;
        let mut page = [0; PAGE];
        (0..self.pages.len() as u64).all(|i| {
            ram.read(HEAP + (2 * i + 1) * PAGE as u64, &mut page).unwrap();
            page.iter().all(|byte| *byte == 0)
        })
    }
}
