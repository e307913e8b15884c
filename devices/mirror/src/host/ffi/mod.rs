//! libibverbs, and mappings for it: all the unsafe code of this crate.
//!
//! Every object owns its libibverbs counterpart, ends it when dropped, and keeps alive what it was made of by an `Arc`; so
//! nothing is used after its end, and nothing is ended while something depends on it. libibverbs locks what it must, so
//! objects may move between threads.
//!
//! Why not the crate `ibverbs`, whose raw half this uses: its objects cannot register memory they did not allocate, share
//! receive queues, make address handles or take attributes step by step, its context keeps the GID table of the moment it was
//! opened, and ending it panics where the kernel refuses.
#![allow(unsafe_code, reason = "calls into libibverbs and fixed mappings")]

mod area;
mod context;
mod events;
mod objects;
mod qp;
mod work;

use std::io;

pub(super) use self::area::Area;
pub(super) use self::context::Context;
pub(super) use self::objects::{AddressHandle, CompletionQueue, MemoryRegion, ProtectionDomain, SharedQueue};
pub(super) use self::qp::{Parts, QueuePair};

/// The port of a RoCE device; devices with more than one are one device a port.
const PORT: u8 = 1;

/// Result of a verb that returns 0 or an errno.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        // Some verbs of some drivers return -1 and set errno.
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// A number that verbs keep as a signed one.
fn signed(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A limit that verbs keep as a signed number.
fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The tag of an object, as the pointer that libibverbs keeps for its user.
fn tag_to_pointer(tag: u32) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(tag as usize)
}

/// The other way round.
fn pointer_to_tag(pointer: *mut std::ffi::c_void) -> u32 {
    pointer.addr() as u32
}
