//! Virtio over fabrics in this process: names, and disks of a machine that are elsewhere.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use virtio::VirtioPci;
use virtio_fabric::frontend::{Remote, RemoteError};
use virtio_fabric::initiator::Config;
use virtio_fabric::wire::Name;

use crate::config::{FabricDiskConfig, FabricUrl};
use crate::error::{Error, Result};

/// The name of this process as an initiator.
///
/// # Errors
///
/// When the host's name is not one.
pub fn initiator_name() -> Result<Name> {
    let host = rustix::system::uname();
    let name = format!("verbena/{}/{}", host.nodename().to_string_lossy(), std::process::id());
    Name::new(&name).map_err(|e| Error::Failure(format!("This host's name cannot be used: {e}")))
}

/// How this process connects to a device.
///
/// # Errors
///
/// See [`initiator_name`].
pub fn client_config(url: &FabricUrl, queues: u16, loss_timeout: Duration) -> Result<Config> {
    Ok(Config {
        initiator: initiator_name()?,
        target: url.device.clone(),
        queues,
        loss_timeout,
        ..Config::default()
    })
}

/// Connects to a disk of a machine with `cpus` CPUs.
///
/// # Errors
///
/// When the target cannot be reached or refuses.
pub fn open_disk(config: &FabricDiskConfig, cpus: u8) -> Result<Arc<Remote>> {
    let url = config.target.clone().with_device()?;
    let queues = config.queues.unwrap_or(cpus.into());
    if queues == 0 {
        return Err(Error::Usage("A disk needs a queue".to_owned()));
    }
    let client = client_config(&url, queues, Duration::from_secs(config.timeout))?;
    Remote::connect(client, url.addresses()?).map(Arc::new).map_err(|error| match error {
        RemoteError::Host(source) => Error::io("connect to a target", source),
        error => Error::Resource(error.to_string()),
    })
}

/// Lets a device do what there is to do when its target has said something.
pub struct RemoteRunner {
    /// The device.
    pub remote: Arc<Remote>,
    /// The same in the guest's eyes.
    pub device: Arc<VirtioPci>,
}

impl MutEventSubscriber for RemoteRunner {
    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::with_data_raw(self.remote.as_fd().as_raw_fd(), 0, EventSet::IN)) {
            tracing::error!(%error, "Failed to watch a target's connections");
        }
    }

    fn process(&mut self, _: Events, _: &mut EventOps) {
        if self.remote.run() {
            self.device.config_changed();
        }
    }
}
