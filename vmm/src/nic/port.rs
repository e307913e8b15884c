//! The host side of a NIC slot: its link and what stands in front of it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use device_model::net::{Link, MacAddr};
use host_io::capture::CaptureFile;
use host_io::guard::AddressPolicy;
use host_io::port::{Options, PortSpec, open_with};
use host_io::rdma_filter::RdmaFilter;

use crate::config::{NetConfig, PollingMode};
use crate::error::{Error, Result};

/// A network port. It outlives resets of the machine, so that its capture goes on.
pub struct NicPort {
    /// Name of the port, of its thread and in captures.
    pub(super) name: String,
    /// The guest's Ethernet address; the port lets no other pass.
    pub(super) mac: MacAddr,
    /// Where frames are received, and what the RDMA device sends by.
    pub(super) link: Arc<dyn Link>,
    /// What the network interface sends by.
    pub(super) nic_link: Arc<dyn Link>,
    /// What it is plugged into, for people.
    pub(super) backend: String,
    /// Whether the slot has an RDMA device.
    pub(super) rdma: bool,
    /// Whether its thread polls.
    pub(super) polling: PollingMode,
    /// The host device it is mirrored onto, and the guest's address there.
    pub(super) mirrored: Option<(String, IpAddr)>,
    /// How it gets channels to other machines, if it may.
    pub(super) direct: Option<Direct>,
    /// How it gets channels to machines of other hosts, if it may.
    pub(super) tunnel: Option<Tunnel>,
}

impl NicPort {
    /// The Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The link.
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// The switch by which memory is shared with other machines, if it may be.
    pub fn shares_memory_at(&self) -> Option<&std::path::Path> {
        self.direct.as_ref().map(|direct| direct.switch.as_path())
    }
}

/// What channels to other machines are made of.
pub(super) struct Direct {
    /// Socket of the switch.
    pub(super) switch: PathBuf,
    /// Addresses that the guest may send from; `None`: any.
    pub(super) addresses: Option<Vec<IpAddr>>,
}

/// What channels to machines of other hosts are made of.
pub(super) struct Tunnel {
    /// The host device.
    pub(super) device: String,
    /// File with the key.
    pub(super) key: PathBuf,
    /// Addresses that the guest may send from; `None`: any.
    pub(super) addresses: Option<Vec<IpAddr>>,
}

/// Opens the ports of all `nets`.
///
/// # Errors
///
/// When a link cannot be opened or a capture file cannot be made; the error names the cause and the remedy.
pub fn open_ports(nets: &[NetConfig]) -> Result<Vec<NicPort>> {
    nets.iter().enumerate().map(|(index, net)| open(index, net)).collect()
}

fn open(index: usize, net: &NetConfig) -> Result<NicPort> {
    let name = net.id.clone().unwrap_or_else(|| format!("net{index}"));
    let failed = |e: &dyn std::error::Error| Error::Resource(format!("Network port {name}: {}", chain(e)));
    let mac = net.mac.unwrap_or_else(|| local_mac(index));
    let policy = match net.ip {
        Some(address) => AddressPolicy::with_addresses(mac, vec![address]),
        None => AddressPolicy::mac_only(mac),
    };
    let mirrored = net.mirrored().map_err(Error::Usage)?.map(|(device, ip)| (device.to_owned(), ip));
    let capture = net
        .capture
        .as_ref()
        .map(|path| CaptureFile::create(path, None).map(Arc::new))
        .transpose()
        .map_err(|e| failed(&e))?;
    let addresses = policy.addresses().map(<[IpAddr]>::to_vec);
    let tunnelled = net.tunnelled().map_err(Error::Usage)?;
    let tunnel = tunnelled.map(|(device, key)| Tunnel {
        device: device.to_owned(),
        key: key.to_owned(),
        addresses: addresses.clone(),
    });
    let direct = net.shares_memory_at().map(|path| Direct { switch: path.into(), addresses });
    let options = Options { policy: Some(policy), impairment: net.impair, capture };
    let spec = PortSpec::from(net.link.clone()).with_mtu(net.mtu).with_name(&name);
    let link = open_with(&spec, options).map_err(|e| failed(&e))?.link;
    let nic_link = if net.rdma { Arc::new(RdmaFilter::new(link.clone())) } else { link.clone() };
    let (backend, rdma) = (net.link.to_string(), net.rdma);
    Ok(NicPort { mac, link, nic_link, backend, rdma, polling: net.polling, mirrored, direct, tunnel, name })
}

/// A locally administered address that no two running machines of one host share.
fn local_mac(index: usize) -> MacAddr {
    let mut hasher = DefaultHasher::new();
    (std::process::id(), index).hash(&mut hasher);
    let [a, b, c, d, e, ..] = hasher.finish().to_le_bytes();
    MacAddr([0x52, a, b, c, d, e])
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, e| format!("{text}: {e}"))
}
