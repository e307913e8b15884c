//! Two machines that read each other's memory, on one switch or by the host's device: what is one copy from guest to guest
//! must be as exact as what goes by frames.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::inspect::show;
use super::verifier::{Plan, verify};
use crate::guests::Guest;
use crate::rdma::HostRdma;
use crate::suite::{Case, Stand};

/// Bytes of payload in a packet of the host device at most; its interface has the usual MTU.
const PATH_MTU: u64 = 1024;
/// How long a tunnel may take to come about.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

const PLANS: [Plan; 5] = [
    Plan { op: "send", size: 4097, count: 60, mtu: 4096 },
    Plan { op: "send", size: 65_536, count: 60, mtu: 1024 },
    Plan { op: "write", size: 2_097_153, count: 4, mtu: 4096 },
    Plan { op: "read", size: 2_097_153, count: 4, mtu: 4096 },
    Plan { op: "atomic", size: 8, count: 200, mtu: 4096 },
];

/// What counts the bytes that came out of another machine's memory.
const COPIED: &str = "direct_copied_bytes";
const FETCHED: &str = "tunnel_fetched_bytes";

pub fn cases() -> Vec<Case> {
    let case = |plan: Plan| {
        Case::new(format!("direct/{}-of-{}-bytes-needs-no-frame", plan.op, plan.size), move |stand| {
            needs_no_frame(stand, plan, COPIED).map(drop)
        })
    };
    let first = Case::new("direct/machines-find-each-other", |stand| find_each_other(stand, COPIED));
    std::iter::once(first).chain(PLANS.map(case)).collect()
}

/// The same by tunnels, which the host's device carries.
pub fn tunnel_cases() -> Vec<Case> {
    let case = |plan: Plan| {
        let name = format!("tunnel/{}-of-{}-bytes-goes-by-the-host-device", plan.op, plan.size);
        Case::new(name, move |stand| goes_by_the_host(stand, plan))
    };
    let first = Case::new("tunnel/machines-find-each-other", |stand| find_each_other(stand, FETCHED));
    std::iter::once(first).chain(PLANS.map(case)).collect()
}

/// The first connection asks for a channel, which later ones have from their start.
fn find_each_other(stand: &mut Stand<'_>, copied: &str) -> Result<()> {
    let plan = Plan { op: "write", size: 65_536, count: 60, mtu: 4096 };
    let deadline = Instant::now() + CALL_TIMEOUT;
    loop {
        verify(stand.a(), stand.b(), &stand.a().ip(0), plan)?;
        let counters = [transport(stand, stand.a())?, transport(stand, stand.b())?];
        if counters.iter().all(|counters| counters[copied] > 0) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "Without frames came nothing: {counters:?}");
    }
}

/// The host's device counts packets for the payload, while the machine's port carries none.
fn goes_by_the_host(stand: &mut Stand<'_>, plan: Plan) -> Result<()> {
    let host = HostRdma::make()?;
    let before = host.counter("sent_pkts")?;
    let payload = needs_no_frame(stand, plan, FETCHED)?;
    let sent = host.counter("sent_pkts")? - before;
    // Each of the two devices sends what the other one checks.
    ensure!(sent >= 2 * payload / PATH_MTU, "The device counts {sent} packets for twice {payload} bytes");
    Ok(())
}

/// Returns how many bytes each side at least had from the other.
fn needs_no_frame(stand: &mut Stand<'_>, plan: Plan, counter: &str) -> Result<u64> {
    let counters = || anyhow::Ok([transport(stand, stand.a())?, transport(stand, stand.b())?]);
    let before = counters()?;
    verify(stand.a(), stand.b(), &stand.a().ip(0), plan)?;
    // Up to 256 bytes, of a message or left at its end, lie in the records themselves.
    let copied = u64::from(plan.size & !0xff) * u64::from(plan.count);
    for (before, after) in before.iter().zip(&counters()?) {
        let more = |name: &str| {
            let value = |counters: &BTreeMap<String, u64>| counters.get(name).copied();
            value(after).zip(value(before)).map(|(after, before)| after - before).context(name.to_owned())
        };
        ensure!(more("tx_packets")? == 0, "Frames were sent: {after:?} after {before:?}");
        ensure!(more("direct_tx_records")? > 0, "No record was sent: {after:?} after {before:?}");
        ensure!(more(counter)? >= copied, "Less was copied: {after:?} after {before:?}");
    }
    Ok(copied)
}

/// What the engine of a guest's RDMA device has counted.
fn transport(stand: &Stand<'_>, guest: &Guest) -> Result<BTreeMap<String, u64>> {
    Ok(show(stand, guest)?.transport)
}
