//! Page directories.

use device_model::ram::{GuestRam, RamError};
use pvrdma_spec::{PAGE_DIR_ENTRIES, PAGE_DIR_MAX_PAGES, PAGE_SIZE};

/// A page directory that does not name what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PageError {
    /// A number of pages that no directory can name.
    #[error("A page directory cannot name {0} pages")]
    Count(u32),
    /// The directory, one of its tables or one of its pages is not RAM.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// An entry of zero: fewer pages than promised.
    #[error("Page directory ends early")]
    Absent,
    /// An address that is not that of a page.
    #[error("Page address {0:#x} is not aligned")]
    Unaligned(u64),
    /// A page beyond the 44 bits of address that page lists keep.
    #[error("Page address {0:#x} is beyond the reach of the device")]
    OutOfReach(u64),
}

/// Copies a page of a directory.
fn read_page(ram: &dyn GuestRam, address: u64) -> Result<Box<[u64; PAGE_DIR_ENTRIES as usize]>, PageError> {
    Ok(Box::new(ram.read_obj(check_page(ram, address)?)?))
}

/// Walks a page directory once and yields the addresses of its first `pages` pages, all of them RAM.
///
/// Every page of the directory is copied before it is used, so the guest may write to it meanwhile. The walk ends at the
/// first error.
pub(crate) fn walk(
    ram: &dyn GuestRam,
    directory: u64,
    pages: u32,
) -> Result<impl Iterator<Item = Result<u64, PageError>> + '_, PageError> {
    if pages == 0 || pages > PAGE_DIR_MAX_PAGES {
        return Err(PageError::Count(pages));
    }
    let tables = read_page(ram, directory)?;
    let mut table: Option<Box<[u64; PAGE_DIR_ENTRIES as usize]>> = None;
    let mut failed = false;
    Ok((0..pages).map_while(move |index| {
        if failed {
            return None;
        }
        let page = page_at(ram, &tables[..], &mut table, index);
        failed = page.is_err();
        Some(page)
    }))
}

/// The address of page `index`; `table` is the copy of the table it is in, renewed at each boundary.
fn page_at(
    ram: &dyn GuestRam,
    tables: &[u64],
    table: &mut Option<Box<[u64; PAGE_DIR_ENTRIES as usize]>>,
    index: u32,
) -> Result<u64, PageError> {
    let (outer, inner) = (index / PAGE_DIR_ENTRIES, index % PAGE_DIR_ENTRIES);
    let copy = match table {
        Some(copy) if inner != 0 => copy,
        _ => table.insert(read_page(ram, tables[outer as usize])?),
    };
    check_page(ram, copy[inner as usize])
}

/// Checks that `address` is that of a page of RAM.
fn check_page(ram: &dyn GuestRam, address: u64) -> Result<u64, PageError> {
    if address == 0 {
        return Err(PageError::Absent);
    }
    if !address.is_multiple_of(PAGE_SIZE) {
        return Err(PageError::Unaligned(address));
    }
    ram.slice(address, PAGE_SIZE as usize)?;
    Ok(address)
}

/// The pages of a ring, for access by byte offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RingPages(Box<[u32]>);

impl RingPages {
    /// Host bytes that the list of `pages` pages takes.
    pub(crate) const fn cost(pages: u32) -> usize {
        pages as usize * size_of::<u32>()
    }

    /// A list that was copied before: `numbers` of at least one page.
    pub(crate) fn from_numbers(numbers: Vec<u32>) -> Option<Self> {
        (!numbers.is_empty() && numbers.len() <= PAGE_DIR_MAX_PAGES as usize).then(|| Self(numbers.into()))
    }

    /// Guest-physical page numbers.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// Copies the page list of a ring.
    pub(crate) fn load(ram: &dyn GuestRam, directory: u64, pages: u32) -> Result<Self, PageError> {
        let number = |page: Result<u64, PageError>| {
            page.and_then(|page| u32::try_from(page / PAGE_SIZE).map_err(|_| PageError::OutOfReach(page)))
        };
        Ok(Self(walk(ram, directory, pages)?.map(number).collect::<Result<_, _>>()?))
    }

    /// Guest-physical address of the byte `offset` bytes into the ring.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let page = self.0.get(usize::try_from(offset / PAGE_SIZE).ok()?)?;
        Some(u64::from(*page) * PAGE_SIZE + offset % PAGE_SIZE)
    }

    /// Number of pages.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}
