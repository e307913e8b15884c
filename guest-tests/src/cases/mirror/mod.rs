//! Guests whose programs' objects are mirrored onto a device of the host.
//!
//! The stock programs between such guests are the same as on the engine; they run after these cases.

mod host;

use anyhow::{Result, ensure};

pub use self::host::last_cases;
use self::host::{has_address, settles};
use super::{device, programs as stock};
use crate::rdma::HostRdma;
use crate::setup::{Setup, Way};
use crate::suite::{Case, Stand};

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
        Case::new("mirror/devinfo-says-active-ethernet-and-a-guid", device::devinfo),
        Case::new("mirror/guest-addresses-are-the-hosts-as-long-as-they-are-the-guests", addresses),
    ];
    own.into_iter().chain(host::cases()).collect()
}

/// The stock programs.
pub fn programs() -> Vec<Case> {
    stock::cases("mirror")
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
