//! Virtio over fabrics: a virtio device's queues carried over RDMA or TCP to a remote target.
//!
//! `docs/virtio-over-fabrics.md` is the specification. [`wire`] is the codec of both profiles; [`target`] and
//! [`initiator`] are the two ends as state machines without sockets and clocks, for streams. Not here yet: what needs
//! RDMA (keys, immediate data, slots), frames and checksums, authentication, discovery, reset of one virtqueue, export
//! of device state; transports; devices; commands.

#![forbid(unsafe_code)]

pub mod initiator;
pub mod target;
pub mod wire;

use std::time::Duration;

/// Names a connection; the numbers are those of whoever opens or accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

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
