//! Guests whose programs' objects are mirrored onto a device of the host.
//!
//! The stock programs between such guests are the same as on the engine; they run after these cases.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{device, programs as stock};
use crate::guests::Guest;
use crate::rdma::HostRdma;
use crate::setup::{Setup, Way};
use crate::suite::{Case, Outcome, Stand};

/// How long the host may take to follow a guest.
const SETTLING: Duration = Duration::from_secs(30);

/// Without the lab this host would have to lend one of its devices.
pub fn why_not(setup: &Setup) -> Option<&'static str> {
    (setup.way == Way::Direct).then_some("only the lab host has an RDMA device that tests may use")
}

/// The device the guests are mirrored onto.
pub fn host_device() -> Result<String> {
    Ok(HostRdma::make()?.name)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("mirror/devinfo-says-active-ethernet-and-a-guid", device::devinfo),
        Case::new("mirror/guest-addresses-are-the-hosts-as-long-as-they-are-the-guests", addresses),
    ]
}

/// Programs that do not get through there, or were not seen to.
const LEFT_OUT: [&str; 4] = ["rping", "rping-64-KiB", "ucmatose", "udaddy"];

/// The stock programs.
pub fn programs() -> Vec<Case> {
    let is_left_out = |name: &str| LEFT_OUT.iter().any(|left_out| name == format!("mirror/{left_out}"));
    let skip = |name| {
        let reason = "rping stalled on rdma_rxe for a reason not known yet, and what follows it has not run";
        Case::may_skip(name, move |_| Ok(Outcome::Skipped(reason.to_owned())))
    };
    let case = |case: Case| if is_left_out(&case.name) { skip(case.name) } else { case };
    stock::cases("mirror").into_iter().map(case).collect()
}

fn has_address(guest: &Guest) -> Result<bool> {
    Ok(HostRdma::make()?.addresses()?.contains(&format!("{}/32", guest.ip(0))))
}

/// Waits until the host has the address of a guest, or has it no more.
fn settles(guest: &Guest, wanted: bool) -> Result<()> {
    let deadline = Instant::now() + SETTLING;
    while has_address(guest)? != wanted {
        ensure!(Instant::now() < deadline, "Address of {} on the host: {}", guest.name(), !wanted);
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn addresses(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        stand.device(guest)?;
        ensure!(has_address(guest)?, "The host does not have {}", guest.ip(0));
    }
    // The kernel of guest b takes its address away, and with it goes the host's.
    let (guest, ip) = (stand.b(), stand.b().ip(0));
    guest.must(format!("ip address del {ip}/24 dev eth0"))?;
    let gone = settles(guest, false);
    guest.must(format!("ip address add {ip}/24 dev eth0"))?;
    gone?;
    stand.device(guest)?;
    settles(guest, true)
}
