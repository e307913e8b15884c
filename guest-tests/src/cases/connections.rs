//! Many connections come and go through rdma_cm, and nothing of them stays.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::device::Held;
use super::objects::Objects;
use crate::guests::Task;
use crate::rdma::Listening;
use crate::suite::{Case, Stand};

/// Connections that are opened, and then closed, in one go.
const CONNECTIONS: u32 = 100;
/// How long all rounds may take.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Rounds after which caches of kernels and monitors are full.
const WARM_UP: u32 = 2;

/// A few, which soon show a leak that is gross, and many.
pub fn soak_cases() -> Vec<Case> {
    let case = |count| {
        Case::new(format!("connections/{count}-come-and-go-and-leave-nothing"), move |stand| {
            come_and_go(stand, count)
        })
    };
    vec![case(300), case(5000)]
}

fn come_and_go(stand: &mut Stand<'_>, connections: u32) -> Result<()> {
    let before = Objects::of_all(stand)?;
    rounds(stand, WARM_UP)?;
    before.are_all(stand)?;
    let held = Held::by_all(stand)?;
    rounds(stand, connections / CONNECTIONS)?;
    before.are_all(stand)?;
    let now = Held::by_all(stand)?;
    for (before, after) in held.iter().zip(&now) {
        ensure!(!after.is_more_than(before), "After {connections} connections {before:?} became {after:?}");
    }
    Ok(())
}

fn rounds(stand: &Stand<'_>, count: u32) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    // It serves one client after the other, for ever.
    let server = a.start(Task::shell("cmtime").timeout(TIMEOUT));
    a.must(Listening::Cm.wait())?;
    let client =
        format!("for i in $(seq {count}); do cmtime -c {CONNECTIONS} -s {} || exit 1; done", a.ip(0));
    let connected = b.must(Task::shell(client).timeout(TIMEOUT));
    server.kill()?;
    connected?;
    Ok(())
}
