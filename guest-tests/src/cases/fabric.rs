//! A guest whose disk is at a target, which is killed, drained and started again meanwhile.

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::guests::{Guests, Options, Process, Task};
use crate::suite::{Case, Stand};

/// Size of the disk, and what it grows to, in MiB.
const SIZE_MIB: u64 = 256;
const LARGER_MIB: u64 = 320;
/// How long a target may take to come up or to leave.
const TARGET_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the guest's requests wait for a target.
const LOSS_TIMEOUT: u32 = 300;
/// How often the target is killed.
const KILLS: usize = 3;

pub fn cases() -> Vec<Case> {
    vec![Case::new("fabric/disk-at-a-target-that-is-killed-drained-and-grows", disk)]
}

/// A target and its one disk.
struct Target {
    verbena: PathBuf,
    image: PathBuf,
    log: PathBuf,
    /// Where it listens each time it is started.
    url: String,
    process: Option<Process>,
}

impl Target {
    fn start(verbena: &Path, scratch: &Path) -> Result<Self> {
        let image = scratch.join("fabric.img");
        File::create(&image)?.set_len(SIZE_MIB << 20)?;
        // A port that was free a moment ago; the target takes it again after each restart.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = format!("tcp://127.0.0.1:{port}");
        let log = scratch.join("target.log");
        let mut target = Self { verbena: verbena.into(), image, log, url, process: None };
        target.restart()?;
        Ok(target)
    }

    fn restart(&mut self) -> Result<()> {
        let mut command = Command::new(&self.verbena);
        let export = format!("name=disk0,path={},queues=2,id=far-away", self.image.display());
        command.args(["target", "--listen", &self.url, "--drain", "60", "--export", &export]);
        let process = Process::start(command, &self.log, None)?;
        let start = Instant::now();
        while !process.printed().contains("listening at") {
            ensure!(start.elapsed() < TARGET_TIMEOUT, "The target does not come up: {}", process.printed());
            thread::sleep(Duration::from_millis(20));
        }
        self.process = Some(process);
        Ok(())
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was started")
    }

    fn kill(&mut self) -> Result<()> {
        self.process().signal(Signal::KILL);
        self.process().wait(TARGET_TIMEOUT).context("The target outlives SIGKILL")?;
        self.restart()
    }

    fn drain(&mut self) -> Result<()> {
        self.process().signal(Signal::TERM);
        let status = self.process().wait(TARGET_TIMEOUT).context("The target does not leave")?;
        ensure!(status.code() == Some(0), "The target ended with {status}: {}", self.process().printed());
        self.restart()
    }

    fn disk(&self) -> String {
        format!("{}/disk0", self.url)
    }
}

fn disk(stand: &mut Stand<'_>) -> Result<()> {
    let mut options = stand.setup.options()?;
    options.initramfs.push(stand.setup.stock.extra.clone());
    let mut target = Target::start(&options.verbena, stand.scratch)?;
    options.extra_arguments =
        vec!["--fabric-disk".into(), format!("target={},timeout={LOSS_TIMEOUT}", target.disk())];
    let mut guests = Guests::start(&Options { count: 1, cpus: 2, nics: Vec::new(), ..options.clone() })?;
    let outcome = use_disk(&guests, &mut target);
    if outcome.is_err() {
        guests.keep();
    }
    outcome?;
    let written = guests.a().must("sync; sha256sum < /dev/vda")?;
    guests.all_mut()[0].power_off(Duration::from_secs(180)).context("The VMM did not end")?;
    // The host's own initiator reads what the guest has written.
    let reader = Command::new(&options.verbena)
        .args(["fabric", "read", &target.disk()])
        .stdout(Stdio::piped())
        .spawn()
        .context("Cannot start verbena fabric")?;
    let read = Command::new("sha256sum").stdin(reader.stdout.context("It has no output")?).output()?;
    let read = String::from_utf8_lossy(&read.stdout).into_owned();
    ensure!(read == written, "The host reads {read}, the guest {written}");
    Ok(())
}

fn use_disk(guests: &Guests, target: &mut Target) -> Result<()> {
    let guest = guests.a();
    let serial = guest.must("cat /sys/block/vda/serial; echo; ls -d /sys/block/vda/mq/* | wc -l")?;
    ensure!(serial.split_whitespace().eq(["far-away", "2"]), "The disk is {serial}");
    guest.must("modprobe ext4; mke2fs -F /dev/vda > /dev/null && mkdir -p /mnt/far && mount -t ext4 /dev/vda /mnt/far")?;

    // A tree is copied while the target is killed and started again.
    let copy = "for n in 1 2 3; do cp -r /usr /mnt/far/usr$n && sync || exit 1; done";
    let mut job = guest.start(Task::shell(copy).timeout(Duration::from_secs(600)));
    for _ in 0..KILLS {
        thread::sleep(Duration::from_secs(2));
        target.kill()?;
    }
    thread::sleep(Duration::from_secs(1));
    target.drain()?;
    job.limit(Duration::from_secs(600));
    let copied = job.wait()?;
    ensure!(copied.succeeded(), "Copying failed: {copied:?}");
    target.drain()?;

    let sums = "find . -type f -exec sha256sum {} + | sort | sha256sum";
    let expected = guest.must(format!("cd /usr && {sums}"))?;
    guest.must("umount /mnt/far && echo 3 > /proc/sys/vm/drop_caches && mount -t ext4 /dev/vda /mnt/far")?;
    for n in 1..=3 {
        let found = guest.must(format!("cd /mnt/far/usr{n} && {sums}"))?;
        ensure!(found == expected, "Copy {n} of the tree is not what was copied");
    }
    let errors = guest.must("dmesg | grep -ci 'I/O error' || true")?;
    ensure!(errors.trim() == "0", "The guest has seen {} errors", errors.trim());
    guest.must("umount /mnt/far")?;

    // The disk grows.
    OpenOptions::new().write(true).open(&target.image)?.set_len(LARGER_MIB << 20)?;
    target.process().signal(Signal::HUP);
    let sectors = LARGER_MIB << 11;
    guest.must(format!(
        "for n in $(seq 100); do test $(cat /sys/block/vda/size) = {sectors} && exit 0; sleep 0.2; done; exit 1"
    ))?;
    Ok(())
}
