//! Virtio over fabrics in this process: names, and disks of a machine that are elsewhere.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use host_port::{HostPort, PortConfig};
use virtio::VirtioPci;
use virtio_fabric::Via;
use virtio_fabric::frontend::{Remote, RemoteError};
use virtio_fabric::initiator::Config;
use virtio_fabric::wire::Name;

use crate::config::{FabricDiskConfig, FabricUrl, NetConfig, Scheme};
use crate::error::{Error, Result};
use crate::nic::open_ports;

/// Memory for what an initiator has under way by RDMA.
const INITIATOR_ARENA: u64 = 128 << 20;
/// Memory for what a target has under way by RDMA, for all its initiators.
pub const TARGET_ARENA: u64 = 1 << 30;

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

/// A port of this process, for RDMA.
///
/// # Errors
///
/// When there is none or it lacks an address, or its link cannot be opened.
pub fn open_port(net: Option<&NetConfig>, arena: u64) -> Result<Box<HostPort>> {
    let needed = "RDMA leaves by a port of its own: give link=switch:PATH (or udp:…, tap:…) and ip=ADDRESS";
    let net = net.ok_or_else(|| Error::Usage(needed.to_owned()))?;
    let ip = net.ip.ok_or_else(|| Error::Usage(needed.to_owned()))?;
    let ports = open_ports(std::slice::from_ref(net))?;
    let port = ports.first().ok_or_else(|| Error::Usage(needed.to_owned()))?;
    let direct = port.shares_memory_at().map(Into::into);
    let config = PortConfig { mac: port.mac(), ip, arena, direct };
    HostPort::new(&config, port.link().clone())
        .map(Box::new)
        .map_err(|e| Error::io("open a port for RDMA", e))
}

/// How the target of `url` is reached.
///
/// # Errors
///
/// See [`open_port`].
pub fn via(url: &FabricUrl, net: Option<&NetConfig>) -> Result<Via> {
    Ok(match url.scheme {
        Scheme::Tcp => Via::Tcp,
        Scheme::Rdma => Via::Rdma(open_port(net, INITIATOR_ARENA)?),
    })
}

/// How this process connects to a device.
///
/// # Errors
///
/// See [`initiator_name`].
pub fn client_config(url: &FabricUrl, queues: u16, loss_timeout: Duration) -> Result<Config> {
    let usual = Config::default();
    Ok(Config {
        initiator: initiator_name()?,
        target: url.device.clone(),
        queues,
        loss_timeout,
        // A target that is merely slow is no reason to fail a request that would have waited for one that is lost.
        command_timeout: usual.command_timeout.max(loss_timeout),
        ..usual
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
    let via = via(&url, config.net().as_ref())?;
    Remote::connect(client, via, url.addresses()?).map(Arc::new).map_err(|error| match error {
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
