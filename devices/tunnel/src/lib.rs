//! RDMA in RDMA: channels to machines of other hosts, over the RDMA devices of the hosts.
//!
//! A channel of two machines is one reliable connection of their host devices. Records of the direct carrier go as SENDs;
//! a payload that one of them names is fetched by RDMA READs out of the peer's memory, straight to where it belongs in the
//! own one. That is all a peer may do to this machine's memory: read it.
//!
//! | module | what it is |
//! |---|---|
//! | [`outer`] | the seam to the host device: one queue pair, its buffers, its completions |
//! | [`call`] | [`Calls`]: how two machines find each other over the network of their ports |
//! | [`channel`] | [`Tunnel`]: credits, records, fetches; a [`device_model::direct::Channel`] |
//! | `fake` (feature `test_utils`) | two queue pairs without a device |
//!
//! # Trust
//!
//! A peer that has a channel has the same key, and can read all of this machine's memory. What it sends is checked before use: lengths, kinds,
//! counts of records, and the bounds of what a record names. The host device enforces that a peer only reads.
#![forbid(unsafe_code)]

pub mod call;
pub mod channel;
#[cfg(feature = "test_utils")]
pub mod fake;
pub mod outer;

pub use call::{Calls, Host, Key, Terms};
pub use channel::{Peer, Region, Tunnel};
pub use outer::{Done, Outer, Slot};
