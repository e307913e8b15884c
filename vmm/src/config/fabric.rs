//! `--fabric-disk target=tcp://host/disk0,queues=2`, `--fabric-disk target=rdma://10.0.0.9/disk0,link=switch:/s,ip=10.0.0.8`, `--export name=disk0,path=disk.img`: virtio over fabrics.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use device_model::net::MacAddr;
use host_io::port::Backend;
use serde::Deserialize;
use virtio_fabric::wire::{Name, PORT};

use super::key_value::Keyed;
use super::net::NetConfig;
use super::values::{from_text, on_off, optional_from_text};
use crate::error::{Error, Result};

/// What carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// TCP of this host.
    Tcp,
    /// RDMA, from a port of this process's own.
    Rdma,
}

impl Scheme {
    const ALL: [(Self, &'static str); 2] = [(Self::Tcp, "tcp://"), (Self::Rdma, "rdma://")];
}

/// Where a target is, and which of its devices is meant: `tcp://HOST[:PORT][/NAME]`, or `rdma://` and an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricUrl {
    /// How it is reached.
    pub scheme: Scheme,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The device; empty if none is named.
    pub device: Name,
}

impl FabricUrl {
    /// The addresses of the host.
    ///
    /// # Errors
    ///
    /// When there is no such host.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let addresses = (self.host.as_str(), self.port).to_socket_addrs();
        addresses
            .map(Iterator::collect)
            .map_err(|e| Error::io(format!("find the address of {}", self.host), e))
    }

    /// The same, if it names a device.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if it does not.
    pub fn with_device(self) -> Result<Self> {
        if self.device.as_str().is_empty() {
            return Err(Error::Usage(format!(
                "{self} names no device: add one, as in {self}/disk0; `verbena fabric list {self}` shows what there is"
            )));
        }
        Ok(self)
    }
}

impl FromStr for FabricUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("`{text}` is not tcp://HOST[:PORT][/NAME] or rdma://…: {why}");
        let found = Scheme::ALL.iter().find_map(|(scheme, head)| Some((*scheme, text.strip_prefix(head)?)));
        let (scheme, rest) = found.ok_or_else(|| bad("it does not begin with tcp:// or rdma://"))?;
        let (authority, device) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| bad("the port is no number from 0 to 65535"))?)
            }
            _ => (authority, PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        if scheme == Scheme::Rdma && host.parse::<IpAddr>().is_err() {
            return Err(bad("names are not looked up there: give an IP address"));
        }
        let device = Name::new(device).map_err(|error| bad(&error.to_string()))?;
        Ok(Self { scheme, host: host.to_owned(), port, device })
    }
}

impl fmt::Display for FabricUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port, device } = self;
        f.write_str(if *scheme == Scheme::Tcp { "tcp" } else { "rdma" })?;
        if host.contains(':') {
            write!(f, "://[{host}]:{port}")?
        } else {
            write!(f, "://{host}:{port}")?
        }
        if device.as_str().is_empty() { Ok(()) } else { write!(f, "/{}", device.as_str()) }
    }
}

/// A disk at a target.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricDiskConfig {
    /// Which.
    #[serde(deserialize_with = "from_text")]
    pub target: FabricUrl,
    /// Of a target that is reached by RDMA: what the port of this process is plugged into.
    #[serde(default, deserialize_with = "optional_from_text")]
    pub link: Option<Backend>,
    /// The port's Ethernet address; a random, locally administered one by default.
    #[serde(default, deserialize_with = "optional_from_text")]
    pub mac: Option<MacAddr>,
    /// The port's IP address.
    pub ip: Option<IpAddr>,
    /// Queues, as far as the target has them; one for each CPU by default.
    pub queues: Option<u16>,
    /// Seconds that requests wait for a target that is lost before they fail.
    #[serde(default = "ten_minutes")]
    pub timeout: u64,
}

impl Keyed for FabricDiskConfig {
    const MAIN_KEY: &'static str = "target";
}

impl FabricDiskConfig {
    /// The port by which the target is reached, if that is by RDMA.
    pub fn net(&self) -> Option<NetConfig> {
        self.link.clone().map(|link| NetConfig {
            mac: self.mac,
            ip: self.ip,
            ..NetConfig::plugged_into(link)
        })
    }
}

fn ten_minutes() -> u64 {
    600
}

/// What a target exports under a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// The name.
    pub name: String,
    /// What kind of device it is.
    #[serde(default)]
    pub device: ExportKind,
    /// Of a disk: raw image file or block device.
    pub path: Option<PathBuf>,
    /// Of a disk: whether writes are refused.
    #[serde(default, deserialize_with = "on_off")]
    pub readonly: bool,
    /// Of a disk: queues that initiators may use.
    #[serde(default = "four")]
    pub queues: u16,
    /// Of a disk: what it answers when asked who it is, up to 20 bytes; the name by default.
    pub id: Option<String>,
}

/// Kinds of exported devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportKind {
    /// A disk.
    #[default]
    Disk,
    /// Random numbers.
    Rng,
}

impl Keyed for ExportConfig {
    const MAIN_KEY: &'static str = "name";
}

fn four() -> u16 {
    4
}

#[cfg(test)]
mod tests {
    use super::super::key_value::parse;
    use super::*;

    #[test]
    fn urls_are_read_and_shown() {
        for (text, shown) in [
            ("tcp://host", "tcp://host:8549"),
            ("tcp://10.0.0.1:99/a/b", "tcp://10.0.0.1:99/a/b"),
            ("tcp://[::1]/disk0", "tcp://[::1]:8549/disk0"),
            ("tcp://[::1]:7", "tcp://[::1]:7"),
            ("rdma://10.0.0.1/disk0", "rdma://10.0.0.1:8549/disk0"),
        ] {
            let url: FabricUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url));
        }
        for text in [
            "host",
            "rdma://host/x",
            "tcp://",
            "tcp://:5",
            "tcp://host:port",
            "tcp://host/..",
            "tcp://host/a\n",
        ] {
            assert!(text.parse::<FabricUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn disks_and_exports_have_defaults() {
        let disk: FabricDiskConfig = parse("tcp://host/disk0").unwrap();
        assert_eq!((disk.queues, disk.timeout, disk.net()), (None, 600, None));
        let disk: FabricDiskConfig = parse("rdma://10.0.0.9/d,link=switch:/s,ip=10.0.0.8").unwrap();
        let net = disk.net().unwrap();
        assert_eq!((net.ip, net.shares_memory_at().is_some()), (disk.ip, true));
        let export: ExportConfig = parse("disk0,path=a.img,readonly").unwrap();
        assert!(export.readonly && export.queues == 4 && export.device == ExportKind::Disk);
        assert_eq!(parse::<ExportConfig>("rng0,device=rng").unwrap().device, ExportKind::Rng);
    }
}
