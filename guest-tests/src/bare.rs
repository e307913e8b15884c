//! The device cases in a guest without an operating system.
//!
//! It needs `/dev/kvm` but no hardware virtualisation: its code runs in ring 3, at native speed even where KVM is made
//! of software. So it runs on this machine itself, never inside the lab.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guests::Process;
use crate::programs::Programs;

/// How long the cases may take together.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long the switch may take to open its socket.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

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
    let mut switch = Command::new(&programs.verbena);
    switch.arg("switch").arg("--socket").arg(&socket);
    let switch = Process::start(switch, &directory.path().join("switch.log"), Some(directory.path()))?;
    wait_for(&socket).with_context(|| format!("The switch says: {}", switch.printed()))?;
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
    Ok(status.success() && lines().all(|line| line.ends_with(" ok")))
}

fn command(programs: &Programs, socket: &Path) -> Command {
    let mut command = Command::new(&programs.verbena);
    command.arg("run").arg("--bare").arg(&programs.bare).args(["--memory", "size=256M"]);
    command.args(["--serial", "num=1,type=stdio"]);
    command.arg("--net").arg(format!("link=switch:{},mac=02:00:00:00:00:01", socket.display()));
    command
}

fn wait_for(socket: &Path) -> Result<()> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    while !socket.exists() {
        ensure!(Instant::now() < deadline, "The switch did not open its socket");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
