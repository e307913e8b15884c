//! An Ethernet switch in user space that needs no privilege: ports are connections to a UNIX socket.
//!
//! The switch learns addresses, floods what it does not know, and carries any number of virtual machines. It is one
//! thread that never waits for a port. A frame is copied twice, both times by the kernel: into the switch and out of
//! it. Each port has a bounded queue; a port that is too slow loses its own frames and nobody else's.
//!
//! Machines that may read each other's memory ([`crate::direct`]) ask the switch to connect them: it knows which process
//! has a port at which address.
//!
//! It does not speak spanning tree, does not look into VLAN tags, and forwards no frame addressed to the link itself.
//!
//! # Trust
//!
//! The socket file has mode 0600: whoever connects runs as the user who started the switch, and is trusted with that
//! user's traffic. What arrives is nevertheless checked in length and form, so that a broken port harms only itself.
//! Which addresses a *guest* may use is not the switch's business but its virtual machine monitor's.

mod client;
mod error;
mod operator;
mod port;
pub mod protocol;
mod server;
mod socket;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::event::Event;

pub use client::{SwitchLink, SwitchLinkOptions};
pub use error::{ConnectError, SwitchError};
pub use operator::Operator;
pub use server::Switch;
pub use stats::{PortSnapshot, Snapshot, Statistics};
pub use table::{Dropped, Limits, PortId, Table, Verdict};

/// MTU of a switch that is not told another: room for a RoCE path MTU of 4096 and a usual jumbo frame.
pub const DEFAULT_MTU: u16 = 9000;

/// How a switch is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Largest IP packet in bytes. Ports may have a smaller MTU, not a larger one.
    pub mtu: u16,
    /// Ports at one time.
    pub max_ports: usize,
    /// Bytes that wait for a port, beside those in the kernel's socket buffer, before frames to it are dropped.
    pub queue_bytes: usize,
    /// How long a connection may stay silent before it is hung up on.
    pub greeting_time: Duration,
    /// Bounds of the address table.
    pub addresses: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: DEFAULT_MTU,
            max_ports: 1024,
            queue_bytes: 4 << 20,
            greeting_time: Duration::from_secs(5),
            addresses: Limits::default(),
        }
    }
}

/// Runs a switch at `path` until `stop` (an eventfd, signalfd or pipe) becomes readable.
///
/// # Errors
///
/// See [`Switch::bind`] and [`Switch::run`].
pub fn run(path: &Path, options: Options, stop: impl AsFd) -> Result<Snapshot, SwitchError> {
    Switch::bind(path, options)?.run(stop)
}

/// A switch on a thread of this process. Dropping it stops the thread and removes the socket file.
#[derive(Debug)]
pub struct SwitchThread {
    stop: Event,
    statistics: Statistics,
    thread: Option<JoinHandle<Result<Snapshot, SwitchError>>>,
}

impl SwitchThread {
    /// Starts a switch at `path`. On return ports can connect.
    ///
    /// # Errors
    ///
    /// See [`Switch::bind`].
    pub fn spawn(path: &Path, options: Options) -> Result<Self, SwitchError> {
        let switch = Switch::bind(path, options)?;
        let statistics = switch.statistics();
        let stop = Event::new().map_err(SwitchError::Loop)?;
        let theirs = stop.try_clone().map_err(SwitchError::Loop)?;
        let thread = thread::Builder::new()
            .name("switch".into())
            .spawn(move || switch.run(theirs))
            .map_err(SwitchError::Loop)?;
        Ok(Self { stop, statistics, thread: Some(thread) })
    }

    /// The counters as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.statistics.snapshot()
    }
}

impl Drop for SwitchThread {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take()
            && !matches!(thread.join(), Ok(Ok(_)))
        {
            tracing::error!("Switch ended with an error");
        }
    }
}
