//! Interrupts that move between CPUs: Linux masks a vector of MSI-X, writes its new message and unmasks it.

use anyhow::{Context, Result, ensure};

use super::boot::pingpong_in;
use crate::guests::Guest;
use crate::suite::{Case, Stand};

/// Prints how many interrupts of the RDMA device each of two CPUs took, a vector a line.
const COUNTS: &str = "awk '/vmw_pvrdma/ { print $2, $3 }' /proc/interrupts";
/// Sends every vector of NIC and RDMA device to the one CPU and the other, for as long as it may.
const MOVE: &str = "irqs=$(awk -F: '/vmw_pvrdma|eth0/ { print $1 + 0 }' /proc/interrupts); while true; do \
                    for cpu in 0 1; do for irq in $irqs; do echo $cpu > /proc/irq/$irq/smp_affinity_list || exit 1; \
                    done; done; done";
/// Interrupts that one vector must have brought to either CPU.
const ENOUGH: u64 = 10;

pub fn cases() -> Vec<Case> {
    vec![Case::new("interrupts/none-is-lost-while-they-move-between-cpus", moves)]
}

/// A program that sleeps until its completions are told stands still for good when one notification is lost.
fn moves(stand: &mut Stand<'_>) -> Result<()> {
    let guest = stand.a();
    let before = counts(guest)?;
    let mut mover = guest.start(MOVE);
    let result = pingpong_in(guest, "-e -n 500 -c");
    let moved = mover.poll()?;
    ensure!(moved.is_none(), "The interrupts do not move: {moved:?}");
    mover.kill()?;
    result?;
    let after = counts(guest)?;
    let both = |(old, new): (&[u64; 2], &[u64; 2])| (0..2).all(|cpu| new[cpu] >= old[cpu] + ENOUGH);
    let moved = before.iter().zip(&after).any(both);
    ensure!(moved, "No vector came to both CPUs: {before:?}, then {after:?}");
    Ok(())
}

fn counts(guest: &Guest) -> Result<Vec<[u64; 2]>> {
    let text = guest.must(COUNTS)?;
    let row = |line: &str| {
        let (first, second) = line.split_once(' ')?;
        Some([first.parse().ok()?, second.parse().ok()?])
    };
    text.lines().map(row).collect::<Option<_>>().with_context(|| format!("awk printed\n{text}"))
}
