//! What an initiator is made of.

use std::time::Duration;

use crate::wire::{Features, Name};

/// What an initiator is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The initiator's name.
    pub initiator: Name,
    /// The target's name.
    pub target: Name,
    /// Names this host.
    pub host_id: [u8; 16],
    /// Whether to offer the extension, and which of its features.
    pub features: Features,
    /// Device features the driver would accept, bits 0 to 63.
    pub driver_features: u64,
    /// Virtqueues to attach, or fewer if a target of the extension has fewer.
    pub queues: u16,
    /// Wanted size of each; 0 is the largest.
    pub queue_size: u16,
    /// Most buffers of a virtqueue that wait for room in its window.
    pub backlog: usize,
    /// Over RDMA, the largest completion of a virtqueue that can be received; 0 over streams.
    pub receives: u32,
    /// Keep-alive time-out; zero is none.
    pub keepalive: Duration,
    /// How long the target shall keep the session without connections.
    pub session_life: Duration,
    /// How long opening and Connect may take, each.
    pub connect_timeout: Duration,
    /// How long a control command may take.
    pub control_timeout: Duration,
    /// After how long a buffer is aborted, and again as long after, its connection given up.
    pub command_timeout: Duration,
    /// Whether requests may be executed twice without harm, as those of block devices and entropy sources may. Then a
    /// target that has lost the session (it was started again) is given all that is in flight in a new one.
    pub repeatable: bool,
    /// Pause before connecting again; doubled up to 10 seconds.
    pub backoff: Duration,
    /// How long to try.
    pub loss_timeout: Duration,
}

impl Default for Config {
    /// Without names; section 10 of the specification has the numbers.
    fn default() -> Self {
        Config {
            initiator: Name::default(),
            target: Name::default(),
            host_id: [0; 16],
            features: crate::target::FEATURES.difference(Features::DIGEST),
            driver_features: !0,
            queues: 1,
            queue_size: 0,
            backlog: 1024,
            receives: 0,
            keepalive: Duration::from_secs(5),
            session_life: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            control_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            repeatable: false,
            backoff: Duration::from_millis(500),
            loss_timeout: Duration::from_secs(600),
        }
    }
}
