//! Virtio over fabrics: a virtio device's queues carried over RDMA or TCP to a remote target.
//!
//! `docs/virtio-over-fabrics.md` is the specification. [`wire`] is the codec of both profiles; [`target`] and
//! [`initiator`] are the two ends as state machines without sockets and clocks, for streams. [`tcp`] gives them sockets,
//! [`export`] gives a target devices, and
//! [`frontend`] makes a device of a target one of this machine.
//!
//! Not here yet: RDMA (keys, immediate data, slots), authentication and TLS, reset of one virtqueue, export of device
//! state.
//!
//! # Trust
//!
//! Neither end trusts the other: lengths are checked before memory is taken, what may be kept or executed for a peer has
//! limits, and a peer that breaks the rules loses its connections. Whoever can reach a target can use what it exports.

#![forbid(unsafe_code)]

pub mod export;
pub mod frontend;
pub mod initiator;
pub mod target;
pub mod tcp;
pub mod wire;

use std::time::Duration;

use bytes::Bytes;

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
