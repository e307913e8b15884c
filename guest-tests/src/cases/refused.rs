//! Programs that want what the stock guest driver does not have: they say so and end, and leave nothing behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest_protocol::message::Ending;

use super::inspect::show;
use super::objects::Objects;
use crate::guests::{Output, Task};
use crate::rdma::{Listening, Program, Style};
use crate::suite::{Case, Stand};

/// A program that takes so long has not failed at once, even where everything is slow.
const AT_ONCE: Duration = Duration::from_secs(60);

/// What a request without a key fails of, and what `rdma_rxe` says of it.
const LOCAL_ERRORS: [&str; 2] = ["completion LOC_PROT_ERR", "completion LOC_QP_OP_ERR"];

/// Programs that notice before they look for a peer: a name, and the line with `DEVICE` and `GID` to be filled in.
const ALONE: &[(&str, &str)] = &[
    ("unreliable-connections", "ibv_uc_pingpong -d DEVICE -g GID"),
    ("extended-connections", "ibv_xsrq_pingpong -d DEVICE -g GID"),
    ("on-demand-paging", "ibv_rc_pingpong -d DEVICE -g GID -o"),
    ("timestamps", "ibv_rc_pingpong -d DEVICE -g GID -t"),
    ("device-memory", "ibv_rc_pingpong -d DEVICE -g GID -j"),
    ("new-post-send-calls", "ibv_rc_pingpong -d DEVICE -g GID -N"),
    ("raw-packets", "raw_ethernet_bw --server -d DEVICE -F -E 02:00:00:00:00:09"),
];

/// Programs that meet their peer before.
const TOGETHER: &[(&str, &str)] = &[
    ("unreliable-connections-of-perftest", "ib_send_bw -c UC"),
    ("extended-connections-of-perftest", "ib_send_bw -c XRC"),
];

pub fn cases() -> Vec<Case> {
    let alone = ALONE.iter().map(|&(what, line)| {
        Case::new(format!("refused/{what}"), move |stand| {
            leaving_nothing(stand, |stand| run_alone(stand, line))
        })
    });
    let together = TOGETHER.iter().map(|&(what, line)| {
        Case::new(format!("refused/{what}"), move |stand| {
            leaving_nothing(stand, |stand| run_together(stand, line))
        })
    });
    let more = [
        Case::new("refused/multicast", |stand| leaving_nothing(stand, multicast)),
        Case::new("refused/inline-data-nobody-asked-for", |stand| leaving_nothing(stand, unasked_inline)),
    ];
    alone.chain(together).chain(more).collect()
}

fn leaving_nothing(stand: &mut Stand<'_>, run: impl Fn(&Stand<'_>) -> Result<()>) -> Result<()> {
    let before = Objects::of_all(stand)?;
    run(stand)?;
    before.are_all(stand)
}

fn run_alone(stand: &Stand<'_>, line: &str) -> Result<()> {
    let end = stand.end(stand.a(), 0)?;
    let line = line.replace("DEVICE", &end.device).replace("GID", &end.gid.to_string());
    failed(&stand.a().run(Task::shell(line).timeout(AT_ONCE))?)
}

/// mckey says what happened, and calls that a success.
fn multicast(stand: &Stand<'_>) -> Result<()> {
    let line = format!("mckey -m 239.1.1.1 -b {}", stand.a().ip(0));
    let output = stand.a().run(Task::shell(line).timeout(AT_ONCE))?;
    ensure!(output.out.contains("RDMA_CM_EVENT_MULTICAST_ERROR"), "A multicast group was joined: {output:?}");
    Ok(())
}

/// rdma_xclient sends inline without having asked for room, so the request has no key. It looks at no status and waits for
/// an answer to its goodbye, and the server for the message.
fn unasked_inline(stand: &Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let latest = || anyhow::Ok(show(stand, b)?.failures.pop());
    let before = latest()?.map(|failure| failure.at_ms);
    let server = a.start("rdma_xserver");
    a.must(Listening::Cm.wait())?;
    let client = b.start(Task::shell(format!("rdma_xclient -s {}", a.ip(0))).timeout(AT_ONCE));
    let failed = loop {
        match latest()? {
            Some(failed) if before.is_none_or(|before| failed.at_ms > before) => break failed.failure,
            _ => client.pause().context("The request did not fail")?,
        }
    };
    // A host device has its own opinion of what is wrong with the request.
    let causes = if stand.guests.are_mirrored() { &LOCAL_ERRORS[..] } else { &LOCAL_ERRORS[..1] };
    ensure!(causes.contains(&&failed.cause[..]), "The failure is {failed:?}");
    client.kill()?;
    server.kill()?;
    Ok(())
}

fn run_together(stand: &Stand<'_>, line: &'static str) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let mut pair = Program::new(Style::Perftest, line).pair(&stand.end(a, 0)?, &stand.end(b, 0)?);
    pair.client = pair.client.timeout(AT_ONCE);
    let both = pair.run(a, b)?;
    failed(&both.server)?;
    failed(&both.client)
}

/// By a status and with a reason, not by a signal.
fn failed(output: &Output) -> Result<()> {
    let reason = !output.err.trim().is_empty() || !output.out.trim().is_empty();
    let status = matches!(output.ending, Ending::Status(1..));
    ensure!(status && reason, "It was to fail with a status and a reason: {output:?}");
    Ok(())
}
