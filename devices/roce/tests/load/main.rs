//! Random loads on two devices, judged by a model that knows nothing of packets.
//!
//! A seed stands for a load: its wire, connections, attributes and requests. `./dev soak engine` runs as many as there is
//! time for, and repeats one by its seed.

#[path = "../common/mod.rs"]
mod common;

mod area;
mod load;
mod mail;
mod migrate;
mod model;
mod plan;
mod planted;
mod traffic;

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use load::{Load, Outcome};
use plan::{Plan, Wire};
use verbs::WcStatus;

/// From good to hopeless; which one a load has is in its seed.
const WIRES: [Wire; 10] = [
    Wire { marks: 20, ..Wire::GOOD },
    Wire { loss: 1, duplication: 1, reordering: 1, ..Wire::GOOD },
    Wire { duplication: 30, ..Wire::GOOD },
    Wire { reordering: 50, ..Wire::GOOD },
    Wire { loss: 10, duplication: 10, reordering: 10, marks: 10, dies: false, direct: None },
    Wire { loss: 50, duplication: 50, reordering: 50, ..Wire::GOOD },
    Wire { dies: true, ..Wire::GOOD },
    Wire { direct: Some(0), ..Wire::GOOD },
    Wire { direct: Some(5), ..Wire::GOOD },
    Wire { loss: 5, reordering: 10, direct: Some(20), ..Wire::GOOD },
];

/// What becomes of requests in all these loads.
const STATUSES: [WcStatus; 7] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::WrFlushErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

/// Time between two lines of the soak's report.
const REPORT_EVERY: Duration = Duration::from_secs(10);

fn plan(seed: u64) -> Plan {
    Plan::new(seed, WIRES[(seed % WIRES.len() as u64) as usize])
}

fn run(seed: u64) -> Outcome {
    let plan = plan(seed);
    let tell =
        |why: String| panic!("{why}\nRepeat it with: ./dev soak engine --minutes 0 --seed {seed}\n{plan:?}");
    Load::new(plan.clone()).run().unwrap_or_else(tell)
}

#[test]
fn loads_are_exact_or_fail_as_they_must() {
    let outcomes: Vec<_> = (0..100).map(run).collect();
    let seen: HashSet<_> = outcomes.iter().flat_map(|outcome| outcome.statuses.iter().copied()).collect();
    assert_eq!(seen, HashSet::from(STATUSES));
    assert!(outcomes.iter().any(|outcome| outcome.failed));
    assert!(outcomes.iter().any(|outcome| !outcome.failed && outcome.retransmitted > 0));
    assert!(outcomes.iter().map(|outcome| outcome.completions).sum::<u64>() > 5_000);
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
#[ignore = "takes as long as it is told; see ./dev soak --help"]
fn soak() {
    let time = Duration::from_secs(60 * setting("VERBENA_SOAK_MINUTES").unwrap_or(1));
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() << 16);
    let first = setting("VERBENA_SOAK_SEED").unwrap_or_else(clock);
    println!("First seed {first}");
    let (begin, mut told) = (Instant::now(), Duration::ZERO);
    let mut seed = first;
    let mut total = [0; 4];
    while begin.elapsed() < time || seed == first {
        let outcome = run(seed);
        seed += 1;
        total[0] += 1;
        total[1] += outcome.completions;
        total[2] += outcome.retransmitted;
        total[3] += u64::from(outcome.failed);
        if begin.elapsed() - told >= REPORT_EVERY || begin.elapsed() >= time {
            told = begin.elapsed();
            let [loads, completions, retransmitted, failed] = total;
            println!(
                "{:4} s: seeds {first} to {}: {loads} loads exact, of which {failed} had queue pairs that failed as \
                 they must; {completions} completions, {retransmitted} packets sent again",
                told.as_secs(),
                seed - 1
            );
        }
    }
}
