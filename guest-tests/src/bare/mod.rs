//! Guests without an operating system: the device cases in one, a checked load between two.
//!
//! It needs `/dev/kvm` but no hardware virtualisation: its code runs in ring 3, at native speed even where KVM is made
//! of software. So it runs on this machine itself, never inside the lab.

pub mod load;
pub mod machine;
pub mod migrate;

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use machine::start_switch;

use crate::guests::Process;
use crate::programs::Programs;

/// How long the cases may take together.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the cases and prints their lines. Gives whether none failed; a machine without KVM skips them.
///
/// # Errors
///
/// When the VMM cannot be started, or ends in another way than the guest wanted.
pub fn run(programs: &Programs) -> Result<bool> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        println!("TEST bare SKIP /dev/kvm cannot be opened ({error})");
        return Ok(true);
    }
    let directory = tempfile::tempdir().context("Cannot make scratch files")?;
    let socket = directory.path().join("switch");
    let _switch = start_switch(&programs.verbena, &socket)?;
    let mut vm = Process::start(
        command(programs, &socket),
        &directory.path().join("bare.log"),
        Some(directory.path()),
    )?;
    let status = vm.wait(TIMEOUT);
    let printed = vm.printed();
    print!("{printed}");
    let Some(status) = status else { bail!("The bare guest did not end within {} s", TIMEOUT.as_secs()) };
    let lines = || printed.lines().filter(|line| line.starts_with("TEST bare/"));
    ensure!(lines().next().is_some(), "The bare guest ran no case; the VMM ended with {status}");
    let cases = status.success() && lines().all(|line| line.ends_with(" ok"));
    let load =
        load::run(programs, directory.path()).and_then(|()| migrate::slice(programs, directory.path()));
    if let Err(error) = &load {
        println!("TEST bare/load FAIL {error:#}");
    }
    Ok(cases && load.is_ok())
}

fn command(programs: &Programs, socket: &Path) -> Command {
    let mut command = Command::new(&programs.verbena);
    command.arg("run").arg("--bare").arg(&programs.bare).args(["--memory", "size=256M"]);
    command.args(["--serial", "num=1,type=stdio"]);
    command.arg("--net").arg(format!("link=switch:{},mac=02:00:00:00:00:01,polling=on", socket.display()));
    command
}
