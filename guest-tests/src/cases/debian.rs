//! A full Debian system, run by systemd from a disk.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::boot::pingpong_to_itself;
use crate::rdma::device_info;
use crate::suite::{Case, Stand};

/// How long the login prompt may take once all units are up.
const PROMPT: Duration = Duration::from_secs(180);
/// How long the system may take to go down.
const SHUTDOWN: Duration = Duration::from_secs(180);

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("debian/systemd-brings-all-units-and-a-login-prompt-up", all_units),
        Case::new("debian/udev-names-an-active-device", active_device),
        Case::new("debian/pingpong-to-itself", pingpong_to_itself),
        Case::new("debian/doctor-finds-all-in-its-disk", doctor),
        Case::new("debian/systemd-powers-off", power_off),
    ]
}

fn all_units(stand: &mut Stand<'_>) -> Result<()> {
    let first = stand.a().must("cat /proc/1/comm")?;
    ensure!(first.trim() == "systemd", "Process 1 is {first}");
    let state = stand.a().run("systemctl is-system-running --wait")?.out;
    let failed = stand.a().must("systemctl --failed --no-legend")?;
    ensure!(state.trim() == "running", "The system is {state}; units that failed:\n{failed}");
    // The unit is active before its program has printed anything.
    let deadline = Instant::now() + PROMPT;
    while !stand.a().console().contains("login:") {
        ensure!(Instant::now() < deadline, "No login prompt on the console:\n{}", stand.a().console());
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn active_device(stand: &mut Stand<'_>) -> Result<()> {
    let device = stand.device(stand.a())?;
    // The name tells the place on the bus, as rdma-core's rules have it.
    ensure!(device.name.starts_with("rocep"), "The device is called {}", device.name);
    let output = stand.a().must(format!("ibv_devinfo -d {}", device.name))?;
    let info = device_info(&output).with_context(|| format!("ibv_devinfo printed\n{output}"))?;
    ensure!(info.state == "PORT_ACTIVE", "Its port is {}", info.state);
    Ok(())
}

fn doctor(stand: &mut Stand<'_>) -> Result<()> {
    let disk = stand.setup.debian.as_ref().context("There is no full Debian")?;
    let doctor = Command::new(&stand.setup.programs.verbena).args(["doctor", "--disk"]).arg(disk).output()?;
    let text = String::from_utf8(doctor.stdout)?;
    for part in ["Guest module vmxnet3", "Guest module vmw_pvrdma", "Guest user space"] {
        ensure!(text.contains(&format!("ok    {part}: ")), "It does not find {part} in order:\n{text}");
    }
    ensure!(!text.contains("Guest module order"), "It misses the order that the disk lays down:\n{text}");
    Ok(())
}

fn power_off(stand: &mut Stand<'_>) -> Result<()> {
    let _going = stand.a().start("systemctl poweroff");
    let status = stand.guests.all_mut()[0].wait_end(SHUTDOWN).context("The VMM did not end")?;
    ensure!(status.code() == Some(0), "The VMM ended with {status}");
    Ok(())
}
