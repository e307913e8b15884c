//! The lab: a machine with hardware virtualisation, emulated by QEMU on a machine without.
//!
//! Its root file system is this machine's, read over 9p, with a layer in memory on top: every program here runs there,
//! with a real `/dev/kvm`, and what it writes is lost unless it goes to a directory that was shared for writing.
//!
//! The lab is not a security boundary: it reads everything its user can read.

mod emulator;
mod host;
mod job;
mod qemu;

use std::path::PathBuf;
use std::time::Duration;

pub use host::LabHost;

use crate::cache::Cache;
use crate::error::Result;

/// Name of the variable that is set for every program that runs inside the lab.
pub const INSIDE_VARIABLE: &str = "VERBENA_INSIDE_LAB";

/// Whether this process runs inside the lab.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE_VARIABLE).is_some()
}

/// How a command is run in the lab.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// Memory of the lab host in MiB, out of which nested guests are served.
    pub memory_mib: u32,
    /// Processors that commands run on. The lab host has one more, which it keeps for itself.
    pub cpus: u32,
    /// Whether the command gets the user's terminal, with Ctrl-C passed on to it and Ctrl-] x to end the lab. If not, its
    /// standard input is empty and Ctrl-C ends the lab.
    pub interactive: bool,
    /// Existing directories and files, absolute, that the command may write to for good.
    pub writable: Vec<PathBuf>,
    /// Kernel modules to load beforehand, such as `rdma_rxe`.
    pub modules: Vec<String>,
    /// Variables to set for the command, beside the usual ones, `RUST_*` and `VERBENA_*` that it inherits.
    pub environment: Vec<(String, String)>,
    /// Time after which the lab is ended.
    pub timeout: Option<Duration>,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            memory_mib: 4096,
            cpus: 2,
            interactive: false,
            writable: Vec::new(),
            modules: Vec::new(),
            environment: Vec::new(),
            timeout: None,
        }
    }
}

impl Cache {
    /// Runs a command of this machine inside the lab, in the current directory, and returns its exit status as a shell
    /// would give it: above 128 for a command that a signal ended. Its output goes to this process's standard output and
    /// error, or all to the terminal when interactive.
    pub fn run_in_lab(&self, command: &[String], options: &LabOptions) -> Result<u8> {
        let lab = self.lab_host()?;
        let job = job::Job::prepare(self, &lab, command, options)?;
        qemu::run(&lab, job, options)
    }
}
