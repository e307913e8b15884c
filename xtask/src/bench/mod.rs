//! `./dev bench`: what the engine and the device cost.

mod plot;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Args;

use crate::cargo::cargo;

/// Measure the engine's codec, packets and messages, the direct carrier between two threads and two processes, the wire
/// carrier over UDP ports, and the device's registration of memory, all beside references from the same run; and count the
/// instructions of the hot paths, if valgrind is installed.
///
/// No guest runs. Threads of the carriers poll, so leave two cores to them.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Keep the tables in this folder, and a plot of each that has ratios.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Only rows whose name contains one of these words.
    #[arg(value_name = "WORD")]
    rows: Vec<String>,
}

/// Packages and their benchmarks.
const BENCHES: &[(&str, &str)] = &[
    ("roce", "instructions"),
    ("roce", "engine"),
    ("roce", "direct"),
    ("roce", "wire"),
    ("pvrdma", "registration"),
];

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        for (package, bench) in BENCHES {
            let arguments = ["bench", "--package", package, "--bench", bench, "--"];
            let mut child = cargo(arguments).args(&self.rows).stdout(Stdio::piped()).spawn()?;
            let mut table = String::new();
            for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
                let line = line?;
                println!("{line}");
                table.extend([line.trim_end(), "\n"]);
            }
            if !child.wait()?.success() {
                return Ok(ExitCode::FAILURE);
            }
            if let Some(folder) = &self.record {
                fs::create_dir_all(folder)?;
                fs::write(folder.join(bench).with_extension("txt"), &table)?;
                if let Some(plot) = plot::of(&table) {
                    fs::write(folder.join(bench).with_extension("svg"), plot)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
