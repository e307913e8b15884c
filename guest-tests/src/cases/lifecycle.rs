//! Guests and devices that go away in the middle of things.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::guests::Task;
use crate::rdma::{Listening, Pair, PairOutput};
use crate::suite::{Case, Outcome, Stand};

/// How long a guest may take to restart.
pub(super) const REBOOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Runs long enough to be interrupted, in seconds.
const LOAD: &str = "-D 20 -F -u 18";
/// How long a load may take that ends when it is told to.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Returns once the load's ends are connected.
const CONNECTED: &str =
    "until rdma resource show qp | grep 'state RTS' | grep -q ib_write_bw; do sleep 0.1; done";
/// How long that may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

pub fn cases() -> Vec<Case> {
    vec![
        Case::may_skip("lifecycle/function-reset-brings-the-device-back", function_reset),
        Case::new("lifecycle/links-go-down-and-up-under-load", flap_under_load),
        Case::new("lifecycle/driver-unloads-under-load", unload_under_load),
        Case::new("lifecycle/guest-reboots-under-load", reboot_under_load),
        Case::new("lifecycle/guest-starts-a-kernel-by-kexec-under-load", kexec_under_load),
    ]
}

/// Makes sure that both guests can still talk.
pub(super) fn still_works(stand: &Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let (of_a, of_b) = (stand.device(a)?, stand.device(b)?);
    b.must("ping -c 2 -W 10 a").context("The NIC does not work any more")?;
    let server = format!("ibv_rc_pingpong -d {} -g {} -n 50 -c", of_a.name, of_a.ipv4);
    let client = format!("ibv_rc_pingpong -d {} -g {} -n 50 -c {}", of_b.name, of_b.ipv4, a.ip(0));
    let pair = Pair { server: server.into(), client: client.into(), listening: Listening::Tcp(18515) };
    pair.must(a, b).context("The RDMA device does not work any more")?;
    Ok(())
}

fn function_reset(stand: &mut Stand<'_>) -> Result<Outcome> {
    let device = stand.device(stand.a())?;
    let link = format!("/sys/class/infiniband/{}/device", device.name);
    let function = stand.a().must(format!("basename $(readlink -f {link})"))?;
    let function = function.trim();
    let reset = format!("/sys/bus/pci/devices/{function}/reset");
    if !stand.a().run(format!("test -w {reset}"))?.succeeded() {
        return Ok(Outcome::Skipped(format!("{function} offers the guest no reset")));
    }
    // The driver has no part in a reset, so it lets go of the function before and takes it again after.
    let driver = "/sys/bus/pci/drivers/vmw_pvrdma";
    stand.a().must(format!(
        "echo {function} > {driver}/unbind && echo 1 > {reset} && echo {function} > {driver}/bind"
    ))?;
    still_works(stand).map(|()| Outcome::Passed)
}

/// Requesters have retries for longer than a link is down, and the load goes on as if nothing had been.
///
/// It is the verifier, since perftest takes a short read of its own TCP connection for the end of its peer.
fn flap_under_load(stand: &mut Stand<'_>) -> Result<()> {
    const ENOUGH: &str = "/tmp/links-have-flapped";
    let (a, b) = (stand.a(), stand.b());
    let server = a.start(Task::shell("while verbena-verify; do :; done").timeout(LOAD_TIMEOUT));
    let run = format!("verbena-verify {} --op write --size 16385 --count 500", a.ip(0));
    let line = format!("until test -e {ENOUGH}; do {run} || exit 1; done");
    let mut client = b.start(Task::shell(line).timeout(LOAD_TIMEOUT));
    for guest in stand.guests.all() {
        guest.must("sleep 2; ip link set eth0 down && sleep 2 && ip link set eth0 up && sleep 2")?;
        if let Some(ended) = client.poll()? {
            bail!("The load ended: {:?} {:?}", ended.success(), server.kill()?);
        }
    }
    b.must(format!("touch {ENOUGH}"))?;
    let client = client.wait()?.success();
    let server = server.kill()?;
    client.with_context(|| format!("The other end said {:?}", server.err))?;
    still_works(stand)
}

pub(super) fn unload_under_load(stand: &mut Stand<'_>) -> Result<()> {
    let load = start_load(stand)?;
    // The program holds the driver, so it is unbound rather than unloaded; the kernel takes the device away from it.
    let device = stand.device(stand.b())?;
    let line = format!(
        "f=$(basename $(readlink -f /sys/class/infiniband/{}/device)) && cd /sys/bus/pci/drivers/vmw_pvrdma && \
         echo $f > unbind && echo $f > bind",
        device.name
    );
    let taken = stand.b().must(Task::shell(line).timeout(Duration::from_secs(60)));
    let ended = load.map(crate::guests::Job::kill);
    taken?;
    for output in ended {
        output?;
    }
    still_works(stand)
}

fn reboot_under_load(stand: &mut Stand<'_>) -> Result<()> {
    let [in_a, in_b] = start_load(stand)?;
    let lives = stand.b().lives();
    // The load in b goes with it.
    drop(in_b);
    stand.b().reboot(REBOOT_TIMEOUT)?;
    ensure!(stand.b().lives() == lives + 1, "The guest came up {} times", stand.b().lives() - lives);
    in_a.kill()?;
    still_works(stand)
}

/// The new kernel finds a device that its predecessor's driver left as it was: no reset, no unbind.
fn kexec_under_load(stand: &mut Stand<'_>) -> Result<()> {
    // Loaded beforehand, so that the load still runs when the kernel goes. Checksums of the images would take longer
    // than the boot. The word tells the new kernel from one that a reset of the machine has started.
    stand.b().must(
        "kexec --load /dev/vda --args-linux --initrd=/dev/vdb --append=\"$(cat /proc/cmdline) verbena.kexec\" --no-checks",
    )?;
    let [in_a, in_b] = start_load(stand)?;
    let lives = stand.b().lives();
    let jump = stand.b().start("kexec --exec --no-ifdown");
    stand.b().wait_ready(lives + 1, REBOOT_TIMEOUT)?;
    drop((in_b, jump));
    ensure!(stand.b().lives() == lives + 1, "The guest came up {} times", stand.b().lives() - lives);
    let words = stand.b().must("cat /proc/cmdline")?;
    ensure!(
        words.contains("verbena.kexec"),
        "The machine was reset, its kernel has the command line {words}"
    );
    in_a.kill()?;
    still_works(stand)
}

/// Waits until both ends of a load have ended well.
pub(super) fn both_end(load: [crate::guests::Job; 2]) -> Result<PairOutput> {
    let [server, client] = load.map(crate::guests::Job::wait);
    Ok(PairOutput { server: server?, client: client? }.success()?)
}

/// Starts a bandwidth test that would run for a while: the server's job in a, then the client's in b.
pub(super) fn start_load(stand: &Stand<'_>) -> Result<[crate::guests::Job; 2]> {
    let (a, b) = (stand.a(), stand.b());
    let (of_a, of_b) = (stand.device(a)?, stand.device(b)?);
    let server = a.start(format!("ib_write_bw -d {} -x {} {LOAD}", of_a.name, of_a.ipv4));
    a.must(Listening::Tcp(18515).wait())?;
    let client = b.start(format!("ib_write_bw -d {} -x {} {LOAD} {}", of_b.name, of_b.ipv4, a.ip(0)));
    // The guest is asked, since the program keeps what it prints until it ends.
    b.must(Task::shell(CONNECTED).timeout(CONNECT_TIMEOUT)).context("The load did not start")?;
    std::thread::sleep(Duration::from_secs(2));
    Ok([server, client])
}
