//! What carries out a slot's verbs.

use std::os::fd::OwnedFd;

use host_io::direct::{Driver, DriverOptions};
use roce::{RoceConfig, RoceProvider};
use verbs::Provider;

use super::port::{NicPort, Tunnel};
#[cfg(feature = "mirror")]
use crate::doctor::{Finding, Level, check_limits, check_locked};
use crate::error::{Error, Result};
use crate::machine::SlotBuilder;

/// A provider, and what else the I/O thread has to listen to for it.
pub(super) struct Made {
    pub(super) provider: Box<dyn Provider>,
    /// To be watched for edges.
    pub(super) wakeup: Option<OwnedFd>,
    /// Makes the channels to other machines.
    pub(super) channels: Option<Driver>,
}

/// Makes the provider that `port` asks for.
pub(super) fn make(slots: &SlotBuilder, port: &NicPort) -> Result<Made> {
    let engine = RoceProvider::new(RoceConfig::new(port.mac), slots.ram(), port.link.clone())
        .map_err(|e| Error::Usage(format!("Network port {} cannot carry RDMA: {e}", port.name)))?;
    match (&port.mirrored, &port.tunnel) {
        (Some((device, address)), _) => mirror(slots, port, engine, device, *address),
        (None, Some(how)) => tunnel(slots, port, engine, how),
        (None, None) => direct(slots, port, engine),
    }
}

/// The engine, with channels if the port may have them.
fn direct(slots: &SlotBuilder, port: &NicPort, engine: RoceProvider) -> Result<Made> {
    let Some(direct) = &port.direct else {
        return Ok(Made { provider: Box::new(engine), wakeup: None, channels: None });
    };
    let (driver, handle) = Driver::new(DriverOptions {
        switch: direct.switch.clone(),
        mac: port.mac,
        addresses: direct.addresses.clone(),
        ram: slots.ram_regions(),
    })
    .map_err(|e| Error::io(format!("make the channels of {}", port.name), e))?;
    let engine = engine.with_exchange(Box::new(handle));
    Ok(Made { provider: Box::new(engine), wakeup: None, channels: Some(driver) })
}

#[cfg(feature = "mirror")]
fn mirror(
    slots: &SlotBuilder,
    port: &NicPort,
    engine: RoceProvider,
    device: &str,
    address: std::net::IpAddr,
) -> Result<Made> {
    use mirror::host::{HostDevice, InterfaceAddresses};
    use mirror::{GidPolicy, MirrorProvider};
    use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

    let ram = slots.ram_regions();
    raise_lock_limit();
    warn_of(&check_limits(ram.iter().map(|region| region.len()).sum()));
    let host = HostDevice::open(device, ram)
        .map_err(|e| Error::Resource(format!("Network port {}: {e}", port.name)))?;
    let failed = |e| Error::io(format!("listen to the RDMA device {device}"), e);
    let wakeup = host.wakeup().map_err(failed)?;
    let addresses = InterfaceAddresses::new(host.interface()).map_err(failed)?;
    let policy = GidPolicy::new(&[address], port.mac);
    let provider = MirrorProvider::new(Box::new(engine), host, policy, Box::new(addresses));
    Ok(Made { provider: Box::new(provider), wakeup: Some(wakeup), channels: None })
}

/// The engine, with tunnels to machines of other hosts.
#[cfg(feature = "mirror")]
fn tunnel(slots: &SlotBuilder, port: &NicPort, engine: RoceProvider, how: &Tunnel) -> Result<Made> {
    use ::tunnel::call::Options;
    use ::tunnel::{Calls, Key};
    use mirror::host::TunnelHost;
    use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

    let secret = std::fs::read(&how.key).map_err(|e| Error::io(format!("read {}", how.key.display()), e))?;
    let key = Key::new(&secret).ok_or_else(|| {
        Error::Usage(format!("{} is shorter than {} bytes: no key", how.key.display(), Key::MIN))
    })?;
    let ram = slots.ram_regions();
    raise_lock_limit();
    warn_of(&[check_locked(ram.iter().map(|region| region.len()).sum())]);
    let host = TunnelHost::open(&how.device, ram)
        .map_err(|e| Error::Resource(format!("Network port {}: {e}", port.name)))?;
    let wakeup =
        host.wakeup().map_err(|e| Error::io(format!("listen to the RDMA device {}", how.device), e))?;
    let nonce = Box::new(|| {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map(|()| bytes).map_err(|e| std::io::Error::other(e.to_string()))
    });
    let addresses = how.addresses.clone();
    let calls = Calls::new(host, Options { mac: port.mac, addresses, key, nonce });
    let engine = engine.with_exchange(Box::new(calls));
    Ok(Made { provider: Box::new(engine), wakeup: Some(wakeup), channels: None })
}

/// Never called: the configuration was refused before.
#[cfg(not(feature = "mirror"))]
fn tunnel(_: &SlotBuilder, port: &NicPort, _: RoceProvider, how: &Tunnel) -> Result<Made> {
    let Tunnel { device, key, addresses } = how;
    Err(Error::Usage(format!(
        "Network port {}: this verbena has no tunnels by {device} with the key {} for {addresses:?}",
        port.name,
        key.display()
    )))
}

#[cfg(feature = "mirror")]
fn warn_of(limits: &[Finding]) {
    for Finding { subject, state, remedy, .. } in limits.iter().filter(|limit| limit.level != Level::Good) {
        tracing::warn!("{subject}: {state}. {remedy}");
    }
}

/// Lets this process lock as much memory as it may.
#[cfg(feature = "mirror")]
fn raise_lock_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let maximum = getrlimit(Resource::Memlock).maximum;
    if let Err(error) = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "The limit on locked memory stays as it is");
    }
}

/// Never called: the configuration was refused before.
#[cfg(not(feature = "mirror"))]
fn mirror(_: &SlotBuilder, port: &NicPort, _: RoceProvider, _: &str, _: std::net::IpAddr) -> Result<Made> {
    Err(Error::Usage(format!("Network port {}: this verbena cannot mirror", port.name)))
}
