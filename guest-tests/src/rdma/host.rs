//! An RDMA device of the host, for guests that are mirrored onto it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Modules that a device made of software takes. The last one is looked for by name only when a device is made.
const MODULES: [&str; 4] = ["dummy", "ib_uverbs", "rdma_rxe", "crc32_generic"];
/// Network interface of the device that is made.
const INTERFACE: &str = "mirror0";
/// Its address, in the guests' network but none of theirs.
const ADDRESS: &str = "10.0.0.250/24";

/// How long users of a device may take to let go of one that is removed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// A RoCE device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRdma {
    /// Its name.
    pub name: String,
    /// Its network interface.
    pub interface: String,
}

impl HostRdma {
    /// Makes a device in software (rdma_rxe over an interface without a wire), or finds the one made before.
    ///
    /// # Errors
    ///
    /// What `ip` or `rdma` complained of.
    pub fn make() -> Result<Self> {
        let device = Self { name: "rxe_mirror".to_owned(), interface: INTERFACE.to_owned() };
        if !Path::new("/sys/class/net").join(INTERFACE).exists() {
            command("modprobe", &[&["--all"], &MODULES[..]].concat())?;
            command("ip", &["link", "add", INTERFACE, "type", "dummy"])?;
            command("ip", &["address", "add", ADDRESS, "dev", INTERFACE])?;
            command("ip", &["link", "set", INTERFACE, "up"])?;
        }
        if !device.entry().exists() {
            command("rdma", &["link", "add", &device.name, "type", "rxe", "netdev", INTERFACE])?;
        }
        Ok(device)
    }

    fn entry(&self) -> PathBuf {
        Path::new("/sys/class/infiniband").join(&self.name)
    }

    /// Takes the device off the host. Returns once it is gone, which is when nobody has it open any more.
    ///
    /// # Errors
    ///
    /// When `rdma` fails, or it is not gone after a minute.
    pub fn remove(&self) -> Result<()> {
        let mut removal =
            Command::new("rdma").args(["link", "delete", &self.name]).spawn().context("Cannot run rdma")?;
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        loop {
            match removal.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("`rdma link delete {}` ended with {status}", self.name),
                // It cannot be called off: the kernel waits for whoever has the device open.
                None => ensure!(Instant::now() < deadline, "{} is still in use", self.name),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Objects of one kind (`qp`, `cq`, `mr`, `pd` and so on) that processes have on the device.
    ///
    /// # Errors
    ///
    /// When `rdma` fails.
    pub fn objects(&self, kind: &str) -> Result<Vec<HostObject>> {
        let text = command("rdma", &["--json", "resource", "show", kind])?;
        let all: Vec<HostObject> =
            serde_json::from_str(&text).with_context(|| format!("`rdma` printed {text}"))?;
        // What the kernel has for itself has no process.
        Ok(all.into_iter().filter(|object| object.ifname == self.name && object.pid.is_some()).collect())
    }

    /// How much the device has counted under a name.
    ///
    /// # Errors
    ///
    /// When it does not count that.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let path = self.entry().join("ports/1/hw_counters").join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("{} holds {text}", path.display()))
    }

    /// Addresses of the interface.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn addresses(&self) -> Result<Vec<String>> {
        let text = command("ip", &["-o", "address", "show", "dev", &self.interface])?;
        Ok(text.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect())
    }
}

/// An object of a process on a device, as `rdma resource show` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HostObject {
    /// Name of the device.
    ifname: String,
    /// The thread that made it.
    pid: Option<u32>,
}

impl HostObject {
    /// Whether a thread of that process made it.
    pub fn is_of(&self, process: u32) -> bool {
        self.pid.is_some_and(|pid| Path::new(&format!("/proc/{process}/task/{pid}")).exists())
    }
}

/// Runs a command of the host that has to succeed and gives its standard output.
fn command(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("Cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "`{program} {}` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_rdma_prints_them() {
        let text = r#"[{"ifindex":0,"ifname":"rxe0","port":1,"lqpn":17,"type":"RC","state":"RTS","pid":1,"comm":"vcpu0"},
                       {"ifindex":0,"ifname":"rxe0","port":1,"lqpn":1,"type":"GSI","state":"RTS","comm":"ib_core"}]"#;
        let objects: Vec<HostObject> = serde_json::from_str(text).unwrap();
        assert_eq!(objects.iter().map(|object| object.pid).collect::<Vec<_>>(), [Some(1), None]);
        assert!(objects[0].is_of(1) && !objects[0].is_of(2) && !objects[1].is_of(1));
    }
}
