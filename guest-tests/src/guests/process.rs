//! Processes of the host that belong to a set of guests, none of which may outlive it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::GuestError;

/// Process groups that live, and a directory to remove with each if one belongs to it.
static LIVE: Mutex<BTreeMap<u32, Option<PathBuf>>> = Mutex::new(BTreeMap::new());

/// A child in a process group of its own; dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in the file `log`. `scratch` is removed if a signal ends this program.
    pub fn start(mut command: Command, log: &Path, scratch: Option<&Path>) -> Result<Self, GuestError> {
        let file = |source| GuestError::File { path: log.into(), source };
        let out = File::create(log).map_err(file)?;
        let err = out.try_clone().map_err(file)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command
            .spawn()
            .map_err(|source| GuestError::Spawn { program: command.get_program().into(), source })?;
        live().insert(child.id(), scratch.map(Into::into));
        Ok(Self { child, log: log.into() })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has ended, but leaves its exit status to [`Process::wait`].
    pub fn settle(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        while let Ok(None) = waitid(WaitId::Pid(id), options)
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has printed.
    pub fn printed(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Sends a signal to it and its children.
    pub fn signal(&self, signal: Signal) {
        kill_group(self.child.id(), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may hold more than the child, so it is killed even when the child has ended.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        live().remove(&self.child.id());
    }
}

fn live() -> std::sync::MutexGuard<'static, BTreeMap<u32, Option<PathBuf>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill_group(leader: u32, signal: Signal) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// Makes an interrupt of this program end every guest process first. To be called once, early in `main`.
///
/// # Errors
///
/// When the system refuses the signal handlers.
pub fn end_all_on_signal() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for (leader, scratch) in live().iter() {
                kill_group(*leader, Signal::KILL);
                scratch.as_ref().map(std::fs::remove_dir_all);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_process_takes_its_children_along() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let process = Process::start(command, &log, None).unwrap();
        while process.printed().is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        let grandchild = process.printed().trim().to_string();
        drop(process);
        let stat = format!("/proc/{grandchild}/stat");
        let gone = |_: &()| std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !gone(&()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(gone(&()));
    }

    #[test]
    fn program_that_does_not_exist_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = Process::start(Command::new("/nowhere/verbena"), &directory.path().join("log"), None);
        assert_eq!(error.unwrap_err().to_string(), "Cannot start /nowhere/verbena");
    }
}
