//! `./dev bench`: what the engine and the device cost.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cargo::cargo;

/// Measure the engine's codec, packets and messages, the direct carrier between two threads and two processes, and the
/// device's registration of memory, all beside references from the same run.
///
/// No guest runs. Threads of the direct carrier poll, so leave two cores to them.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only rows whose name contains one of these words.
    #[arg(value_name = "WORD")]
    rows: Vec<String>,
}

/// Packages and their benchmarks.
const BENCHES: &[(&str, &str)] = &[("roce", "engine"), ("roce", "direct"), ("pvrdma", "registration")];

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        for (package, bench) in BENCHES {
            let bench = ["bench", "--package", package, "--bench", bench, "--"];
            if !cargo(bench).args(&self.rows).status()?.success() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
