//! Running `verbena` as a person would, with tiny bare guests.

// Each test program uses a part of this.
#![allow(dead_code)]

pub mod asm;
pub mod authority;
pub mod machine;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Where programs are linked to.
const ENTRY: u64 = 0x20_0000;
/// Longest any of these guests may run.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether guests can be run here; says so if not.
pub fn kvm() -> bool {
    let usable = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &usable {
        eprintln!("SKIPPED: /dev/kvm cannot be used: {error}");
    }
    usable.is_ok()
}

/// A static ELF program of one segment with `code`.
pub fn elf(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let size = code.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([2, 0, 0x3e, 0, 1, 0, 0, 0]);
    for word in [ENTRY, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    for word in [HEADERS, ENTRY, ENTRY, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

/// A directory with a guest program in it.
pub struct Guest {
    pub dir: tempfile::TempDir,
}

impl Guest {
    pub fn new(code: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("guest"), elf(code)).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `verbena run` with the guest, and little memory.
    pub fn command(&self) -> Command {
        self.command_of("run")
    }

    /// Another command with the options of the machine.
    pub fn command_of(&self, word: &str) -> Command {
        let mut command = verbena();
        command.args([word, "--memory", "8M", "--rng", "off", "--bare"]).arg(self.path("guest"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command().args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

pub fn verbena() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.stderr(Stdio::piped());
    command
}

/// Waits for `child`, but not forever.
pub fn finish(mut child: Child) -> Output {
    wait(&mut child);
    child.wait_with_output().unwrap()
}

pub fn wait(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("verbena did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Retries `attempt` until it gives something.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn code_of(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {}", stderr(output)))
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn send_signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

pub fn write_file(path: &Path, bytes: &[u8]) {
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}
