//! The verbs objects this program uses, each owning its C object and keeping alive what that depends on.
//!
//! Memory that a device may write at any time never shows as a reference: it is reached by copying in and out.

mod device;
mod memory;
mod queue;

pub use device::{Context, Domain};
pub use memory::Memory;
pub use queue::{Completion, CompletionQueue, Connection, QueuePair, Work};

use std::io;

/// The error of a verb that returns it.
fn check(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.abs())) }
}
