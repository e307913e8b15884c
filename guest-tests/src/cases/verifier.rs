//! Our own verifier: every byte compared, both ways at once, at sizes where packets begin and end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guests::Task;
use crate::rdma::{Listening, Pair, verifier};
use crate::suite::{Case, Stand};

/// How long one run may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Operation, message size in bytes, messages each way, largest path MTU.
const RUNS: &[(&str, u32, u32, u32)] = &[
    ("send", 0, 50, 4096),
    ("send", 1, 100, 4096),
    ("send", 4097, 100, 4096),
    ("send", 65_536, 60, 4096),
    ("send", 5000, 60, 256),
    ("write", 1, 100, 4096),
    ("write", 1023, 100, 1024),
    ("write", 65_536, 60, 4096),
    ("write", 2_097_153, 4, 4096),
    ("read", 1, 100, 4096),
    ("read", 4095, 100, 4096),
    ("read", 65_536, 60, 4096),
    ("read", 2_097_153, 4, 4096),
    ("atomic", 8, 200, 4096),
];

pub fn cases() -> Vec<Case> {
    let name = |op: &str, size: u32, mtu: u32| format!("verifier/{op}-of-{size}-bytes-mtu-{mtu}");
    RUNS.iter()
        .map(|&(op, size, count, mtu)| {
            Case::new(name(op, size, mtu), move |stand| run(stand, op, size, count, mtu))
        })
        .collect()
}

fn run(stand: &mut Stand<'_>, op: &str, size: u32, count: u32, mtu: u32) -> Result<()> {
    let line =
        format!("verbena-verify {} --op {op} --size {size} --count {count} --mtu {mtu}", stand.a().ip(0));
    let server = Task::shell("verbena-verify").timeout(TIMEOUT);
    let client = Task::shell(line).timeout(TIMEOUT);
    let both = Pair { server, client, listening: Listening::Tcp(18600) }.must(stand.a(), stand.b())?;
    // An atomic run adds and then swaps.
    let expected = u64::from(count) * if op == "atomic" { 2 } else { 1 };
    for output in [&both.server.out, &both.client.out] {
        let report = verifier(output).with_context(|| format!("verbena-verify printed\n{output}"))?;
        ensure!(report.errors == 0, "{} messages are wrong:\n{output}", report.errors);
        ensure!(report.messages == expected, "{} messages of {expected} were checked", report.messages);
    }
    Ok(())
}
