//! The mirror: a [`verbs::Provider`] whose objects have twins on a host RDMA device.
//!
//! Every protection domain, region, completion queue, queue pair, shared receive queue and address of a guest's *process*
//! is created once more on the host device; work requests are posted there again and completions translated back. The
//! host device then moves the bytes straight between guest memories, and the guest sees the host's queue pair numbers and
//! keys. What belongs to the guest's *kernel* (the general service interface, fast registration, storage protocols) goes to
//! an inner provider, the engine, since user-space verbs can do neither.
//!
//! | module | what it is |
//! |---|---|
//! | [`device`] | the seam to the host device, so that the rest is tested without one |
//! | [`provider`] | [`MirrorProvider`]: routing by owner, twins, positions of work requests, completions, events |
//! | [`gids`] | which guest addresses the host device gets, and for how long |
//! | `host` (feature `host`) | libibverbs, registration of guest memory, addresses by rtnetlink, the device under tunnels; the only `unsafe` code |
//!
//! # What it does not do
//!
//! Resize queues to make room: a completion queue that a program overflows is lost, as on hardware. Tell solicited from other
//! receive completions: verbs do not say which they were, so all count as solicited. Follow what the device writes to
//! guest memory: nothing of that is in the dirty bitmap.
//!
//! # Trust
//!
//! The guest is hostile. The host device enforces keys, bounds and protection domains, which are as separate as those of
//! any two programs. Only addresses that the operator gave to the guest are ever put on the host. The host device, its driver
//! and libibverbs are trusted.

#[cfg(feature = "host")]
pub mod host;

pub mod device;
pub mod gids;
pub mod provider;

pub use device::Device;
pub use gids::{Addresses, GidPolicy};
pub use provider::MirrorProvider;
