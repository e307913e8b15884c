//! An RDMA device of the host, for guests that are mirrored onto it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Modules that a device made of software takes. The last one is looked for by name only when a device is made.
const MODULES: [&str; 4] = ["dummy", "ib_uverbs", "rdma_rxe", "crc32_generic"];
/// Network interface of the device that is made.
const INTERFACE: &str = "mirror0";
/// Its address, in the guests' network but none of theirs.
const ADDRESS: &str = "10.0.0.250/24";

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
        if !Path::new("/sys/class/infiniband").join(&device.name).exists() {
            command("modprobe", &[&["--all"], &MODULES[..]].concat())?;
            command("ip", &["link", "add", INTERFACE, "type", "dummy"])?;
            command("ip", &["address", "add", ADDRESS, "dev", INTERFACE])?;
            command("ip", &["link", "set", INTERFACE, "up"])?;
            command("rdma", &["link", "add", &device.name, "type", "rxe", "netdev", INTERFACE])?;
        }
        Ok(device)
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
