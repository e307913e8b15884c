//! Looking into a running machine from its host.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use vmm_api::{QueuePair, RdmaDevice, RdmaReport};

use crate::guests::{Guest, Job, Task};
use crate::rdma::Listening;
use crate::suite::{Case, Stand};

/// How long the ping-pong may take to connect, in the lab on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// TCP port on which both ends of the ping-pong meet.
const PORT: u16 = 18515;

pub fn cases() -> Vec<Case> {
    vec![Case::new("inspect/rdma-show-has-a-running-ping-pong-with-its-peer", shows_ping_pong)]
}

fn shows_ping_pong(stand: &mut Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    // It runs until it has been looked at.
    let line = |guest| {
        let device = stand.device(guest)?;
        anyhow::Ok(format!("ibv_rc_pingpong -n 100000000 -d {} -g {}", device.name, device.ipv4))
    };
    let (server, client) = (line(a)?, format!("{} {}", line(b)?, a.ip(0)));
    let mut server = a.start(Task::shell(server).timeout(TIMEOUT));
    a.must(Task::shell(Listening::Tcp(PORT).wait()).timeout(TIMEOUT))?;
    let mut client = b.start(Task::shell(client).timeout(TIMEOUT));

    let (mine, theirs) = loop {
        let devices = (show(stand, a)?, show(stand, b)?);
        if let (Some(mine), Some(theirs)) = (connected(&devices.0), connected(&devices.1)) {
            break (mine.clone(), theirs.clone());
        }
        still_runs(&mut server)?;
        still_runs(&mut client)?;
        client.pause()?;
    };
    ensure!(mine.peer_qpn == Some(theirs.qpn), "{mine:?} is not connected to {theirs:?}");
    ensure!(theirs.peer_qpn == Some(mine.qpn), "{theirs:?} is not connected to {mine:?}");
    for (qp, own, peer) in [(&mine, a, b), (&theirs, b, a)] {
        ensure!(qp.peer_gid == Some(mapped(peer)), "{qp:?} has another peer than {}", mapped(peer));
        ensure!(qp.source_gid == Some(mapped(own)), "{qp:?} has another source than {}", mapped(own));
        ensure!(qp.failure.is_none(), "{qp:?} has failed");
    }
    // Packets are under way: numbers move on.
    while connected(&show(stand, a)?).is_some_and(|now| now.send_psn == mine.send_psn) {
        still_runs(&mut client)?;
        client.pause()?;
    }
    client.kill()?;
    server.kill()?;
    table_names_the_port(stand)
}

fn table_names_the_port(stand: &Stand<'_>) -> Result<()> {
    let text = verbena(stand, stand.a(), &["rdma", "show"])?;
    ensure!(text.contains("port ACTIVE") && text.contains(&mapped(stand.a())), "The table is\n{text}");
    Ok(())
}

fn still_runs(job: &mut Job) -> Result<()> {
    match job.poll()? {
        None => Ok(()),
        Some(output) => bail!("The ping-pong ended before its queue pairs were seen: {output:?}"),
    }
}

/// The RDMA device of a guest as its monitor shows it.
pub fn show(stand: &Stand<'_>, guest: &Guest) -> Result<RdmaDevice> {
    let text = verbena(stand, guest, &["rdma", "show", "--json"])?;
    let report: RdmaReport =
        serde_json::from_str(&text).with_context(|| format!("This is no report:\n{text}"))?;
    report.devices.into_iter().next().context("The machine has no RDMA device")
}

fn connected(device: &RdmaDevice) -> Option<&QueuePair> {
    device.queue_pairs.iter().find(|qp| qp.service == "RC" && qp.state == "RTS")
}

/// A guest's first IPv4 address as a GID.
fn mapped(guest: &Guest) -> String {
    format!("::ffff:{}", guest.ip(0))
}

fn verbena(stand: &Stand<'_>, guest: &Guest, arguments: &[&str]) -> Result<String> {
    let output = Command::new(&stand.setup.programs.verbena)
        .args(arguments)
        .arg("--api-socket")
        .arg(guest.api_socket())
        .output()
        .context("Cannot start verbena")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "verbena {arguments:?}: {}: {complaint}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
