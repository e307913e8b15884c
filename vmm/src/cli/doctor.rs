//! `verbena doctor`

use std::path::PathBuf;

use vmm_api::Client;

use super::inspect::explain;
use crate::config::values::ByteSize;
use crate::doctor::{
    Finding, Level, check_device, check_disk, check_host, check_machine, check_modules, check_root,
};
use crate::error::{Exit, Result};

const STATUS: &str = "\
Exit status is 0 when nothing is BAD, 1 otherwise. What is marked `note` matters for some uses only.";

/// Check host, guest files and a running machine for what usually is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = STATUS)]
pub(super) struct Command {
    /// Module tree of a guest's kernel (…/lib/modules/RELEASE) to check for drivers
    #[arg(long, value_name = "DIR")]
    modules: Vec<PathBuf>,

    /// Root directory of a guest (a mounted image, an unpacked initramfs) to check for drivers and libraries
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,

    /// Raw disk image of a guest, with an ext4 file system, to check likewise; nothing is mounted and no privilege needed
    #[arg(long, value_name = "IMAGE")]
    disk: Vec<PathBuf>,

    /// RDMA device of this host to check for provider=host and tunnel=
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,

    /// Memory of the guest that would use it
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "device")]
    memory: ByteSize,

    /// API socket of a running machine to check
    #[arg(long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
}

impl Command {
    pub(super) fn run(self) -> Result<Exit> {
        let mut findings = check_host();
        findings.extend(self.modules.iter().flat_map(|tree| check_modules(tree)));
        findings.extend(self.root.iter().flat_map(|root| check_root(root)));
        findings.extend(self.disk.iter().flat_map(|image| check_disk(image)));
        findings.extend(self.device.iter().flat_map(|device| check_device(device, self.memory.0)));
        if let Some(path) = &self.api_socket {
            let report =
                Client::connect(path).and_then(|mut client| client.rdma_show(None)).map_err(explain)?;
            findings.extend(check_machine(&report));
        }
        let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
        super::write_out(&(lines.join("\n") + "\n"))?;
        Ok(verdict(&findings))
    }
}

fn verdict(findings: &[Finding]) -> Exit {
    let bad = findings.iter().any(|finding| finding.level == Level::Problem);
    if bad { Exit::Failure } else { Exit::PoweredOff }
}
