//! The engines over TCP.
//!
//! [`Client`] is an initiator, [`Server`] a target. Neither has a thread: each is a descriptor that is readable when
//! there is something to do, and a call that does it without waiting, so both fit into anybody's event loop.
//!
//! Not here: TLS, name resolution after the start, limits on how much one address may connect.

mod client;
mod codec;
mod server;
mod sockets;
mod stream;

pub use client::{Client, discover};
pub use server::Server;
