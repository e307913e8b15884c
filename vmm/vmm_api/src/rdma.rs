//! The state of RDMA devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which devices to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RdmaShow {
    /// Only that of this slot.
    pub slot: Option<String>,
    /// Leave out queue pairs before this handle.
    pub first_qp: u32,
}

/// The devices that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaReport {
    /// In the order of their slots.
    pub devices: Vec<RdmaDevice>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name of its slot.
    pub slot: String,
    /// Its PCI address.
    pub address: String,
    /// How far the guest's driver has brought it up.
    pub driver: DriverState,
    /// The port.
    pub port: Port,
    /// Rows of the GID table that hold something.
    pub gids: Vec<GidRow>,
    /// Objects in use and how many there can be.
    pub objects: Vec<ObjectUse>,
    /// Queue pairs, a bounded number of them.
    pub queue_pairs: Vec<QueuePair>,
    /// Where to go on when there are more queue pairs.
    pub more_from: Option<u32>,
    /// The latest failures of queue pairs, oldest first, also of those that are gone.
    pub failures: Vec<FailureReport>,
    /// What the transport has counted.
    pub transport: BTreeMap<String, u64>,
    /// What the device has counted.
    pub device: BTreeMap<String, u64>,
    /// Completions by status.
    pub completions: BTreeMap<String, u64>,
    /// Executions of commands, by name.
    pub commands: BTreeMap<String, Calls>,
}

/// How far the guest's driver has brought a device up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverState {
    /// No driver is bound.
    None,
    /// A driver is being bound.
    Loaded,
    /// A driver is bound.
    Active,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Whether it can carry traffic.
    pub active: bool,
    /// Why it cannot, or what is missing for programs to use it, and what to do about it.
    pub problem: Option<String>,
    /// Whether the link is up.
    pub link_up: bool,
    /// Whether the guest has the paired network interface up.
    pub interface_up: bool,
    /// Ethernet address.
    pub mac: String,
    /// What the link is.
    pub link: String,
    /// Largest IP packet of the link in bytes.
    pub link_mtu: u16,
    /// Largest path MTU in bytes.
    pub active_mtu: u32,
}

/// A row of the GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidRow {
    /// Its index.
    pub index: u16,
    /// The address.
    pub gid: String,
    /// What kind of address it is.
    pub kind: String,
}

/// How many objects of a kind there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectUse {
    /// The kind.
    pub kind: String,
    /// In use.
    pub used: u64,
    /// Possible.
    pub limit: u64,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    /// The guest driver's number for it.
    pub handle: u32,
    /// Its number on the wire.
    pub qpn: u32,
    /// Transport service.
    pub service: String,
    /// `kernel` or `user`.
    pub owner: String,
    /// State.
    pub state: String,
    /// Own address; connected queue pairs only.
    pub source_gid: Option<String>,
    /// The peer's address; connected queue pairs only.
    pub peer_gid: Option<String>,
    /// The peer's queue pair; connected queue pairs only.
    pub peer_qpn: Option<u32>,
    /// Path MTU in bytes; connected queue pairs only.
    pub path_mtu: Option<u32>,
    /// What carries its packets: `wire`, `direct` or `itself`; connected queue pairs only.
    pub carrier: Option<String>,
    /// Next sequence number to send.
    pub send_psn: u32,
    /// Next sequence number expected.
    pub receive_psn: u32,
    /// Its last failure.
    pub failure: Option<Failure>,
}

/// Why a queue pair failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the completion status or asynchronous event that told the guest.
    pub cause: String,
    /// What to do about it.
    pub advice: String,
}

/// A failure that may outlive its queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// Milliseconds from the start of the machine to the failure.
    pub at_ms: u64,
    /// The guest driver's number for the queue pair.
    pub handle: u32,
    /// Its number on the wire.
    pub qpn: u32,
    /// The peer's address; connected queue pairs only.
    pub peer_gid: Option<String>,
    /// The peer's queue pair; connected queue pairs only.
    pub peer_qpn: Option<u32>,
    /// What happened.
    pub failure: Failure,
}

/// Executions of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Succeeded.
    pub succeeded: u64,
    /// Failed.
    pub failed: u64,
}
