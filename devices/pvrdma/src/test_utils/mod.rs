//! A machine around the device, small enough to live in a test: memory, interrupts, doorbells and a clock that stands still
//! unless told otherwise. The driver is that of [`pvrdma_driver`].

mod fake;
mod machine;
mod pages;

pub use fake::{Fake, FakeProvider};
pub use machine::{Guest, Machine, MachineConfig, PAGE_POISON};
