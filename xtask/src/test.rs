//! `./dev test`: everything there is to test.

mod results;

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use images::host::{self, Purpose};

use crate::cargo::cargo;
use results::Results;

/// Run every test: those that run in a process, then those that boot guests.
///
/// Installs what they need when root and prints the line that would when not. Takes over an hour from nothing on two cores, most
/// of it for the guests; later on only the set-up is quicker.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Leave out the tests that boot guests.
    #[arg(long, conflicts_with = "only")]
    no_guests: bool,
    /// What to run of the tests that boot guests.
    #[command(flatten)]
    suite: guest_tests::cli::SuiteArguments,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = crate::cache()?;
        let begin = Instant::now();
        eprintln!("[1/3] set-up");
        host::require(&cache, &[Purpose::Programs, Purpose::Images, Purpose::Tests])?;
        if !self.suite.only.is_empty() {
            return Ok(guest_tests::cli::suite(self.suite, &cache)?.into());
        }
        eprintln!("[2/3] tests that run in a process ({} so far)", minutes(begin.elapsed()));
        let (passed, results) = unit_tests()?;
        let units = begin.elapsed();
        let guests = if self.no_guests {
            None
        } else {
            eprintln!("[3/3] tests that boot guests ({} so far)", minutes(units));
            Some(guest_tests::cli::suite(self.suite, &cache)? == 0)
        };
        report(&results, guests, units, begin.elapsed());
        Ok(if passed && guests != Some(false) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Runs `cargo test` on the workspace, shows its output as it comes, and counts its results.
fn unit_tests() -> Result<(bool, Results)> {
    let mut child = cargo(["test", "--workspace", "--features", "vmm/mirror", "--no-fail-fast"])
        .stdout(Stdio::piped())
        .spawn()
        .context("Cannot start cargo")?;
    let output = child.stdout.take().context("Cannot read what cargo prints")?;
    let mut results = Results::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("Cannot read what cargo prints")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        results.count(&line);
    }
    Ok((child.wait()?.success(), results))
}

fn report(results: &Results, guests: Option<bool>, units: Duration, whole: Duration) {
    println!();
    println!("In a process: {results} in {}", minutes(units));
    let outcome = match guests {
        None => "not run",
        Some(true) => "passed, see the table above",
        Some(false) => "FAILED, see the table above",
    };
    println!("With guests: {outcome} in {}", minutes(whole - units));
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02} min", time.as_secs() / 60, time.as_secs() % 60)
}
