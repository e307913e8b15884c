//! Guest memory as it moves: which pages have changed, and reading and writing them in runs.
//!
//! Pages are numbered in the order of their addresses, without the holes between.

use device_model::ram::{GuestRam, Ram};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use super::wire::{MAX_PAGES, PAGE};
use crate::error::{Error, Result};
use crate::kvm::VmWithRam;

const ZEROS: [u8; PAGE] = [0; PAGE];

/// Pages of a region of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    gpa: u64,
    pages: u64,
}

/// Where pages are.
#[derive(Clone, Debug)]
pub(super) struct Layout(Vec<Span>);

impl Layout {
    pub(super) fn of(ram: &Ram) -> Self {
        let mut first = 0;
        let span = |region: &vm_memory::GuestRegionMmap<_>| {
            let span =
                Span { first, gpa: region.start_addr().raw_value(), pages: region.len() / PAGE as u64 };
            first += span.pages;
            span
        };
        Self(ram.iter().map(span).collect())
    }

    /// Number of all pages.
    #[cfg(test)]
    fn pages(&self) -> u64 {
        self.0.iter().map(|span| span.pages).sum()
    }

    /// Address of `count` pages from `first` on, if they are in one region.
    fn address(&self, first: u64, count: u64) -> Option<u64> {
        let span = self.0.iter().rfind(|span| span.first <= first)?;
        let at = first - span.first;
        (at.checked_add(count)? <= span.pages).then(|| span.gpa + at * PAGE as u64)
    }
}

/// Pages that lie one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) count: u32,
}

/// A set of pages: a bit each, region by region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageSet(Vec<(Span, Vec<u64>)>);

impl PageSet {
    /// All there are.
    pub(super) fn all(layout: &Layout) -> Self {
        let full = |span: &Span| {
            let mut words = vec![u64::MAX; usize::try_from(span.pages.div_ceil(64)).unwrap_or(0)];
            if let (Some(last), 1..) = (words.last_mut(), span.pages % 64) {
                *last = (1 << (span.pages % 64)) - 1;
            }
            (span.clone(), words)
        };
        Self(layout.0.iter().map(full).collect())
    }

    fn none(layout: &Layout) -> Self {
        let mut set = Self::all(layout);
        set.0.iter_mut().for_each(|(_, words)| words.fill(0));
        set
    }

    /// Those that CPUs and devices have written to since the last time.
    pub(super) fn take_dirty(vm: &VmWithRam, layout: &Layout) -> Result<Self> {
        let mut set = Self::none(layout);
        let by_cpus = vm.take_dirty()?;
        let by_devices = vm.ram().iter().map(|region| (**region).bitmap().get_and_reset());
        by_cpus.into_iter().zip(&mut set.0).for_each(|(words, (_, set))| unite(set, &words));
        by_devices.zip(&mut set.0).for_each(|(words, (_, set))| unite(set, &words));
        Ok(set)
    }

    /// Adds those of another set of the same memory.
    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|((_, set), (_, words))| unite(set, words));
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().flat_map(|(_, words)| words).map(|word| u64::from(word.count_ones())).sum()
    }

    /// They as runs which a section can hold, and of which each lies in one of the aligned pieces of memory that sections
    /// are cut from.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.0.iter().flat_map(|(span, words)| Runs { span, words, at: 0 })
    }
}

/// The piece of memory that a page is in. All of one piece goes over one connection, so that a newer page never is
/// overtaken by an older one.
pub(super) const fn piece(page: u64) -> u64 {
    page / MAX_PAGES as u64
}

fn unite(set: &mut [u64], words: &[u64]) {
    set.iter_mut().zip(words).for_each(|(set, word)| *set |= word);
}

struct Runs<'a> {
    span: &'a Span,
    words: &'a [u64],
    at: u64,
}

impl Runs<'_> {
    fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// Skips words without pages.
    fn skip(&mut self) {
        while self.at < self.span.pages && !self.has(self.at) {
            let empty = usize::try_from(self.at / 64).ok().and_then(|word| self.words.get(word)) == Some(&0);
            self.at = if empty { (self.at / 64 + 1) * 64 } else { self.at + 1 };
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.skip();
        if self.at >= self.span.pages {
            return None;
        }
        let first = self.span.first + self.at;
        let start = self.at;
        while self.at < self.span.pages
            && self.has(self.at)
            && piece(self.span.first + self.at) == piece(first)
        {
            self.at += 1;
        }
        Some(Run { first, count: u32::try_from(self.at - start).unwrap_or(0) })
    }
}

/// Memory whose pages are read and written.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    pub(super) ram: &'a Ram,
    pub(super) layout: &'a Layout,
}

impl Memory<'_> {
    /// Copies a run behind what is in `buffer`.
    pub(super) fn read(&self, run: Run, buffer: &mut Vec<u8>) -> Result<()> {
        let gpa = self.address(run.first, run.count.into())?;
        let start = buffer.len();
        buffer.resize(start + run.count as usize * PAGE, 0);
        let ram: &dyn GuestRam = self.ram;
        ram.read(gpa, buffer.get_mut(start..).unwrap_or_default()).map_err(failed)
    }

    /// Writes pages that were received.
    pub(super) fn write(&self, first: u64, pages: &[u8]) -> Result<()> {
        let gpa = self.address(first, (pages.len() / PAGE) as u64)?;
        let ram: &dyn GuestRam = self.ram;
        ram.write(gpa, pages).map_err(failed)
    }

    /// Writes zeros.
    pub(super) fn clear(&self, first: u64, count: u32) -> Result<()> {
        if count as usize > MAX_PAGES {
            return Err(outside());
        }
        (0..u64::from(count)).try_for_each(|page| self.write(first.saturating_add(page), &ZEROS))
    }

    fn address(&self, first: u64, count: u64) -> Result<u64> {
        self.layout.address(first, count).ok_or_else(outside)
    }
}

fn outside() -> Error {
    Error::Failure("A page was sent that the machine does not have".to_owned())
}

fn failed(error: device_model::ram::RamError) -> Error {
    Error::Failure(error.to_string())
}

/// Splits pages into what is all zeros and what is not: the place of its first page, and how many there are.
pub(super) fn stretches(pages: &[u8]) -> Vec<(bool, usize, usize)> {
    let mut found: Vec<(bool, usize, usize)> = Vec::new();
    for (at, page) in pages.chunks_exact(PAGE).enumerate() {
        let zero = page == ZEROS;
        match found.last_mut() {
            Some((same, _, count)) if *same == zero => *count += 1,
            _ => found.push((zero, at, 1)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    fn ram() -> Ram {
        Ram::from_ranges(&[(GuestAddress(0), 300 * PAGE), (GuestAddress(1 << 32), 70 * PAGE)]).unwrap()
    }

    #[test]
    fn runs_are_cut_at_regions_and_pieces_and_leave_nothing_out() {
        let layout = Layout::of(&ram());
        assert_eq!(layout.pages(), 370);
        let all: Vec<_> = PageSet::all(&layout).runs().map(|run| (run.first, run.count)).collect();
        assert_eq!(all, [(0, 256), (256, 44), (300, 70)]);
        let mut some = PageSet::none(&layout);
        assert_eq!(some.runs().count(), 0);
        some.0[0].1[0] = 0b1011;
        some.0[1].1[1] = 1 << 5;
        let runs: Vec<_> = some.runs().map(|run| (run.first, run.count)).collect();
        assert_eq!(runs, [(0, 2), (3, 1), (369, 1)]);
        assert_eq!(some.count(), 4);
        // Bits behind the end are no pages.
        some.0[1].1[1] = u64::MAX;
        assert_eq!(some.runs().map(|run| u64::from(run.count)).sum::<u64>(), 3 + 6);
    }

    #[test]
    fn pages_outside_memory_are_refused() {
        let ram = ram();
        let layout = Layout::of(&ram);
        let memory = Memory { ram: &ram, layout: &layout };
        memory.write(369, &[1; PAGE]).unwrap();
        let mut bytes = Vec::new();
        memory.read(Run { first: 369, count: 1 }, &mut bytes).unwrap();
        assert!(bytes == [1; PAGE]);
        memory.clear(369, 1).unwrap();
        for (first, pages) in [(299, 2), (369, 2), (370, 1), (u64::MAX, 1), (u64::MAX / 2, 1)] {
            assert!(memory.write(first, &vec![1; pages * PAGE]).is_err(), "{first}");
        }
        assert!(memory.clear(0, 257).is_err());
        assert!(memory.clear(u64::MAX, 2).is_err());
    }

    #[test]
    fn zeros_are_told_from_the_rest() {
        let pages = [vec![0; 2 * PAGE], vec![1; PAGE], vec![0; PAGE - 1], vec![1]].concat();
        assert_eq!(stretches(&pages), [(true, 0, 2), (false, 2, 2)]);
    }
}
