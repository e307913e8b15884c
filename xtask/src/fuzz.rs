//! `./dev fuzz`: coverage-guided fuzzing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::cargo::cargo;

/// Flags that make the compiler count what is reached, for libFuzzer. They need no other toolchain.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";
/// Longest input in bytes.
const MAX_LEN: &str = "4096";
/// Seconds after which an input is taken to hang.
const HANG: &str = "20";
/// Memory in MiB that an input may make the program use.
const MEMORY: &str = "2048";

/// Feed a target inputs that reach ever more of its code, until the time is over or one goes wrong.
///
/// Inputs that reached something new are kept in build/fuzz/TARGET/corpus, so that the next run goes on from there. Status 0
/// means that no input did harm. Otherwise the last lines name the file with the input; give it as INPUT to repeat that one.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What to fuzz.
    #[arg(value_enum)]
    target: Target,
    /// Inputs to run once each, in place of new ones.
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// For how long.
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// The RDMA engine, by a peer that sends anything.
    Engine,
    /// The RDMA engine, by a saved state that says anything.
    Restore,
    /// The RDMA engine, by a machine of the same host that shares its memory.
    Neighbour,
    /// Virtio over fabrics, both ends, by peers that send anything.
    Fabric,
    /// The RDMA device, by a guest that does anything.
    Device,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Restore => "restore",
            Self::Neighbour => "neighbour",
            Self::Fabric => "fabric",
            Self::Device => "device",
        }
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.target.name();
        let dir = crate::cache()?.root().join("fuzz").join(name);
        let corpus = dir.join("corpus");
        fs::create_dir_all(&corpus).with_context(|| format!("Cannot create {}", corpus.display()))?;
        let mut fuzzer = Command::new(build(name)?);
        fuzzer.arg(format!("-artifact_prefix={}/", dir.display()));
        fuzzer.args([
            format!("-timeout={HANG}"),
            format!("-rss_limit_mb={MEMORY}"),
            format!("-max_len={MAX_LEN}"),
        ]);
        if self.inputs.is_empty() {
            fuzzer
                .arg(format!("-max_total_time={}", self.minutes * 60))
                .args(["-print_final_stats=1"])
                .arg(corpus);
        } else {
            fuzzer.args(self.inputs);
        }
        let status = fuzzer.status().context("Cannot start the fuzzer")?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Builds a target and gives its program.
fn build(name: &str) -> Result<PathBuf> {
    // Named, so that build scripts and macros go without the flags.
    const TRIPLE: &str = "x86_64-unknown-linux-gnu";
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("fuzz");
    let target = top.join("target");
    let mut cargo = cargo(["build", "--release", "--target", TRIPLE, "--bin", name, "--manifest-path"]);
    cargo.arg(top.join("Cargo.toml")).arg("--target-dir").arg(&target).env("RUSTFLAGS", FLAGS);
    if !cargo.status().context("Cannot start cargo")?.success() {
        bail!("The fuzz target {name} cannot be built");
    }
    Ok(target.join(TRIPLE).join("release").join(name))
}
