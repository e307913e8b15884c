//! A small PVRDMA driver for tests.
//!
//! It does on registers, rings and doorbells what the Linux driver and its user space library do, so that a test written
//! once runs against the device model in process and, in a guest without an operating system, against the whole machine.
//! It needs an allocator and a [`Platform`], nothing else.
//!
//! What it does not do: share the device between threads, handle interrupts other than by asking, or protect anyone. Its
//! ring arithmetic is its own, on purpose: a mistake in the device's must not cancel out.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod driver;
mod memory;
mod objects;
mod platform;
mod queue;

pub use driver::{Driver, Error};
pub use memory::{Buffer, PageDir};
pub use objects::{Context, Cq, Mr, Pd, Qp, QpSizes, Srq};
pub use platform::Platform;
pub use queue::{Recv, Ring, SendWork};
