//! A process of the host as an RDMA endpoint: with its own MAC and IP address on a switch, UDP or tap port.
//!
//! | module | what it is |
//! |---|---|
//! | [`endpoint`] | a [`verbs::Provider`], a connection manager and the neighbours of one address; no clock, no waiting |
//! | [`neighbours`] | ARP and neighbour discovery |
//! | [`arena`] | memory that peers reach |
//! | [`HostPort`] | an endpoint over the engine with a descriptor that is readable when there is something to do |
//!
//! A peer is anything that speaks RoCE v2 and connects by `rdma_cm`. Seen to work is another host port. A stock `rping` in a
//! guest connects, but its first request then runs out of retries, for a reason not yet known. Neighbours are on the link;
//! there are no routers.
//!
//! # Trust
//!
//! A peer is believed nothing but what the engine and the connection manager have checked. It reaches what was registered,
//! with the rights that were given, until it is revoked. Whoever is on the link can claim any address, as on any Ethernet.

#![forbid(unsafe_code)]

pub mod arena;
pub mod endpoint;
pub mod neighbours;
mod port;

pub use arena::{Arena, Buffer};
pub use endpoint::{ConnId, Endpoint, Event, Failure, Queues, Registered};
pub use port::{HostPort, PortConfig};
