//! The programs of this workspace that a run needs, built with cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The target of a static build. Naming it keeps build scripts and macros out of the static settings.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Programs as files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// The VMM.
    pub verbena: PathBuf,
    /// The agent, static, so that it runs in any guest.
    pub agent: PathBuf,
    /// The verifier, linked to the guest's own rdma-core.
    pub verifier: PathBuf,
    /// The guest without an operating system.
    pub bare: PathBuf,
}

impl Programs {
    /// Builds them; cargo shows its progress. `fast` spends more time on the VMM to make it run faster, which an
    /// emulated processor would not show.
    ///
    /// # Errors
    ///
    /// When cargo fails.
    pub fn build(fast: bool) -> Result<Self> {
        let target = target_directory()?;
        let (profile, profile_directory) = if fast { ("release", "release") } else { ("dev", "debug") };
        let vmm = ["--package", "vmm", "--bin", "verbena", "--features", "mirror"];
        cargo(&[&["build", "--profile", profile], &vmm[..]].concat(), [])?;
        cargo(&["build", "--package", "guest_verify", "--features", "verbs"], [])?;
        Ok(Self {
            verbena: target.join(profile_directory).join("verbena"),
            agent: freestanding(&target, "guest_agent", "verbena-agent", &STATIC)?,
            verifier: target.join("debug/verbena-verify"),
            bare: freestanding(&target, "guest_bare", "verbena-bare", &BARE)?,
        })
    }
}

/// How a program is built that brings everything it needs.
struct Freestanding {
    /// Directory below the target directory, so that such builds and others do not undo each other's work.
    directory: &'static str,
    /// Features of its package.
    features: &'static str,
    /// Flags for the compiler.
    flags: &'static str,
}

/// A program that runs in any Linux guest.
const STATIC: Freestanding =
    Freestanding { directory: "guest", features: "", flags: "-C target-feature=+crt-static" };

/// A program that runs without an operating system.
const BARE: Freestanding = Freestanding {
    directory: "bare",
    features: "bare",
    flags: "-C relocation-model=static -C target-feature=+crt-static -C panic=abort",
};

fn freestanding(target: &Path, package: &str, program: &str, how: &Freestanding) -> Result<PathBuf> {
    let directory = target.join(how.directory);
    let shown = directory.display().to_string();
    cargo(
        &[
            "build",
            "--package",
            package,
            "--features",
            how.features,
            "--release",
            "--target",
            TARGET,
            "--target-dir",
            &shown,
        ],
        [
            ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", how.flags),
            ("CARGO_PROFILE_RELEASE_STRIP", "true"),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s"),
        ],
    )?;
    Ok(directory.join(TARGET).join("release").join(program))
}

/// The top of the workspace.
pub fn workspace() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

fn target_directory() -> Result<PathBuf> {
    let output = command()
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .output()
        .context("Cannot start cargo")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("`cargo metadata` gave no JSON")?;
    let target =
        metadata["target_directory"].as_str().context("`cargo metadata` names no target directory")?;
    Ok(target.into())
}

fn cargo<const V: usize>(arguments: &[&str], variables: [(&str, &str); V]) -> Result<()> {
    let status = command().args(arguments).envs(variables).status().context("Cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed, {status}", arguments.join(" "));
    }
    Ok(())
}

/// Cargo, as an outer cargo would have us call it but without its other settings for the program it runs.
fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}
