//! The heap: memory is given out once and never taken back. The cases are few and the machine ends with them.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the heap.
const SIZE: u64 = 64 << 20;

struct Bump {
    next: AtomicUsize,
    end: AtomicUsize,
}

#[global_allocator]
static HEAP: Bump = Bump { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };

/// Gives the heap the start of free memory. Gives where it ends.
pub fn start(free_start: u64, free_end: u64) -> u64 {
    let end = free_end.min(free_start + SIZE);
    HEAP.next.store(free_start as usize, Ordering::Relaxed);
    HEAP.end.store(end as usize, Ordering::Relaxed);
    end
}

// SAFETY: what is given out lies between `next` and `end`, which the VMM says are free RAM, is aligned as asked, and is
// never given out again since `next` only grows.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let end = self.end.load(Ordering::Relaxed);
        let take = |next: usize| {
            let after = next.checked_next_multiple_of(layout.align())?.checked_add(layout.size())?;
            (after <= end).then_some(after)
        };
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(next) => next.next_multiple_of(layout.align()) as *mut u8,
            Err(_) => null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
