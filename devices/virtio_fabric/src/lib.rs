//! Virtio over fabrics: a virtio device's queues carried over RDMA or TCP to a remote target.
//!
//! `docs/virtio-over-fabrics.md` is the specification. [`wire`] is the codec of both profiles; [`target`] and
//! [`initiator`] are the two ends as state machines without sockets and clocks: they speak of messages with all their data.
//! `tcp` carries those as they are; `rdma` names memory for what is long and writes it there. [`Client`] is an initiator
//! with its connections, [`Server`] a target with its connections and what it exports ([`export`]). Neither has a thread: each
//! is a descriptor that is readable when there is something to do, and a call that does it without waiting, so both fit
//! into anybody's event loop. [`frontend`] makes a device of a target one of this machine.
//!
//! Not here yet: slots and the base profile over RDMA, authentication and TLS, reset of one virtqueue, export of device
//! state.
//!
//! # Trust
//!
//! Neither end trusts the other: lengths are checked before memory is taken, what may be kept or executed for a peer has
//! limits, and a peer that breaks the rules loses its connections. Whoever can reach a target can use what it exports.

#![forbid(unsafe_code)]

mod client;
pub mod export;
pub mod frontend;
pub mod initiator;
mod rdma;
mod server;
pub mod target;
mod tcp;
mod transport;
pub mod wire;

use std::time::Duration;

use bytes::Bytes;

pub use client::{Client, discover};
pub use rdma::OperationCounts;
pub use server::Server;
pub use transport::{Listen, Via};
use wire::HEADER;

/// Names a connection; the numbers are those of whoever opens or accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A message: a header and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The command, completion or event.
    pub header: [u8; HEADER],
    /// Its body; shared, not copied, with whoever handed it in or keeps it.
    pub body: Bytes,
}

impl Message {
    /// A message of a header alone.
    pub fn bare(header: [u8; HEADER]) -> Self {
        Message { header, body: Bytes::new() }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A control queue.
    Control,
    /// A virtqueue.
    Queue {
        /// Of which instance.
        instance: u16,
        /// Which.
        vq: u16,
        /// The size that is wanted; 0 is the largest.
        size: u16,
    },
}

/// How messages of a connection are carried once both sides know the extension's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Frames have checksums.
    pub digests: bool,
    /// Most bytes of a command, which bounds a frame.
    pub max_xfer: u32,
}

/// How much longer than the keep-alive time-out silence may last.
pub const GRACE: Duration = Duration::from_secs(10);

/// Bits of the device status (virtio 1.2, section 2.1).
pub mod status {
    /// The driver has seen the device and knows how to drive it.
    pub const DRIVER: u32 = 1 | 2;
    /// The driver is ready.
    pub const DRIVER_OK: u32 = 4;
    /// Features are agreed on.
    pub const FEATURES_OK: u32 = 8;
    /// The device is in trouble.
    pub const NEEDS_RESET: u32 = 64;
}
