//! `./dev prepush`: what must hold before code is handed over.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::cargo;

/// Check formatting, lints, licences, documentation and unit tests.
#[derive(Args)]
pub(crate) struct Arguments {}

/// Name and cargo arguments.
const CHECKS: &[(&str, &[&str])] = &[
    ("formatting", &["fmt", "--all", "--check"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]),
    ("fuzz targets", &["check", "--manifest-path", "fuzz/Cargo.toml"]),
    ("documentation", &["doc", "--workspace", "--no-deps", "--document-private-items"]),
    ("tests", &["test", "--workspace"]),
];

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        for (name, arguments) in CHECKS {
            check(name, arguments)?;
        }
        if cargo(["deny", "--version"]).output().is_ok_and(|output| output.status.success()) {
            check("dependencies", &["deny", "--workspace", "check"])?;
        } else {
            eprintln!("dependencies: not checked, `cargo install cargo-deny` to have them checked");
        }
        eprintln!("All checks passed");
        Ok(ExitCode::SUCCESS)
    }
}

fn check(name: &str, arguments: &[&str]) -> Result<()> {
    eprintln!("{name}: cargo {}", arguments.join(" "));
    if !cargo(arguments.iter()).env("RUSTDOCFLAGS", "--deny warnings").status()?.success() {
        bail!("The check of {name} failed; it was: cargo {}", arguments.join(" "));
    }
    Ok(())
}
