//! `./dev bench`: what the engine costs.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cargo::cargo;

/// Measure the engine in one process: codec, packets, messages, beside references from the same run.
///
/// These are engine-level figures: no guest runs and nothing leaves the process.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only rows whose name contains one of these words.
    #[arg(value_name = "WORD")]
    rows: Vec<String>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let bench = ["bench", "--package", "roce", "--bench", "engine", "--"];
        let status = cargo(bench).args(&self.rows).status()?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
