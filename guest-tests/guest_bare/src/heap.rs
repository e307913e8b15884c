//! The heap: the start of free memory, in the hands of a crate.

use linked_list_allocator::LockedHeap;

/// Bytes of the heap.
const SIZE: u64 = 64 << 20;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

/// Gives the heap the start of free memory. Gives where it ends.
pub fn start(free_start: u64, free_end: u64) -> u64 {
    let end = free_end.min(free_start + SIZE);
    let start = free_start as *mut u8;
    // SAFETY: the range is free RAM, as the VMM says, and nothing else uses it: the caller goes on behind its end.
    unsafe { HEAP.lock().init(start, (end - free_start) as usize) };
    end
}
