//! Runs one command in each of two guests and streams what they print.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::address::{environment, fill_in};
use crate::guests::{Disk, Echo, Guest, GuestError, Guests, Job, Options, Output, STOCK_WORDS, Task};
use crate::provider::Provider;
use crate::rdma::{Listening, RdmaDevice};
use crate::setup::Setup;

/// Where copied files go, and the directory commands run in.
const HOME: &str = "/root";
/// How long b waits for something in a to listen.
const LISTEN: Duration = Duration::from_secs(15);
/// How often running commands are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Linux's number of the signal that asks a program to end.
const TERMINATE: i32 = 15;
/// How long a program may take to end once asked.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What to run and in which guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Commands {
    /// Command for guest a.
    pub a: String,
    /// Command for guest b.
    pub b: Option<String>,
    /// Files and directories of the host to copy to the guests' `/root`.
    pub copy: Vec<PathBuf>,
    /// How long both may take.
    pub timeout: Duration,
    /// How long a may take to end once b has.
    pub grace: Duration,
    /// What the guests are.
    pub machine: Machine,
}

/// What guests for the user's own use are made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The user's kernel, in place of the stock one.
    pub kernel: Option<PathBuf>,
    /// The user's initramfs, in place of the small guest.
    pub initramfs: Option<PathBuf>,
    /// Raw disks.
    pub disks: Vec<(Option<char>, PathBuf)>,
    /// Words for the kernel command line.
    pub command_line: String,
    /// Memory of each guest, in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs of each guest.
    pub cpus: u8,
    /// What carries RDMA out.
    pub provider: Provider,
}

impl Machine {
    /// Guests as described, from what was made for this run.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn options(&self, setup: &Setup, copy: &[PathBuf]) -> Result<Options> {
        let mut options = setup.options()?;
        options.initramfs.push(setup.stock.extra.clone());
        for source in copy {
            add(&mut options, source).with_context(|| format!("Cannot copy {}", source.display()))?;
        }
        if let Some(kernel) = &self.kernel {
            options.kernel.clone_from(kernel);
        }
        if let Some(initramfs) = &self.initramfs {
            options.initramfs = vec![initramfs.clone()];
        }
        options.disks =
            self.disks.iter().map(|(guest, path)| Disk { path: path.clone(), guest: *guest }).collect();
        options.command_line = format!("{STOCK_WORDS} {}", self.command_line).trim_end().into();
        options.memory_mib = self.memory_mib;
        options.cpus = self.cpus;
        options.capture = true;
        options.mirrored = self.provider.device(setup.way)?;
        Ok(options)
    }
}

/// Adds a file or directory of the host, and the libraries of every program in it.
fn add(options: &mut Options, source: &Path) -> Result<(), GuestError> {
    let name =
        source.canonicalize().map_err(|error| GuestError::File { path: source.into(), source: error })?;
    let place = Path::new(HOME).join(name.file_name().unwrap_or_default());
    options.overlay.tree(source, &place)
}

/// Boots the guests, runs the commands and gives the exit status to end with: that of the first that failed.
///
/// # Errors
///
/// When the guests do not come up, or the time is over.
pub fn run(setup: &Setup, commands: &Commands) -> Result<u8> {
    eprintln!("Starting guests {} …", setup.way.describe());
    let mut options = commands.machine.options(setup, &commands.copy)?;
    options.count = if commands.b.is_some() { 2 } else { 1 };
    let guests = Guests::start(&options)?;
    let status = run_in(&guests, commands);
    if !matches!(status, Ok(0)) {
        guests.keep();
    }
    status
}

fn run_in(guests: &Guests, commands: &Commands) -> Result<u8> {
    let deadline = Instant::now() + commands.timeout;
    let start =
        |guest: &Guest, line: &str| Side::new(guest.start(task(guests, guest, line, commands.timeout)));
    let mut a = start(guests.a(), &commands.a);
    let mut b = None;
    if let Some(line) = &commands.b {
        wait_until_listening(guests.a(), &mut a)?;
        b = Some(start(guests.b(), line));
    }
    let mut sides: Vec<&mut Side> = std::iter::once(&mut a).chain(b.as_mut()).collect();
    finish(&mut sides, commands.grace, deadline)
}

/// Waits for all sides and gives the status of the first that failed by itself.
///
/// Once the last side (the client) has ended, or any has failed, the others get the grace and are stopped then.
fn finish(sides: &mut [&mut Side], grace: Duration, deadline: Instant) -> Result<u8> {
    let mut status = 0;
    let mut stop_at = None;
    loop {
        for side in sides.iter_mut() {
            if let Some(output) = side.poll()? {
                status = if status == 0 { u8::try_from(output.status()).unwrap_or(u8::MAX) } else { status };
            }
        }
        if sides.iter().all(|side| side.job.is_none()) {
            return Ok(status);
        }
        if status != 0 || sides.last().is_some_and(|last| last.job.is_none()) {
            stop_at.get_or_insert(Instant::now() + grace);
        }
        ensure!(Instant::now() < deadline, "The commands did not end in time; --timeout gives them more");
        if stop_at.is_some_and(|at| Instant::now() >= at) {
            sides.iter_mut().try_for_each(|side| side.stop())?;
            return Ok(status);
        }
        std::thread::sleep(TICK);
    }
}

/// Returns once something in a listens, a has ended, or it has been long enough.
fn wait_until_listening(guest: &Guest, a: &mut Side) -> Result<(), GuestError> {
    let mut listening = guest.start(Task::shell(Listening::Anything.wait()).timeout(2 * LISTEN));
    let deadline = Instant::now() + LISTEN;
    while listening.poll()?.is_none() && a.is_running()? && Instant::now() < deadline {
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn task(guests: &Guests, own: &Guest, line: &str, timeout: Duration) -> Task {
    // A guest of the user's making may have no RDMA device; the command will tell.
    let device = RdmaDevice::of(own).ok();
    let peer = guests.all().iter().find(|guest| guest.name() != own.name());
    let line = peer.map_or_else(|| line.to_string(), |peer| fill_in(line, &peer.ip(0)));
    let task = Task::shell(format!("cd {HOME} && {line}")).timeout(timeout).echo(Echo::Prefixed);
    let variables = environment(guests.all(), peer, device.as_ref());
    variables.into_iter().fold(task, |task, (name, value)| task.env(&name, value))
}

/// A command while it runs and after.
struct Side {
    job: Option<Job>,
    ended: Option<Output>,
}

impl Side {
    fn new(job: Job) -> Self {
        Self { job: Some(job), ended: None }
    }

    /// What came of it, once: when it has ended since the last look.
    fn poll(&mut self) -> Result<Option<Output>, GuestError> {
        self.is_running()?;
        Ok(self.ended.take())
    }

    fn is_running(&mut self) -> Result<bool, GuestError> {
        if let Some(job) = &mut self.job
            && let Some(output) = job.poll()?
        {
            self.ended = Some(output);
            self.job = None;
        }
        Ok(self.job.is_some())
    }

    /// Asks it to end, and insists after a while.
    fn stop(&mut self) -> Result<(), GuestError> {
        let Some(mut job) = self.job.take() else { return Ok(()) };
        job.signal(TERMINATE);
        let deadline = Instant::now() + LAST_WORDS;
        while job.poll()?.is_none() {
            if Instant::now() >= deadline {
                return job.kill().map(drop);
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }
}
