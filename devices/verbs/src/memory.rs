//! Registered memory as runs of guest-physical memory.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Access, PdId};

/// A run of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Runs of guest-physical memory that together hold one contiguous range of a work request.
pub type Segments = SmallVec<[Segment; 4]>;

/// The guest-physical pages behind a region, in order of virtual address.
///
/// Runs of neighbouring pages cost nothing; scattered pages four bytes each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PageListState")]
pub struct PageList {
    page_shift: u8,
    pages: u32,
    layout: Layout,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Layout {
    /// All pages follow the first one.
    Run { first: u64 },
    /// Guest-physical page numbers.
    Scattered(Box<[u32]>),
}

/// A list as it was saved.
#[derive(Deserialize)]
struct PageListState {
    page_shift: u8,
    pages: u32,
    layout: Layout,
}

impl TryFrom<PageListState> for PageList {
    type Error = PageListError;

    fn try_from(state: PageListState) -> Result<Self, PageListError> {
        let PageListState { page_shift, pages, layout } = state;
        let size = 1u64.checked_shl(u32::from(page_shift)).ok_or(PageListError::Count)?;
        match &layout {
            Layout::Run { first } if first & (size - 1) != 0 => return Err(PageListError::Unaligned(*first)),
            Layout::Run { first } => {
                let length = u64::from(pages).checked_mul(size).ok_or(PageListError::Count)?;
                first.checked_add(length).ok_or(PageListError::OutOfReach(*first))?;
            }
            Layout::Scattered(numbers) if numbers.len() != pages as usize => {
                return Err(PageListError::Count);
            }
            // Every address must fit, as it does when a list is made.
            Layout::Scattered(_) if page_shift > 32 => return Err(PageListError::Count),
            Layout::Scattered(_) => {}
        }
        if pages == 0 { Err(PageListError::Count) } else { Ok(Self { page_shift, pages, layout }) }
    }
}

/// Pages that cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageListError {
    /// A page address that is not a multiple of the page size.
    #[error("Page address {0:#x} is not aligned to the page size")]
    Unaligned(u64),
    /// A page whose number does not fit 32 bits.
    #[error("Page address {0:#x} is beyond the reach of the device")]
    OutOfReach(u64),
    /// No pages, or 2^32 and more.
    #[error("Page list is empty or too long")]
    Count,
}

impl PageList {
    /// Describes `addresses`, each the guest-physical address of a page of `1 << page_shift` bytes.
    ///
    /// # Errors
    ///
    /// See [`PageListError`].
    pub fn new(page_shift: u8, addresses: &[u64]) -> Result<Self, PageListError> {
        let pages = u32::try_from(addresses.len()).map_err(|_| PageListError::Count)?;
        let first = *addresses.first().ok_or(PageListError::Count)?;
        let size = 1u64.checked_shl(u32::from(page_shift)).ok_or(PageListError::Count)?;
        if let Some(bad) = addresses.iter().find(|a| **a & (size - 1) != 0) {
            return Err(PageListError::Unaligned(*bad));
        }
        let in_run = |(i, a): (u64, &u64)| first.checked_add(i << page_shift) == Some(*a);
        let layout = if (0..).zip(addresses).all(in_run) {
            Layout::Run { first }
        } else {
            let number = |a: &u64| u32::try_from(a >> page_shift).map_err(|_| PageListError::OutOfReach(*a));
            Layout::Scattered(addresses.iter().map(number).collect::<Result<_, _>>()?)
        };
        Ok(Self { page_shift, pages, layout })
    }

    /// Number of pages.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Bytes of a page.
    pub const fn page_size(&self) -> u64 {
        1 << self.page_shift
    }

    /// Host bytes spent on the description.
    pub fn cost(&self) -> usize {
        match &self.layout {
            Layout::Run { .. } => 0,
            Layout::Scattered(pages) => std::mem::size_of_val(&**pages),
        }
    }

    /// First address and bytes of each run of neighbouring pages, in order.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let size = self.page_size();
        let (run, scattered) = match &self.layout {
            Layout::Run { first } => (Some((*first, u64::from(self.pages) << self.page_shift)), &[][..]),
            Layout::Scattered(pages) => (None, &pages[..]),
        };
        let neighbours = scattered.chunk_by(|a, b| a.checked_add(1) == Some(*b));
        let shift = self.page_shift;
        let as_bytes = move |run: &[u32]| {
            let first = run.first().map_or(0, |page| u64::from(*page) << shift);
            (first, run.len() as u64 * size)
        };
        run.into_iter().chain(neighbours.map(as_bytes))
    }

    /// Appends the segments of the `len` bytes that start `offset` bytes into the first page to `out`, joining
    /// neighbours. Returns `false`, with `out` unspecified, when the range passes the last page.
    #[must_use]
    pub fn resolve(&self, offset: u64, len: u32, out: &mut Segments) -> bool {
        let total = u64::from(self.pages) << self.page_shift;
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > total) {
            return false;
        }
        if len == 0 {
            return true;
        }
        match &self.layout {
            Layout::Run { first } => push(out, first + offset, len),
            Layout::Scattered(pages) => self.resolve_scattered(pages, offset, len, out),
        }
        true
    }

    fn resolve_scattered(&self, pages: &[u32], mut offset: u64, mut len: u32, out: &mut Segments) {
        let size = 1u64 << self.page_shift;
        while len > 0 {
            let index = usize::try_from(offset >> self.page_shift).unwrap_or(usize::MAX);
            let Some(page) = pages.get(index) else { return };
            let inside = offset & (size - 1);
            let take = u32::try_from((size - inside).min(u64::from(len))).unwrap_or(len);
            push(out, (u64::from(*page) << self.page_shift) + inside, take);
            offset += u64::from(take);
            len -= take;
        }
    }
}

/// Appends a segment, joining it to the last one when they touch.
fn push(out: &mut Segments, gpa: u64, len: u32) {
    if let Some(last) = out.last_mut()
        && last.gpa + u64::from(last.len) == gpa
        && let Some(joined) = last.len.checked_add(len)
    {
        last.len = joined;
        return;
    }
    out.push(Segment { gpa, len });
}

/// What lies behind a memory region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MrKind {
    /// Pinned pages of a process or of the kernel. The first byte lies `iova % page size` into the first page.
    Pages(PageList),
    /// All of guest memory, addressed by guest-physical address.
    Dma,
    /// A region without memory that fast-registration work requests give pages to, at most `max_pages` of them.
    FastReg {
        /// Longest page list that will be registered.
        max_pages: u32,
    },
}

/// A memory region to register. The device model has checked that all pages are guest RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrInit {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte, as work requests and peers name it.
    pub iova: u64,
    /// Length in bytes; without meaning unless there are pages.
    pub length: u64,
    /// Rights.
    pub access: Access,
    /// Memory.
    pub kind: MrKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(list: &PageList, offset: u64, len: u32) -> Option<Vec<(u64, u32)>> {
        let mut out = Segments::new();
        list.resolve(offset, len, &mut out).then(|| out.iter().map(|s| (s.gpa, s.len)).collect())
    }

    #[test]
    fn neighbouring_pages_cost_nothing_and_resolve_to_one_segment() {
        let list = PageList::new(12, &[0x5000, 0x6000, 0x7000]).unwrap();
        assert_eq!(list.cost(), 0);
        assert_eq!(segments(&list, 0xfff, 0x1002), Some(vec![(0x5fff, 0x1002)]));
    }

    #[test]
    fn scattered_pages_split_at_page_ends_and_join_where_they_touch() {
        let list = PageList::new(12, &[0x9000, 0x5000, 0x6000]).unwrap();
        assert_eq!(segments(&list, 0xffe, 0x1004), Some(vec![(0x9ffe, 2), (0x5000, 0x1002)]));
    }

    #[test]
    fn range_past_the_end_or_wrapping_is_refused() {
        let list = PageList::new(12, &[0x9000, 0x5000]).unwrap();
        assert_eq!(segments(&list, 0x1fff, 2), None);
        assert_eq!(segments(&list, u64::MAX, 2), None);
        assert_eq!(segments(&list, 0x2000, 0), Some(vec![]));
    }

    #[test]
    fn runs_are_as_long_as_pages_are_neighbours() {
        let runs = |pages: &[u64]| PageList::new(12, pages).unwrap().runs().collect::<Vec<_>>();
        assert_eq!(runs(&[0x5000, 0x6000]), [(0x5000, 0x2000)]);
        assert_eq!(runs(&[0x9000, 0x5000, 0x6000]), [(0x9000, 0x1000), (0x5000, 0x2000)]);
    }

    #[test]
    fn bad_pages_are_refused() {
        assert_eq!(PageList::new(12, &[]), Err(PageListError::Count));
        assert_eq!(PageList::new(12, &[0x5001]), Err(PageListError::Unaligned(0x5001)));
        assert_eq!(PageList::new(12, &[0, 1 << 50]), Err(PageListError::OutOfReach(1 << 50)));
        assert_eq!(PageList::new(64, &[0]), Err(PageListError::Count));
    }
}
