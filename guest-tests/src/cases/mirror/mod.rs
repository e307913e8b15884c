//! Guests whose programs' objects are mirrored onto a device of the host.
//!
//! They run the same list as guests on the engine, after cases of their own.

mod host;

use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use self::host::last_cases;
use self::host::{has_address, settles};
use crate::rdma::HostRdma;
use crate::setup::{Setup, Way};
use crate::suite::{Case, Stand};

/// The topic of everything here.
const TOPIC: &str = "mirror";
/// Cases of the list that say nothing about the mirror, and why. `docs/providers.md` has them too.
const LEFT_OUT: &[(&str, &str)] =
    &[("addresses/", "ip= gives a guest one address on the host device, and it is an IPv4 address here")];

/// Without the lab this host would have to lend one of its devices.
pub fn why_not(setup: &Setup) -> Option<&'static str> {
    (setup.way == Way::Direct).then_some("only the lab host has an RDMA device that tests may use")
}

/// The device the guests are mirrored onto.
pub fn host_device() -> Result<String> {
    Ok(HostRdma::make()?.name)
}

pub fn cases() -> Vec<Case> {
    let own = vec![
        Case::new("mirror/guest-addresses-are-the-hosts-as-long-as-they-are-the-guests", addresses),
        Case::new("mirror/doctor-finds-the-device-in-order-and-says-what-it-lacks", doctor),
    ];
    own.into_iter().chain(host::cases()).collect()
}

/// Cases of the list that is the same for every provider.
pub fn on_host(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().map(|case| left_out(case).under(TOPIC)).collect()
}

fn left_out(case: Case) -> Case {
    match LEFT_OUT.iter().find(|(which, _)| case.name.starts_with(which)) {
        Some((_, reason)) => case.skipped(reason),
        None => case,
    }
}

fn addresses(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        stand.device(guest)?;
        ensure!(has_address(guest)?, "The host does not have {}", guest.ip(0));
    }
    // The kernel of guest b takes its address away, and with it goes the host's.
    let (guest, ip) = (stand.b(), stand.b().ip(0));
    guest.must(format!("ip address del {ip}/24 dev eth0"))?;
    let gone = settles(|| Ok(!has_address(guest)?), "its address is gone");
    guest.must(format!("ip address add {ip}/24 dev eth0"))?;
    gone?;
    stand.device(guest)?;
    settles(|| has_address(guest), "it has its address again")
}

fn doctor(stand: &mut Stand<'_>) -> Result<()> {
    let host = HostRdma::make()?;
    let verbena = &stand.setup.programs.verbena;
    let ask = |device: &str, memory: &str| {
        let line = ["doctor", "--device", device, "--memory", memory];
        let output = Command::new(verbena).args(line).output().context("Cannot start verbena")?;
        anyhow::Ok((String::from_utf8(output.stdout)?, output.status.success()))
    };
    let (name, interface) = (&host.name, &host.interface);
    let (text, in_order) = ask(name, "128M")?;
    for finding in [
        format!("ok    RDMA device {name}: speaks RoCE v2 over {interface}, its port is active"),
        format!("ok    Device file of {name}: /dev/infiniband/uverbs"),
        format!("ok    libibverbs: opens {name}"),
        format!("ok    Guest addresses on {interface}: "),
        format!("ok    Routes of {name}: {interface} has an address"),
        "ok    Memory that may be locked: ".to_owned(),
    ] {
        ensure!(text.contains(&finding), "It does not say {finding:?}:\n{text}");
    }
    ensure!(in_order, "Something else is in disorder:\n{text}");
    let (text, _) = ask(name, "64G")?;
    ensure!(text.contains("`sysctl -w vm.max_map_count="), "64 GiB are fine:\n{text}");
    let (text, in_order) = ask("no_device", "512M")?;
    let missing = format!("BAD   RDMA device no_device: is not there; this host has: {name}");
    ensure!(!in_order && text.contains(&missing), "It does not miss a device that is not there:\n{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::acceptance;

    #[test]
    fn everything_that_is_left_out_is_on_the_list() {
        let lists = [acceptance::cases(), acceptance::lifecycle_cases(), acceptance::debian_cases()];
        let names: Vec<_> = lists.into_iter().flatten().map(|case| case.name).collect();
        for (which, _) in LEFT_OUT {
            assert!(names.iter().any(|name| name.starts_with(which)), "{which}");
        }
    }
}
