//! `./dev soak`: tests that go on for as long as they are let.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use guest_tests::suite::Soak;

use crate::cargo::cargo;

/// Run tests that are too long for every day.
///
/// engine: random loads until the time is over or one goes wrong. Each load has a seed that stands for all about it. Every ten
/// seconds a line says which seeds have passed, how many completions the model has compared, how many packets were sent
/// again, and in how many loads queue pairs failed: some must, since some wires are hopeless and some requests are wrong.
/// Status 0 means that every load was exact or failed as it had to. Otherwise the last lines say what was wrong, in the
/// model's words, and how to repeat that one load.
///
/// cm: 5000 connections between two stock guests through rdma_cm, after which no object and no memory may be held.
///
/// migrate: two guests without an operating system that check every byte they exchange, over a wire that loses, doubles and
/// swaps frames, while they move from monitor to monitor. Every twenty moves a line says what the one that stayed has seen.
/// Needs /dev/kvm.
///
/// programs: perftest with all its options, and an NVMe target that is reset. A line a case.
///
/// wire: all that our device and Debian's rdma_rxe can both do, between the two, on networks that are good and that are bad in
/// several ways. Beside each row the same runs between two rdma_rxe; a row is skipped if it fails there too.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What to soak.
    #[arg(value_enum)]
    what: What,
    /// For how long [engine].
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// First seed [engine; default: chosen by the clock, and printed]; with --minutes 0 this load alone runs.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many moves [migrate].
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: u32,
    /// Run only the cases whose name contains this [cm, programs, wire]; repeatable.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The RDMA engine: two devices in one process under virtual time, over wires from good to hopeless.
    Engine,
    /// Connections through rdma_cm that come and go between two guests.
    Cm,
    /// Machines under load that move from monitor to monitor.
    Migrate,
    /// Stock programs between guests.
    Programs,
    /// Stock and own programs between a guest with our device and one with Debian's rdma_rxe.
    Wire,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let guests =
            |what| anyhow::Ok(guest_tests::cli::soak(what, self.only.clone(), &crate::cache()?)?.into());
        match self.what {
            What::Engine => self.engine(),
            What::Cm => guests(Soak::Cm),
            What::Migrate => Ok(guest_tests::cli::soak_migrate(self.count)?.into()),
            What::Programs => guests(Soak::Programs),
            What::Wire => guests(Soak::Wire),
        }
    }

    fn engine(&self) -> Result<ExitCode> {
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
