//! A stock kernel comes up on the machine, and goes down.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guests::Guest;
use crate::rdma::{Listening, Pair, RdmaDevice, device_info};
use crate::suite::{Case, Stand};

/// Prints the lines of a kernel log that no healthy boot has.
pub const ALARM: &str = "dmesg | grep -E 'BUG:|WARNING:|Oops|general protection|soft lockup|rcu.*stall'";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("boot/stock-kernel-comes-up-without-alarm", stock_kernel),
        Case::new("boot/nic-and-rdma-functions-share-a-slot", functions_share_a_slot),
    ]
}

/// What comes last on a set of guests, since nothing can follow.
pub fn last_cases() -> Vec<Case> {
    vec![Case::new("boot/power-off-ends-the-vmm-with-status-0", power_off)]
}

pub fn smp_cases() -> Vec<Case> {
    vec![
        Case::new("boot/two-cpus-are-online", two_cpus),
        Case::new("boot/stock-kernel-with-two-cpus-without-alarm", |stand| no_alarm(stand)),
        Case::new("boot/pingpong-to-itself-with-two-cpus", pingpong_to_itself),
    ]
}

pub fn newer_cases() -> Vec<Case> {
    vec![
        Case::new("boot/newer-kernel-has-an-active-device", newer_kernel),
        Case::new("boot/pingpong-to-itself-on-the-newer-kernel", pingpong_to_itself),
        Case::new("boot/newer-kernel-powers-off", power_off),
    ]
}

fn stock_kernel(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        let identity = guest.identity().context("The guest did not say who it is")?;
        ensure!(identity.kernel == stand.setup.stock.release, "It runs the kernel {}", identity.kernel);
        ensure!(identity.host == guest.name().to_string(), "Its host name is {}", identity.host);
    }
    no_alarm(stand)
}

/// Makes sure that no guest's kernel has found anything wrong with itself.
pub fn no_alarm(stand: &Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        let alarm = guest.must(format!("{ALARM}; true"))?;
        ensure!(alarm.is_empty(), "The kernel log of guest {} has\n{alarm}", guest.name());
    }
    Ok(())
}

fn functions_share_a_slot(stand: &mut Stand<'_>) -> Result<()> {
    let list = stand.a().must(
        "cd /sys/bus/pci/devices && for f in *; do echo $f $(cat $f/vendor $f/device $f/subsystem_vendor); done",
    )?;
    let find = |device: &str| {
        let mut lines = list.lines().filter(|line| line.contains(&format!(" 0x15ad {device} ")));
        lines.next().and_then(|line| line.split_once(' ')).map(|(place, _)| place.to_string())
    };
    let nic = find("0x07b0").with_context(|| format!("There is no 15ad:07b0 among\n{list}"))?;
    let rdma = find("0x0820").with_context(|| format!("There is no 15ad:0820 among\n{list}"))?;
    ensure!(nic.ends_with(".0"), "The NIC is at {nic}, not at a function 0");
    ensure!(rdma == nic.replace(".0", ".1"), "The NIC is at {nic}, the RDMA device at {rdma}");
    Ok(())
}

fn two_cpus(stand: &mut Stand<'_>) -> Result<()> {
    let online = stand.a().must("cat /sys/devices/system/cpu/online")?;
    ensure!(online.trim() == "0-1", "CPUs {online} are online");
    // Both must make progress at once.
    stand.a().must("(seq 1 20000 | md5sum) & (seq 1 20000 | sha1sum) & wait")?;
    Ok(())
}

fn newer_kernel(stand: &mut Stand<'_>) -> Result<()> {
    let identity = stand.a().identity().context("The guest did not say who it is")?;
    ensure!(identity.kernel.starts_with("6.12."), "It runs the kernel {}", identity.kernel);
    let output = stand.a().must("ibv_devinfo")?;
    let info = device_info(&output).with_context(|| format!("ibv_devinfo printed\n{output}"))?;
    ensure!(info.state == "PORT_ACTIVE", "Its port is {}", info.state);
    no_alarm(stand)
}

pub fn pingpong_to_itself(stand: &mut Stand<'_>) -> Result<()> {
    pingpong_in(stand.a(), "-n 100 -c")
}

/// A ping-pong with the given flags within one guest.
pub fn pingpong_in(guest: &Guest, flags: &str) -> Result<()> {
    let device = RdmaDevice::of(guest)?;
    let line = format!("ibv_rc_pingpong -d {} -g {} {flags}", device.name, device.ipv4);
    let client = format!("{line} {}", guest.ip(0)).into();
    Pair { server: line.into(), client, listening: Listening::Tcp(18515) }.must(guest, guest)?;
    Ok(())
}

fn power_off(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all_mut() {
        let status = guest.power_off(Duration::from_secs(180)).context("The VMM did not end")?;
        ensure!(status.code() == Some(0), "The VMM of guest {} ended with {status}", guest.name());
    }
    Ok(())
}
