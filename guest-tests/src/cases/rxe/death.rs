//! One of the two ends dies without a word to anybody, and comes back.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::super::verifier::{self, Plan};
use super::{GOOD, make_devices};
use crate::guests::{Guest, Job, Task};
use crate::rdma::Listening;
use crate::suite::{Case, Stand};

/// How long a guest may take to start again.
const REBOOT: Duration = Duration::from_secs(600);
/// How long a requester with all its retries may take to give up.
const GIVES_UP: Duration = Duration::from_secs(120);
/// Moves data both ways for as long as both ends live.
const ENDLESS: &str = "--op write --size 4097 --count 1000000000 --mtu 1024";
/// So many bytes in a capture are more than what it takes to connect.
const FLOWING: u64 = 1 << 20;
/// What has to work once both are there again.
const AFTERWARDS: Plan = Plan { op: "send", size: 4097, count: 100, mtu: 1024 };

pub fn cases() -> [Case; 2] {
    [
        Case::new("rxe/death-of-rdma_rxe-is-noticed-and-its-return-welcome", rxe_dies),
        Case::new("rxe/rdma_rxe-meets-us-again-after-our-death", we_die),
    ]
}

/// Resets a guest without a word to anybody while it moves data both ways, and gives what became of the other end.
fn reset_under_load(stand: &Stand<'_>, dies: &Guest, lives_on: &Guest) -> Result<Job> {
    make_devices(stand)?;
    let capture = stand.guests.capture(stand.a(), GOOD.ours);
    let captured = || fs::metadata(&capture).map(|data| data.len()).context("There is no capture");
    let begin = captured()?;
    let mut survivor = lives_on.start(Task::shell("verbena-verify").timeout(REBOOT));
    lives_on.must(Listening::Tcp(18600).wait())?;
    let line = format!("verbena-verify {} {ENDLESS}", lives_on.ip(GOOD.ours));
    let client = dies.start(Task::shell(line).timeout(REBOOT));
    while captured()? < begin + FLOWING {
        if let Some(output) = survivor.poll()? {
            bail!("The load ended before anything happened: {output:?}");
        }
        survivor.pause()?;
    }
    let life = dies.lives() + 1;
    let reset = dies.start("echo b > /proc/sysrq-trigger");
    dies.wait_ready(life, REBOOT)?;
    drop((client, reset));
    Ok(survivor)
}

fn rxe_dies(stand: &mut Stand<'_>) -> Result<()> {
    let (ours, rxe) = (stand.a(), stand.b());
    let mut survivor = reset_under_load(stand, rxe, ours)?;
    survivor.limit(GIVES_UP);
    let output = survivor.wait().context("Our side did not notice")?;
    let said = format!("{}{}", output.out, output.err);
    ensure!(said.contains("transport retry counter exceeded"), "Our side ended otherwise: {said}");
    make_devices(stand)?;
    verifier::verify(ours, rxe, &ours.ip(GOOD.ours), AFTERWARDS).context("After its return")
}

/// rdma_rxe takes seven retries for endless ones, so it does not notice; its packets find nobody.
fn we_die(stand: &mut Stand<'_>) -> Result<()> {
    let (ours, rxe) = (stand.a(), stand.b());
    let survivor = reset_under_load(stand, ours, rxe)?;
    make_devices(stand)?;
    verifier::verify(ours, rxe, &ours.ip(GOOD.ours), AFTERWARDS).context("After our return")?;
    survivor.kill()?;
    Ok(())
}
