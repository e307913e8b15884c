//! virtio-pci transport, virtio-blk and virtio-rng (Virtual I/O Device Specification 1.2).
//!
//! [`VirtioPci`] is a [`pci::Device`]: it holds the registers and the queues, takes buffers off the rings and hands them
//! to a [`VirtioDevice`], which may complete them at once or later from another thread. [`Block`] in turn parses
//! requests into typed [`block::Operation`]s for a [`block::BlockBackend`]: a local image, or something remote.
//!
//! The virtual machine monitor supplies one bell per queue, which the guest's notifications ring, and a thread that
//! calls [`VirtioPci::process_queue`] when a bell has rung.
//!
//! # Not here
//!
//! Legacy and transitional interfaces, packed rings, queue reset, notification data, shared memory regions, INTx.
//!
//! # Trust
//!
//! Registers, rings and buffers are the guest's. What cannot be parsed breaks the device until the guest resets it
//! (`DEVICE_NEEDS_RESET`); a request that makes no sense gets an error status. The work done for one call is bounded.

#![forbid(unsafe_code)]

pub mod block;
mod buffer;
mod common;
mod device;
mod layout;
mod queue;
mod rng;
mod save;
mod transport;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use block::Block;
pub use buffer::{AccessError, Buffer, Segment, Segments, Token};
pub use device::{Malformed, VirtioDevice};
pub use layout::msix_spec;
pub use rng::Rng;
pub use transport::{TransportError, VirtioPci, Wiring};

/// Locks even after a panic elsewhere: the state behind these locks is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
