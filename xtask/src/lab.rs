//! `./dev lab`: runs a command in the lab.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use images::LabOptions;

/// Run a command, or a shell, inside the lab: an emulated machine with hardware virtualisation and RDMA over Ethernet.
///
/// It sees this machine's files. What it writes is lost when the lab ends, except to what --writable names.
/// The exit status is the command's. From a terminal, Ctrl-] x ends a lab that hangs.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Memory of the lab in MiB.
    #[arg(long, default_value_t = LabOptions::default().memory_mib)]
    memory: u32,
    /// Load a kernel module first, such as rdma_rxe. May be repeated.
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Keep what is written to this file or below this directory. May be repeated.
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
    /// The command and its arguments; a shell if none.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let existing =
            |path: PathBuf| path.canonicalize().with_context(|| format!("Cannot share {}", path.display()));
        let options = LabOptions {
            memory_mib: self.memory,
            interactive: std::io::stdin().is_terminal(),
            writable: self.writable.into_iter().map(existing).collect::<Result<_>>()?,
            modules: self.modules,
            ..LabOptions::default()
        };
        let command = if self.command.is_empty() { vec!["/bin/sh".to_owned()] } else { self.command };
        Ok(crate::cache()?.run_in_lab(&command, &options)?.into())
    }
}
