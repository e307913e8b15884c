//! What a machine is made of.

use serde::{Deserialize, Serialize};

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmInfo {
    /// Version of the monitor.
    pub monitor_version: String,
    /// Process of the monitor.
    pub process: u32,
    /// Virtual CPUs.
    pub cpus: u8,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Slots with a network interface.
    pub slots: Vec<Slot>,
}

/// A slot with a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Its name.
    pub id: String,
    /// PCI address of function 0.
    pub address: String,
    /// What it is plugged into.
    pub link: String,
    /// Largest IP packet of the link in bytes.
    pub mtu: u16,
    /// Whether function 1 is an RDMA device.
    pub rdma: bool,
    /// The network interface.
    pub nic: Nic,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Ethernet address in use.
    pub mac: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// Whether the guest has the interface up.
    pub interface_up: bool,
    /// What the guest has sent.
    pub sent: NicTraffic,
    /// What the guest has received.
    pub received: NicTraffic,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicTraffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were wrong.
    pub errors: u64,
    /// Frames dropped for want of room, of a link, or of somebody who wants them.
    pub dropped: u64,
}
