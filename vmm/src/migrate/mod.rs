//! Live migration: a running machine moves to another process, on this host or another one.
//!
//! | file | job |
//! |---|---|
//! | `wire` | sections of the stream |
//! | `source`, `target` | both ends as state machines, without I/O: who has the machine, whatever happens |
//! | `rounds` | when memory was copied often enough |
//! | `ram`, `copy` | pages that changed, and their way |
//! | `stream` | sockets |
//! | `outgoing`, `incoming` | the state machines with sockets and a machine at their hands |
//! | `board` | what is shared with the API |
//!
//! # Trust
//!
//! What comes over a stream may come from anyone. Sections are bounded and checked before anything is made of them, pages
//! are written to the machine's own memory only, and the state is restored as that of a snapshot is. Whoever can reach the
//! place where a machine is received can send one, and who can listen on the way sees its memory: `unix:` sockets belong to
//! one user, `tcp:` belongs on a network of friends.

mod address;
mod board;
mod copy;
mod incoming;
mod outgoing;
mod ram;
mod rounds;
mod source;
mod stream;
mod target;
mod wire;

#[cfg(test)]
mod never_two;

use std::sync::Arc;

use virtio::block::RawImage;

pub use address::{Address, ParseAddressError};
pub use board::Board;
pub use incoming::{Expected, Offer, Reception};
pub use outgoing::Migration;

use crate::config::VmConfig;
use crate::error::{Error, Result};
use crate::machine::{Controls, Events, HostSide};

/// A machine that can be moved away, with what belongs to it on this host.
pub struct Origin {
    controls: Arc<Controls>,
    events: Events,
    disks: Vec<Arc<RawImage>>,
    memory: u64,
    cpus: u8,
    /// Why it cannot be moved.
    obstacles: Vec<String>,
}

impl Origin {
    /// The machine of `config`.
    pub fn new(config: &VmConfig, host: &HostSide, controls: Arc<Controls>, events: Events) -> Self {
        Self {
            controls,
            events,
            disks: host.disks.clone(),
            memory: config.memory.size.0,
            cpus: config.cpus,
            obstacles: obstacles(config),
        }
    }

    /// The machine's controls.
    pub fn controls(&self) -> &Controls {
        &self.controls
    }
}

/// What keeps a machine where it is, by name.
fn obstacles(config: &VmConfig) -> Vec<String> {
    let mirrors = config.nets.iter().enumerate().filter_map(|(index, net)| {
        let (device, _) = net.mirrored().ok()??;
        let name = net.id.clone().unwrap_or_else(|| format!("net{index}"));
        Some(format!(
            "{name} is mirrored onto the host device {device}, which keeps the state of its connections"
        ))
    });
    let fabrics = config.fabric_disks.iter().map(|disk| {
        format!("the disk at {} has a session with its target, which cannot be moved", disk.target)
    });
    mirrors.chain(fabrics).collect()
}

/// Bytes that nobody can guess.
fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::Failure(format!("Failed to get random bytes: {e}")))?;
    Ok(bytes)
}
