//! First assignment of BAR addresses, as firmware would do it.

use crate::device::{BarKind, BarSpec};

/// A range of guest-physical addresses that the host bridge forwards to the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address; not zero.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
}

/// The windows BARs are placed in. The same ranges belong into the host bridge's ACPI resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Below 4 GiB.
    pub low: Window,
    /// Above RAM, for 64-bit BARs.
    pub high: Window,
}

/// A window that is too small for the BARs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("No room for {bar:?} in the {window:?} for device memory: use fewer devices or a larger window")]
pub struct AssignError {
    /// The BAR that did not fit.
    pub bar: BarSpec,
    /// The window it was to lie in.
    pub window: Window,
}

/// Addresses for `bars`, in the same order, aligned to their sizes.
pub(crate) fn assign(bars: &[BarSpec], windows: &Windows) -> Result<Vec<u64>, AssignError> {
    let mut low = Cursor::new(windows.low);
    let mut high = Cursor::new(windows.high);
    let mut bases = vec![0; bars.len()];
    // Largest first: sizes are powers of two, so nothing is lost to alignment after the first of each window.
    let mut order: Vec<_> = bars.iter().zip(&mut bases).collect();
    order.sort_by_key(|(bar, _)| std::cmp::Reverse(bar.size));
    for (bar, base) in order {
        let cursor = match bar.kind {
            BarKind::Memory32 => &mut low,
            BarKind::Memory64 => &mut high,
        };
        *base = cursor.take(bar.size).ok_or(AssignError { bar: *bar, window: cursor.window })?;
    }
    Ok(bases)
}

/// The part of a window that is still free.
struct Cursor {
    window: Window,
    next: u64,
}

impl Cursor {
    const fn new(window: Window) -> Self {
        Self { window, next: window.base }
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let base = self.next.checked_next_multiple_of(size)?;
        let end = base.checked_add(size)?;
        if end > self.window.base.checked_add(self.window.size)? {
            return None;
        }
        self.next = end;
        Some(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows {
        low: Window { base: 0xe000_1000, size: 0x1000_0000 },
        high: Window { base: 1 << 40, size: 1 << 32 },
    };

    fn bar(size: u64, kind: BarKind) -> BarSpec {
        BarSpec { index: 0, size, kind }
    }

    #[test]
    fn bars_are_aligned_disjoint_and_inside_their_windows() {
        let bars = [
            bar(0x1000, BarKind::Memory32),
            bar(0x10_0000, BarKind::Memory32),
            bar(0x4000, BarKind::Memory64),
            bar(0x1000, BarKind::Memory32),
        ];
        let bases = assign(&bars, &WINDOWS).unwrap();
        assert_eq!(bases, [0xe020_0000, 0xe010_0000, 1 << 40, 0xe020_1000]);
    }

    #[test]
    fn full_window_names_the_bar() {
        let bar = bar(0x1000_0000, BarKind::Memory32);
        assert_eq!(assign(&[bar], &WINDOWS), Err(AssignError { bar, window: WINDOWS.low }));
    }
}
