//! `--net link=switch:/run/lab.sock,mac=52:54:00:00:00:01,rdma=on`

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use device_model::net::MacAddr;
use serde::Deserialize;

use super::key_value::Keyed;
use super::values::{from_text, on_off, optional_from_text};

/// A NIC slot: vmxnet3 as function 0 and, with `rdma`, pvrdma as function 1.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Name in logs and captures; `net0`, `net1`, … by default.
    pub id: Option<String>,
    /// Ethernet address; a random, locally administered one by default.
    #[serde(default, deserialize_with = "optional_from_text")]
    pub mac: Option<MacAddr>,
    /// What the port is plugged into.
    #[serde(default, deserialize_with = "from_text")]
    pub link: LinkConfig,
    /// Largest IP packet in bytes; what the link carries by default.
    pub mtu: Option<u16>,
    /// Whether the slot has an RDMA function.
    #[serde(default = "on", deserialize_with = "on_off")]
    pub rdma: bool,
    /// pcapng file that receives every frame of the port.
    pub capture: Option<PathBuf>,
    /// The only IP address the guest may send from; any by default.
    pub ip: Option<IpAddr>,
}

impl Keyed for NetConfig {
    const MAIN_KEY: &'static str = "link";
}

fn on() -> bool {
    true
}

/// What a port is plugged into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkConfig {
    /// Nothing: the link is down.
    #[default]
    None,
    /// A switch (`verbena switch`) by its socket: `switch:PATH`.
    Switch(PathBuf),
    /// A peer across an IP network: `udp:LOCAL:PORT/REMOTE:PORT`.
    Udp {
        /// Address to receive on.
        local: SocketAddr,
        /// Address to send to.
        remote: SocketAddr,
    },
    /// A tap interface by its name: `tap:NAME`.
    Tap(String),
}

impl FromStr for LinkConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "`{text}` is not a link; it is none, switch:PATH, udp:ADDR:PORT/ADDR:PORT (local/remote) or tap:NAME"
            )
        };
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("switch", path)) if !path.is_empty() => Ok(Self::Switch(path.into())),
            Some(("tap", name)) if !name.is_empty() => Ok(Self::Tap(name.to_owned())),
            Some(("udp", pair)) => {
                let (local, remote) = pair.split_once('/').ok_or_else(bad)?;
                let address = |text: &str| text.parse().map_err(|_| bad());
                Ok(Self::Udp { local: address(local)?, remote: address(remote)? })
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_value::parse;
    use super::*;

    #[test]
    fn links_are_read() {
        let link = |text: &str| text.parse::<LinkConfig>();
        assert_eq!(link("none"), Ok(LinkConfig::None));
        assert_eq!(link("switch:/run/a.sock"), Ok(LinkConfig::Switch("/run/a.sock".into())));
        assert_eq!(link("tap:tap0"), Ok(LinkConfig::Tap("tap0".to_owned())));
        let udp = LinkConfig::Udp {
            local: "0.0.0.0:7000".parse().unwrap(),
            remote: "[fe80::1]:7001".parse().unwrap(),
        };
        assert_eq!(link("udp:0.0.0.0:7000/[fe80::1]:7001"), Ok(udp));
        for text in ["", "tap", "tap:", "udp:1.2.3.4:5", "udp:a/b", "bridge:br0"] {
            assert!(link(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rdma_is_on_unless_switched_off() {
        let config: NetConfig = parse("switch:/s,mac=52:54:00:00:00:01").unwrap();
        assert!(config.rdma);
        assert_eq!(config.mac, Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])));
        assert!(!parse::<NetConfig>("link=none,rdma=off").unwrap().rdma);
    }
}
