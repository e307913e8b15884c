//! A device of a target as a virtio device of this machine: what a stock driver puts into its queues is carried there.
//!
//! Knows no device type but for two things: how a block device says that a request failed, and where it says how many
//! queues it has.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device_model::guest_warn;
use virtio::{Buffer, Malformed, Segments, VirtioDevice};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_MQ, VIRTIO_BLK_S_IOERR};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::{VIRTIO_ID_BLOCK, VIRTIO_ID_RNG};

use crate::initiator::{Config, Filled, Output, Token};
use crate::wire::Status;
use crate::{Client, Via};

/// Features of device types; those of rings and transports are between driver and this machine. Configuration that a
/// driver writes is not carried.
const CARRIED: u64 = ((1 << 24) - 1) & !(1 << VIRTIO_BLK_F_CONFIG_WCE);
/// Where the configuration of a block device has its number of queues.
const BLOCK_QUEUES: std::ops::Range<usize> = 34..36;

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The target says no, or something that makes no sense.
    #[error("The target refuses {name}: {status}", status = explain(*.status))]
    Refused {
        /// The device's name.
        name: String,
        /// What it says.
        status: Status,
    },
    /// Nobody answers.
    #[error("No target answers at {addresses:?}: {why}. Is `verbena target` running there?")]
    Unreachable {
        /// Where.
        addresses: Vec<SocketAddr>,
        /// What the host says.
        why: String,
    },
    /// A type of device that this machine would not know how to offer.
    #[error("The target's device is of type {0}; only block devices (2) and entropy (4) can be carried")]
    Type(u32),
    /// The host refused.
    #[error("Failed to wait for the target")]
    Host(#[from] io::Error),
}

/// A device at a target.
///
/// Its descriptor is readable when [`Remote::run`] has something to do.
#[derive(Debug)]
pub struct Remote {
    state: Mutex<State>,
    poll: OwnedFd,
    name: String,
    id: u32,
    features: u64,
    queue_sizes: Vec<u16>,
}

struct State {
    client: Client,
    pending: BTreeMap<Token, Pending>,
    config: Vec<u8>,
    /// What the driver has accepted, of what is carried.
    accepted: u64,
    dead: bool,
}

/// A buffer that is at the target.
struct Pending {
    writable: Segments,
    token: virtio::Token,
}

impl Remote {
    /// Connects, as long as `config` says, and finds out what the device is.
    ///
    /// # Errors
    ///
    /// [`RemoteError`].
    pub fn connect(config: Config, via: Via, addresses: Vec<SocketAddr>) -> Result<Self, RemoteError> {
        let name = config.target.as_str().to_owned();
        let config =
            Config { driver_features: CARRIED | 1 << VIRTIO_F_VERSION_1, repeatable: true, ..config };
        let mut client = Client::new(config, via, addresses.clone())?;
        let poll = client.as_fd().try_clone_to_owned()?;
        let mut space = Vec::new();
        let (id, features) = loop {
            match client.event() {
                Some(Output::Config(config)) => space = config,
                Some(Output::Ready { device, features, .. }) => break (device, features),
                Some(Output::Closed(Status::Stale)) => {
                    let why = client.trouble().unwrap_or("it is silent").to_owned();
                    return Err(RemoteError::Unreachable { addresses, why });
                }
                Some(Output::Closed(status)) => return Err(RemoteError::Refused { name, status }),
                Some(_) => {}
                None => {
                    client.wait(Duration::from_secs(1))?;
                    client.run()?;
                }
            }
        };
        if ![VIRTIO_ID_BLOCK, VIRTIO_ID_RNG].contains(&id) {
            return Err(RemoteError::Type(id));
        }
        // A ring has a power of two entries.
        let queue_sizes: Vec<u16> =
            client.queue_sizes().iter().map(|size| 1 << size.checked_ilog2().unwrap_or(0)).collect();
        let state =
            State { client, pending: BTreeMap::new(), config: Vec::new(), accepted: features, dead: false };
        let features = features & CARRIED;
        let remote = Self { state: Mutex::new(state), poll, name, id, features, queue_sizes };
        remote.lock().config = remote.adapted(space);
        Ok(remote)
    }

    /// Does what there is to do; whether the driver is to be told of another configuration.
    pub fn run(&self) -> bool {
        let mut state = self.lock();
        if let Err(error) = state.client.run() {
            tracing::error!(name = self.name, %error, "Failed to look for messages of a target");
        }
        self.collect(&mut state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Valid between any two statements, so good even after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has happened; whether the configuration is another.
    fn collect(&self, state: &mut State) -> bool {
        let mut changed = false;
        while let Some(event) = state.client.event() {
            match event {
                Output::Completed(token, result) => {
                    if let Some(pending) = state.pending.remove(&token) {
                        self.complete(pending, result);
                    }
                }
                Output::Config(config) => {
                    state.config = self.adapted(config);
                    changed = true;
                }
                Output::Lost => {
                    let why = state.client.trouble().unwrap_or("it is silent");
                    tracing::warn!(name = self.name, why, "Target is lost; requests wait until it is back");
                }
                Output::Resumed => tracing::info!(name = self.name, "Target is back"),
                Output::Draining => tracing::info!(name = self.name, "Target is about to go; requests wait"),
                Output::Closed(status) => {
                    state.dead = true;
                    let why = explain(status);
                    tracing::error!(
                        name = self.name,
                        why,
                        "Target is given up; all requests fail from now on"
                    );
                }
                _ => {}
            }
        }
        changed
    }

    fn complete(&self, pending: Pending, result: Result<Filled, Status>) {
        let Pending { writable, token } = pending;
        let Filled { used, data, tail } = match result {
            Ok(filled) => filled,
            Err(status) => {
                guest_warn!(name = self.name, ?status, "A request failed at the target");
                return self.fail(writable, token);
            }
        };
        let tail_at = writable.len().saturating_sub(tail.len() as u64);
        let written = writable.write_at(0, &data).and_then(|()| writable.write_at(tail_at, &tail));
        match written {
            Ok(()) => token.complete(used),
            Err(error) => {
                guest_warn!(%error, "A driver's buffer cannot be written");
                self.fail(writable, token);
            }
        }
    }

    /// Gives a buffer back in the way in which the device type says that it failed.
    fn fail(&self, mut writable: Segments, token: virtio::Token) {
        match writable.len().checked_sub(1) {
            Some(at) if self.id == VIRTIO_ID_BLOCK => {
                token.complete_with_status(0, writable.split_off(at), VIRTIO_BLK_S_IOERR as u8);
            }
            _ => token.complete(0),
        }
    }

    /// The configuration with the number of queues that there are here.
    fn adapted(&self, mut config: Vec<u8>) -> Vec<u8> {
        if self.id == VIRTIO_ID_BLOCK
            && let Some(queues) = config.get_mut(BLOCK_QUEUES)
        {
            queues.copy_from_slice(&(self.queue_sizes.len() as u16).to_le_bytes());
        }
        config
    }
}

impl AsFd for Remote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.lock().client.shutdown();
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("pending", &self.pending.len())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

impl VirtioDevice for Remote {
    fn id(&self) -> u16 {
        self.id as u16
    }

    fn class(&self) -> [u8; 3] {
        if self.id == VIRTIO_ID_BLOCK { [0x01, 0x80, 0x00] } else { [0x10, 0x80, 0x00] }
    }

    fn features(&self) -> u64 {
        let several = self.id != VIRTIO_ID_BLOCK || self.queue_sizes.len() > 1;
        if several { self.features } else { self.features & !(1 << VIRTIO_BLK_F_MQ) }
    }

    fn queue_sizes(&self) -> Vec<u16> {
        self.queue_sizes.clone()
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let state = self.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in data.iter_mut().zip(state.config.iter().skip(start)) {
            *to = *from;
        }
    }

    fn activate(&self, features: u64) {
        let mut state = self.lock();
        let accepted = features & CARRIED | 1 << VIRTIO_F_VERSION_1;
        if state.accepted != accepted {
            state.accepted = accepted;
            state.client.reset(accepted);
        }
    }

    fn handle(&self, queue: u16, buffer: Buffer) -> Result<(), Malformed> {
        let Buffer { readable, writable, token } = buffer;
        let mut state = self.lock();
        let total = readable.len() + writable.len();
        // Before memory is taken: a driver can name the same bytes many times over.
        if state.dead || total > state.client.max_xfer().into() {
            self.fail(writable, token);
            return Ok(());
        }
        let mut out = vec![0; readable.len() as usize];
        if let Err(error) = readable.read_at(0, &mut out) {
            guest_warn!(%error, "A driver's buffer cannot be read");
            self.fail(writable, token);
            return Ok(());
        }
        match state.client.submit(queue, out.into(), writable.len() as u32) {
            Ok(number) => {
                state.pending.insert(number, Pending { writable, token });
                state.client.settle();
            }
            Err(error) => {
                guest_warn!(%error, "A request is not carried to the target");
                self.fail(writable, token);
            }
        }
        Ok(())
    }

    fn quiesce(&self) {
        let mut state = self.lock();
        if !state.pending.is_empty() {
            state.pending.clear();
            let accepted = state.accepted;
            state.client.reset(accepted);
        }
    }
}

/// A status for people.
fn explain(status: Status) -> &'static str {
    match status {
        Status::NoTarget => "it exports no device of that name; `verbena fabric list` shows what there is",
        Status::NoDevice => "it has as many initiators as it takes, or is about to go",
        Status::AccessRejected => "it does not allow this",
        Status::Stale => "it was not back in time",
        Status::DeviceFeature => "the device is not the one it was, or lacks VIRTIO_F_VERSION_1",
        Status::Version => "it speaks another version of the protocol",
        Status::Tls => "it wants TLS, which is not supported",
        Status::Auth => "it wants authentication, which is not supported",
        _ => "it broke the protocol, or has an error of its own",
    }
}
