//! `./dev soak`: tests that go on for as long as they are let.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cargo::cargo;

/// Run random loads until the time is over or one goes wrong.
///
/// Each load has a seed that stands for all about it. Every ten seconds a line says which seeds have passed, how many
/// completions the model has compared, how many packets were sent again, and in how many loads queue pairs failed: some
/// must, since some wires are hopeless and some requests are wrong. Status 0 means that every load was exact or failed
/// as it had to. Otherwise the last lines say what was wrong, in the model's words, and how to repeat that one load.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What to soak.
    #[arg(value_enum)]
    what: What,
    /// For how long.
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// First seed [default: chosen by the clock, and printed]; with --minutes 0 this load alone runs.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The RDMA engine: two devices in one process under virtual time, over wires from good to hopeless.
    Engine,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let What::Engine = self.what;
        let test =
            ["test", "--release", "--package", "roce", "--test", "load", "--", "--ignored", "--nocapture"];
        let mut cargo = cargo(test);
        cargo.arg("soak").env("VERBENA_SOAK_MINUTES", self.minutes.to_string());
        if let Some(seed) = self.seed {
            cargo.env("VERBENA_SOAK_SEED", seed.to_string());
        }
        Ok(if cargo.status()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
