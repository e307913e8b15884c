//! Two machines on one switch that share memory: what is one copy from guest to guest must be as exact as what goes by frames.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::inspect::show;
use super::verifier::{Plan, verify};
use crate::guests::Guest;
use crate::suite::{Case, Stand};

const PLANS: [Plan; 5] = [
    Plan { op: "send", size: 4097, count: 60, mtu: 4096 },
    Plan { op: "send", size: 65_536, count: 60, mtu: 1024 },
    Plan { op: "write", size: 2_097_153, count: 4, mtu: 4096 },
    Plan { op: "read", size: 2_097_153, count: 4, mtu: 4096 },
    Plan { op: "atomic", size: 8, count: 200, mtu: 4096 },
];

pub fn cases() -> Vec<Case> {
    let case = |plan: Plan| {
        Case::new(format!("direct/{}-of-{}-bytes-needs-no-frame", plan.op, plan.size), move |stand| {
            needs_no_frame(stand, plan)
        })
    };
    let first = Case::new("direct/machines-find-each-other", find_each_other);
    std::iter::once(first).chain(PLANS.map(case)).collect()
}

/// The first connection asks for a channel, which later ones have from their start.
fn find_each_other(stand: &mut Stand<'_>) -> Result<()> {
    let plan = Plan { op: "write", size: 65_536, count: 60, mtu: 4096 };
    verify(stand.a(), stand.b(), &stand.a().ip(0), plan)?;
    for guest in [stand.a(), stand.b()] {
        let counters = transport(stand, guest)?;
        ensure!(counters["direct_copied_bytes"] > 0, "Nothing was copied directly: {counters:?}");
    }
    Ok(())
}

fn needs_no_frame(stand: &mut Stand<'_>, plan: Plan) -> Result<()> {
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
        ensure!(more("direct_copied_bytes")? >= copied, "Less was copied: {after:?} after {before:?}");
    }
    Ok(())
}

/// What the engine of a guest's RDMA device has counted.
fn transport(stand: &Stand<'_>, guest: &Guest) -> Result<BTreeMap<String, u64>> {
    Ok(show(stand, guest)?.transport)
}
