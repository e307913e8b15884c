//! The PVRDMA device function (PCI 15ad:0820), as the stock Linux driver and its user space library expect it.
//!
//! [`Pvrdma`] is a [`pci::Device`] that sits beside a vmxnet3 function. It owns what the guest sees: registers, the shared
//! region, the command channel, page directories, rings, doorbells, completions and events. What the guest asks for it
//! hands to a [`verbs::Provider`], which does the RDMA.
//!
//! What it does not do: put anything on a wire, read or write the memory of work requests, know KVM or an event loop. The
//! interface itself is described in [`pvrdma_spec`].
//!
//! # Trust
//!
//! The guest is hostile, its kernel as much as its processes. Everything read from its memory is copied once, the copy is
//! parsed into types, bounded and only then acted on. Memory that a user process can write never gives rights that only
//! the guest's kernel has: those follow from the context an object was created in. An error stays with the object that
//! caused it. The provider is trusted.
//!
//! # Threads
//!
//! One lock guards the device. A vCPU thread takes it once for a register access; the I/O thread takes it once for a
//! bounded batch of work ([`Pvrdma::service`]) and hands it to waiting vCPUs in between. Posting a work request or finding a
//! completion queue empty need not take it at all: those doorbells are registered with the hypervisor by value, or, for
//! processes that are busy, are memory that the I/O thread looks at ([`Pvrdma::allow_polling`]).

#![forbid(unsafe_code)]

mod command;
mod config;
mod counters;
mod device;
mod event;
mod inspect;
mod polling;
mod ring;
mod save;
mod state;
#[cfg(feature = "test_utils")]
pub mod test_utils;
mod work;

pub use config::{Bells, Config, ConfigError, Parts};
pub use counters::{CommandCounters, Counters, ObjectCounts};
pub use device::{MSIX, Next, Pvrdma};
pub use inspect::{Cause, DriverPhase, Failure, QueuePair, Snapshot};
pub use polling::Polling;
