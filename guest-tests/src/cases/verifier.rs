//! Our own verifier: every byte compared, both ways at once, at sizes where packets begin and end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guests::{Guest, Task};
use crate::rdma::{Listening, Pair, verifier};
use crate::suite::Case;

/// How long one run may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What one run moves.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Operation.
    pub op: &'static str,
    /// Bytes of a message.
    pub size: u32,
    /// Messages each way.
    pub count: u32,
    /// Largest path MTU.
    pub mtu: u32,
}

const fn plan(op: &'static str, size: u32, count: u32, mtu: u32) -> Plan {
    Plan { op, size, count, mtu }
}

const PLANS: &[Plan] = &[
    plan("send", 0, 50, 4096),
    plan("send", 1, 100, 4096),
    plan("send", 4097, 100, 4096),
    plan("send", 65_536, 60, 4096),
    plan("send", 5000, 60, 256),
    plan("write", 1, 100, 4096),
    plan("write", 1023, 100, 1024),
    plan("write", 65_536, 60, 4096),
    plan("write", 2_097_153, 4, 4096),
    plan("read", 1, 100, 4096),
    plan("read", 4095, 100, 4096),
    plan("read", 65_536, 60, 4096),
    plan("read", 2_097_153, 4, 4096),
    plan("atomic", 8, 200, 4096),
];

pub fn cases() -> Vec<Case> {
    let case = |&plan: &Plan| {
        let Plan { op, size, mtu, .. } = plan;
        Case::new(format!("verifier/{op}-of-{size}-bytes-mtu-{mtu}"), move |stand| {
            verify(stand.a(), stand.b(), &stand.a().ip(0), plan)
        })
    };
    PLANS.iter().map(case).collect()
}

/// Runs the verifier between two guests, of which the one listens at the address.
pub fn verify(listening: &Guest, calling: &Guest, address: &str, plan: Plan) -> Result<()> {
    let Plan { op, size, count, mtu } = plan;
    let line = format!("verbena-verify {address} --op {op} --size {size} --count {count} --mtu {mtu}");
    let server = Task::shell("verbena-verify").timeout(TIMEOUT);
    let client = Task::shell(line).timeout(TIMEOUT);
    let both = Pair { server, client, listening: Listening::Tcp(18600) }.must(listening, calling)?;
    // An atomic run adds and then swaps.
    let expected = u64::from(count) * if op == "atomic" { 2 } else { 1 };
    for output in [&both.server.out, &both.client.out] {
        let report = verifier(output).with_context(|| format!("verbena-verify printed\n{output}"))?;
        ensure!(report.errors == 0, "{} messages are wrong:\n{output}", report.errors);
        ensure!(report.messages == expected, "{} messages of {expected} were checked", report.messages);
    }
    Ok(())
}
