//! `--net link=switch:/run/lab.sock,mac=52:54:00:00:00:01,rdma=on`

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use device_model::net::MacAddr;
use host_io::impair::Impairment;
use host_io::port::Backend;
use serde::Deserialize;

use super::key_value::Keyed;
use super::values::{from_text, on_off, optional_from_text};

/// What carries verbs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// The RoCE v2 engine, over the port.
    #[default]
    Engine,
    /// A host device that the objects of the guest's processes are mirrored onto.
    Host,
}

/// Whether the thread of a NIC polls for the sake of busy programs, which then post without leaving the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollingMode {
    /// While there are processors to spare.
    Auto,
    /// Also if others want the processor.
    On,
    /// Never.
    #[default]
    Off,
}

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
    /// What carries verbs out.
    #[serde(default)]
    pub provider: ProviderKind,
    /// The host device, with [`ProviderKind::Host`].
    pub device: Option<String>,
    /// Whether RDMA with machines on the same switch may go by memory that both processes map, without frames. Then this
    /// guest's memory can be read by their processes. Never with a capture or an impairment, which are about frames.
    #[serde(default = "on", deserialize_with = "on_off")]
    pub direct: bool,
    /// Whether the thread polls.
    #[serde(default)]
    pub polling: PollingMode,
    /// The host device by which RDMA with machines of other hosts goes that have the same key. Then this guest's memory can
    /// be read by their monitors.
    pub tunnel: Option<String>,
    /// File with the key.
    #[serde(rename = "tunnel-key")]
    pub tunnel_key: Option<PathBuf>,
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

impl NetConfig {
    /// A slot with all the defaults but what it is plugged into.
    pub fn plugged_into(link: Backend) -> Self {
        Self {
            id: None,
            mac: None,
            link,
            mtu: None,
            rdma: true,
            provider: ProviderKind::Engine,
            device: None,
            direct: true,
            polling: PollingMode::default(),
            tunnel: None,
            tunnel_key: None,
            capture: None,
            ip: None,
            impair: None,
        }
    }

    /// The host device that the slot mirrors onto, and the addresses its guest may have there.
    ///
    /// # Errors
    ///
    /// Options that do not go together; the text says what to give.
    pub fn mirrored(&self) -> Result<Option<(&str, IpAddr)>, String> {
        match (self.provider, &self.device, self.ip) {
            (ProviderKind::Engine, None, _) => Ok(None),
            (ProviderKind::Engine, Some(_), _) => Err("device= goes with provider=host".to_owned()),
            (ProviderKind::Host, ..) if !self.rdma => Err("provider= goes with rdma=on".to_owned()),
            (ProviderKind::Host, ..) if !cfg!(feature = "mirror") => {
                Err("provider=host: this verbena was built without \
                 it, build it with `cargo build --release --package vmm --features mirror`"
                    .to_owned())
            }
            (ProviderKind::Host, None, _) => {
                Err("provider=host needs device=NAME, one of those that `rdma link` shows".to_owned())
            }
            (ProviderKind::Host, Some(_), None) => {
                Err("provider=host needs ip=ADDRESS, the guest's address: the host \
                 device's interface gets it, and must not get whatever a guest may choose"
                    .to_owned())
            }
            (ProviderKind::Host, Some(device), Some(address)) => Ok(Some((device, address))),
        }
    }

    /// The host device that tunnels to other machines go by, and the file with their key.
    ///
    /// # Errors
    ///
    /// Options that do not go together; the text says what to give.
    pub fn tunnelled(&self) -> Result<Option<(&str, &Path)>, String> {
        match (&self.tunnel, &self.tunnel_key) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err("tunnel-key= goes with tunnel=DEVICE".to_owned()),
            (Some(_), _) if !self.rdma => Err("tunnel= goes with rdma=on".to_owned()),
            (Some(_), _) if self.provider == ProviderKind::Host => {
                Err("tunnel= goes with provider=engine: with provider=host the device itself is the guest's"
                    .to_owned())
            }
            (Some(_), _) if !cfg!(feature = "mirror") => Err("tunnel=: this verbena was built without \
                 it, build it with `cargo build --release --package vmm --features mirror`"
                .to_owned()),
            (Some(_), None) => {
                Err("tunnel= needs tunnel-key=FILE: machines with the same key may read each \
                 other's memory (`head -c 32 /dev/urandom > FILE` makes one)"
                    .to_owned())
            }
            (Some(device), Some(key)) => Ok(Some((device, key))),
        }
    }

    /// The switch with whose other machines this one shares its memory.
    pub fn shares_memory_at(&self) -> Option<&Path> {
        let frames_matter = self.capture.is_some() || self.impair.is_some();
        match &self.link {
            Backend::Switch(path) if self.rdma && self.direct && self.tunnel.is_none() && !frames_matter => {
                Some(path)
            }
            _ => None,
        }
    }
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
    fn memory_is_shared_with_machines_on_a_switch_unless_that_is_off_or_frames_are_looked_at() {
        let shares = |text: &str| parse::<NetConfig>(text).unwrap().shares_memory_at().map(Path::to_owned);
        assert_eq!(shares("switch:/s"), Some(PathBuf::from("/s")));
        for off in ["switch:/s,direct=off", "switch:/s,rdma=off", "switch:/s,capture=/c", "loopback"] {
            assert_eq!(shares(off), None, "{off}");
        }
        assert_eq!(shares("switch:/s,impair=loss:1%"), None);
    }

    #[test]
    fn a_tunnel_needs_a_device_and_a_key_and_takes_the_place_of_shared_memory() {
        let config = |text: &str| parse::<NetConfig>(text).unwrap();
        let tunnelled = |text: &str| config(text).tunnelled().map(|found| found.is_some());
        assert_eq!(tunnelled("link=none"), Ok(false));
        for text in ["tunnel=rxe0", "tunnel-key=/k", "tunnel=rxe0,tunnel-key=/k,rdma=off"] {
            assert!(tunnelled(&format!("link=none,{text}")).is_err(), "{text}");
        }
        assert!(
            tunnelled("link=none,tunnel=rxe0,tunnel-key=/k,provider=host,device=rxe0,ip=10.0.0.1").is_err()
        );
        let whole = "switch:/s,tunnel=rxe0,tunnel-key=/k";
        assert_eq!(config(whole).shares_memory_at(), None);
        if cfg!(feature = "mirror") {
            assert_eq!(tunnelled(whole), Ok(true));
        } else {
            assert!(tunnelled(whole).unwrap_err().contains("--features mirror"));
        }
    }

    #[test]
    fn rdma_is_on_unless_switched_off() {
        let config: NetConfig = parse("switch:/s,mac=52:54:00:00:00:01").unwrap();
        assert!(config.rdma);
        assert_eq!(config.mac, Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])));
        assert!(!parse::<NetConfig>("link=none,rdma=off").unwrap().rdma);
    }

    #[test]
    fn polling_is_auto_on_or_off() {
        let polling = |text: &str| parse::<NetConfig>(text).map(|config| config.polling);
        assert_eq!(polling("loopback"), Ok(PollingMode::Off));
        assert_eq!(polling("loopback,polling=auto"), Ok(PollingMode::Auto));
        assert_eq!(polling("loopback,polling=on"), Ok(PollingMode::On));
        assert_eq!(polling("loopback,polling=off"), Ok(PollingMode::Off));
        assert!(polling("loopback,polling=yes").is_err());
    }

    #[test]
    fn a_host_device_needs_its_name_and_the_guests_address() {
        let mirrored = |text: &str| {
            let config: NetConfig = parse(text).unwrap();
            config.mirrored().map(|found| found.map(|(device, ip)| format!("{device} {ip}")))
        };
        assert_eq!(mirrored("link=none"), Ok(None));
        assert!(mirrored("link=none,device=rxe0").is_err());
        for text in
            ["provider=host", "provider=host,device=rxe0", "provider=host,device=r,ip=10.0.0.1,rdma=off"]
        {
            assert!(mirrored(&format!("link=none,{text}")).is_err(), "{text}");
        }
        let whole = mirrored("link=none,provider=host,device=rxe0,ip=10.0.0.1");
        if cfg!(feature = "mirror") {
            assert_eq!(whole, Ok(Some("rxe0 10.0.0.1".to_owned())));
        } else {
            assert!(whole.unwrap_err().contains("--features mirror"));
        }
    }
}
