//! Where guest RAM is, and how much of it one access reaches.

use device_model::ram::GuestRam;
use verbs::{PageList, Segment};

use super::mr::Denied;

/// RAM comes and goes in units of this.
const PAGE: u64 = 4096;

/// Which guest-physical ranges are RAM.
pub trait RamMap: Send {
    /// Whether the whole range is RAM that one access can reach.
    fn is_ram(&self, gpa: u64, len: u32) -> bool;
}

impl<T: GuestRam + ?Sized> RamMap for std::sync::Arc<T> {
    fn is_ram(&self, gpa: u64, len: u32) -> bool {
        self.slice(gpa, len as usize).is_ok()
    }
}

/// Cuts a segment where one region of RAM ends and the next begins. Denied where there is none.
pub(super) fn reach(ram: &dyn RamMap, segment: Segment, mut part: impl FnMut(Segment)) -> Result<(), Denied> {
    let Segment { mut gpa, mut len } = segment;
    while len > 0 {
        let take = reachable(ram, gpa, len).ok_or(Denied)?;
        part(Segment { gpa, len: take });
        // No overflow unless this was the last part.
        gpa = gpa.wrapping_add(u64::from(take));
        len -= take;
    }
    Ok(())
}

/// How many of `len` bytes one access reaches, if any.
fn reachable(ram: &dyn RamMap, gpa: u64, len: u32) -> Option<u32> {
    if ram.is_ram(gpa, len) {
        return Some(len);
    }
    // RAM up to the end of the first page, not to the end of the last: what is in between is to be found.
    let first = u32::try_from(PAGE - gpa % PAGE).ok()?;
    if first >= len || !ram.is_ram(gpa, first) {
        return None;
    }
    let (mut good, mut bad) = (0, (len - first).div_ceil(PAGE as u32));
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        *(if ram.is_ram(gpa, first + middle * PAGE as u32) { &mut good } else { &mut bad }) = middle;
    }
    Some(first + good * PAGE as u32)
}

/// Whether a run of neighbouring pages passes from one region of RAM into the next.
pub(super) fn straddles(ram: &dyn RamMap, pages: &PageList) -> bool {
    pages.runs().any(|(gpa, len)| !is_one(ram, gpa, len))
}

/// Whether one region of RAM holds all of a range, of any length.
fn is_one(ram: &dyn RamMap, gpa: u64, len: u64) -> bool {
    u32::try_from(len).is_ok_and(|len| ram.is_ram(gpa, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two regions that touch at 0x5000.
    struct Regions;

    impl RamMap for Regions {
        fn is_ram(&self, gpa: u64, len: u32) -> bool {
            let within = |from, to| gpa >= from && gpa + u64::from(len) <= to;
            within(0x1000, 0x5000) || within(0x5000, 0x20_0000)
        }
    }

    fn parts(gpa: u64, len: u32) -> Option<Vec<(u64, u32)>> {
        let mut out = vec![];
        reach(&Regions, Segment { gpa, len }, |part| out.push((part.gpa, part.len))).ok().map(|()| out)
    }

    #[test]
    fn range_is_cut_where_regions_touch() {
        assert_eq!(parts(0x1234, 0x100), Some(vec![(0x1234, 0x100)]));
        assert_eq!(parts(0x4fff, 2), Some(vec![(0x4fff, 1), (0x5000, 1)]));
        assert_eq!(parts(0x1800, 0x10_0000), Some(vec![(0x1800, 0x3800), (0x5000, 0xf_c800)]));
        assert_eq!(parts(0x5000, 0), Some(vec![]));
    }

    #[test]
    fn range_that_leaves_ram_is_denied() {
        assert_eq!(parts(0xfff, 2), None);
        assert_eq!(parts(0x4000, 0x1f_d000), None);
        assert_eq!(parts(0x30_0000, 1), None);
    }

    #[test]
    fn only_neighbours_in_different_regions_straddle() {
        let list = |pages: &[u64]| PageList::new(12, pages).unwrap();
        assert!(!straddles(&Regions, &list(&[0x3000, 0x4000])));
        assert!(!straddles(&Regions, &list(&[0x5000, 0x4000])));
        assert!(straddles(&Regions, &list(&[0x4000, 0x5000])));
        assert!(straddles(&Regions, &list(&[0x9000, 0x4000, 0x5000])));
    }
}
