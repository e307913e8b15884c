//! `--net link=switch:/run/lab.sock,mac=52:54:00:00:00:01,rdma=on`

use std::net::IpAddr;
use std::path::PathBuf;

use device_model::net::MacAddr;
use host_io::impair::Impairment;
use host_io::port::Backend;
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
    #[serde(default = "unplugged", deserialize_with = "from_text")]
    pub link: Backend,
    /// Largest IP packet in bytes; what the link carries by default.
    pub mtu: Option<u16>,
    /// Whether the slot has an RDMA function.
    #[serde(default = "on", deserialize_with = "on_off")]
    pub rdma: bool,
    /// pcapng file that receives every frame of the port.
    pub capture: Option<PathBuf>,
    /// The only IP address the guest may send from, beside the link-local one of its MAC; any by default.
    pub ip: Option<IpAddr>,
    /// Makes the network bad, for instance `loss:1%/delay:10ms`.
    #[serde(default, deserialize_with = "optional_from_text")]
    pub impair: Option<Impairment>,
}

impl Keyed for NetConfig {
    const MAIN_KEY: &'static str = "link";
}

fn unplugged() -> Backend {
    Backend::Unplugged
}

fn on() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::super::key_value::parse;
    use super::*;

    #[test]
    fn rdma_is_on_unless_switched_off() {
        let config: NetConfig = parse("switch:/s,mac=52:54:00:00:00:01").unwrap();
        assert!(config.rdma);
        assert_eq!(config.mac, Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])));
        assert!(!parse::<NetConfig>("link=none,rdma=off").unwrap().rdma);
    }
}
