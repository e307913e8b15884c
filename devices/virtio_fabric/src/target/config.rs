//! What a target is made of.

use std::ops::Range;
use std::time::Duration;

use crate::wire::{Features, Name, VqxLimits};

/// A device that is exported.
#[derive(Clone, Debug)]
pub struct Device {
    /// The name that initiators ask for.
    pub name: Name,
    /// Virtio device id.
    pub id: u32,
    /// Virtio vendor id.
    pub vendor: u32,
    /// Device features, bits 0 to 63.
    pub features: u64,
    /// Device-specific configuration.
    pub config: Vec<u8>,
    /// The part of it that a driver may write.
    pub writable: Range<usize>,
    /// Largest size of each virtqueue.
    pub queue_sizes: Vec<u16>,
    /// Bytes of a request that the device wants apart from the rest.
    pub out_split: u16,
}

/// What a target is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it exports. Names are different.
    pub devices: Vec<Device>,
    /// Transport features it grants.
    pub features: Features,
    /// Most bytes of a command.
    pub max_xfer: u32,
    /// Most instances.
    pub max_instances: u16,
    /// Most connections that have not sent a Connect.
    pub max_pending: usize,
    /// Longest life of a session without connections.
    pub session_life: Duration,
    /// Longest keep-alive time-out.
    pub max_keepalive: Duration,
    /// Readable and writable bytes that a virtqueue's commands may have together before no more are taken from its
    /// connection.
    pub max_executing: u64,
    /// The same for all virtqueues together; each may have one command nevertheless.
    pub max_executing_total: u64,
    /// Most writable bytes of one command that are kept in case the connection is lost.
    pub replay_limit: usize,
    /// What a command may be over RDMA; none over streams.
    pub rdma: Option<VqxLimits>,
}

/// Every transport feature that this target knows.
pub const FEATURES: Features = Features::BASE
    .union(Features::INLINE_OUT)
    .union(Features::TAIL_IN)
    .union(Features::IMM_COMP)
    .union(Features::RESUME)
    .union(Features::ABORT_RESET)
    .union(Features::BULK_CONFIG)
    .union(Features::FRAME)
    .union(Features::DIGEST)
    .union(Features::EVENTS)
    .union(Features::DISCOVERY);

impl Default for Config {
    /// Without devices; section 10 of the specification has the numbers.
    fn default() -> Self {
        Config {
            devices: Vec::new(),
            features: FEATURES,
            max_xfer: (4 << 20) + 4096,
            max_instances: 64,
            max_pending: 64,
            session_life: Duration::from_secs(30),
            max_keepalive: Duration::from_secs(300),
            max_executing: 8 << 20,
            max_executing_total: 256 << 20,
            replay_limit: 512,
            rdma: None,
        }
    }
}
