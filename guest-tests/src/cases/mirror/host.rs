//! What guests have on the host, and that none of it outlives them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cases::lifecycle::{REBOOT_TIMEOUT, both_end, start_load, still_works, unload_under_load};
use crate::guests::{Guest, Task};
use crate::rdma::{HostObject, HostRdma, Listening, PairOutput, bandwidth};
use crate::suite::{Case, Stand};

/// How long the host may take to follow a guest: it forgets an address 30 s after it was last renewed.
const SETTLING: Duration = Duration::from_secs(60);
/// Kinds of objects that programs have there.
const KINDS: [&str; 5] = ["qp", "cq", "mr", "pd", "srq"];
/// Bytes of payload in a packet of the host device at most; its interface has the usual MTU.
const PATH_MTU: u64 = 1024;
/// What `ibv_asyncwatch` calls a device that is gone.
const FATAL: &str = "IBV_EVENT_DEVICE_FATAL";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("mirror/host-lists-what-programs-have-and-counts-what-they-move", seen_on_the_host),
        Case::new("mirror/driver-that-unloads-under-load-leaves-nothing-on-the-host", |stand| {
            leaves_nothing(stand, unload_under_load)
        }),
        Case::new("mirror/guest-that-crashes-under-load-leaves-nothing-on-the-host", |stand| {
            leaves_nothing(stand, crash_under_load)
        }),
    ]
}

/// Those that cost a guest, or the host its device.
pub fn last_cases() -> Vec<Case> {
    vec![
        Case::new("mirror/monitor-that-is-killed-under-load-leaves-nothing-on-the-host", killed),
        Case::new("mirror/device-that-is-removed-under-load-lets-the-machine-live", removed),
    ]
}

/// Whether the host's interface has the address of a guest.
pub fn has_address(guest: &Guest) -> Result<bool> {
    Ok(HostRdma::make()?.addresses()?.contains(&format!("{}/32", guest.ip(0))))
}

/// Waits until it is so.
pub fn settles(is_so: impl Fn() -> Result<bool>, what: &str) -> Result<()> {
    let deadline = Instant::now() + SETTLING;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "Of the host was not seen: {what}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Everything that guests have on the device.
fn objects(host: &HostRdma) -> Result<Vec<HostObject>> {
    let kinds = KINDS.map(|kind| host.objects(kind));
    Ok(kinds.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

fn nothing_is_left(host: &HostRdma) -> Result<()> {
    settles(|| Ok(objects(host)?.is_empty()), "no object of any program")
}

fn seen_on_the_host(stand: &mut Stand<'_>) -> Result<()> {
    let host = HostRdma::make()?;
    nothing_is_left(&host)?;
    let before = host.counter("sent_pkts")?;
    let load = start_load(stand)?;
    for guest in stand.guests.all() {
        for kind in ["qp", "cq", "mr"] {
            let listed = host.objects(kind)?;
            ensure!(
                listed.iter().any(|object| object.is_of(guest.vm_id())),
                "The host lists no {kind} of guest {} among {listed:?}",
                guest.name()
            );
        }
    }
    let PairOutput { client, .. } = both_end(load)?;
    let row = bandwidth(&client.out).with_context(|| format!("ib_write_bw printed\n{}", client.out))?;
    let (payload, sent) = (row.bytes * row.iterations, host.counter("sent_pkts")? - before);
    ensure!(sent >= payload / PATH_MTU, "The device counts {sent} packets for {payload} bytes");
    nothing_is_left(&host)
}

fn leaves_nothing(stand: &mut Stand<'_>, run: fn(&mut Stand<'_>) -> Result<()>) -> Result<()> {
    run(stand)?;
    nothing_is_left(&HostRdma::make()?)
}

fn crash_under_load(stand: &mut Stand<'_>) -> Result<()> {
    let [in_a, in_b] = start_load(stand)?;
    let (b, lives) = (stand.b(), stand.b().lives());
    let crash = b.start("echo c > /proc/sysrq-trigger");
    b.wait_ready(lives + 1, REBOOT_TIMEOUT)?;
    // The load in b went with it.
    drop((in_b, crash));
    in_a.kill()?;
    still_works(stand)
}

fn killed(stand: &mut Stand<'_>) -> Result<()> {
    let host = HostRdma::make()?;
    let [in_a, _in_b] = start_load(stand)?;
    let (a, b) = (stand.a(), stand.b());
    ensure!(has_address(b)?, "The host does not have {}", b.ip(0));
    b.kill();
    let is_of_a = |object: &HostObject| object.is_of(a.vm_id());
    settles(|| Ok(objects(&host)?.iter().all(is_of_a)), "no object of the machine that was killed")?;
    in_a.kill().context("The other machine suffers")?;
    nothing_is_left(&host)?;
    settles(|| Ok(!has_address(b)?), "no address of the machine that was killed")
}

fn removed(stand: &mut Stand<'_>) -> Result<()> {
    let host = HostRdma::make()?;
    let a = stand.a();
    let device = stand.device(a)?;
    let mut watch = a.start(format!("ibv_asyncwatch -d {}", device.name));
    let line = format!("ib_write_bw -d {} -x {} -D 120 -F -u 18", device.name, device.ipv4);
    let server = a.start(line.clone());
    a.must(Listening::Tcp(18515).wait())?;
    let client = a.start(format!("{line} {}", a.ip(0)));
    settles(|| Ok(host.objects("qp")?.len() == 2), "the queue pairs of two programs")?;
    let gone = host.remove();
    // The stage may boot again, and needs one then.
    HostRdma::make()?;
    gone.context("The machine does not let go of a device that is removed")?;
    if let Some(output) = watch.wait_for(FATAL)? {
        anyhow::bail!("The guest was not told; ibv_asyncwatch ended with {}", output.out);
    }
    watch.kill()?;
    for mut program in [server, client] {
        program.limit(SETTLING);
        let output = program.wait()?;
        ensure!(!output.succeeded(), "A program did not notice:\n{}", output.out);
    }
    ensure!(!has_address(a)?, "The host still has {}", a.ip(0));
    a.must(Task::shell(format!("ping -c 2 -W 10 {}", a.ip(0)))).context("The machine does not live")?;
    Ok(())
}
