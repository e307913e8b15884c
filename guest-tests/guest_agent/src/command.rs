//! One command: its process, and the threads that read its output and wait for its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use guest_protocol::message::{CommandId, Ending, Exec, MAX_OUTPUT, Report, Stream, Streams};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::line::Event;

/// Output that may wait for the line, in bytes per command. The line is slow; a program that prints faster waits.
const CREDIT: usize = 64 * 1024;

/// A command that runs.
pub struct Running {
    /// Its process, which leads a process group.
    pub pid: u32,
    /// What it may still print before it has to wait for the line.
    pub credit: Arc<Credit>,
    input: Option<Sender<Vec<u8>>>,
}

impl Running {
    /// Hands bytes to its input; none closes it.
    pub fn input(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            self.input = None;
        } else if let Some(input) = &self.input {
            let _ = input.send(bytes);
        }
    }
}

/// Counts output that waits for the line.
pub struct Credit {
    left: Mutex<usize>,
    changed: Condvar,
}

impl Credit {
    fn new() -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(CREDIT), changed: Condvar::new() })
    }

    fn take(&self, amount: usize) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left =
            self.changed.wait_while(left, |left| *left < amount).unwrap_or_else(PoisonError::into_inner);
        *left -= amount;
    }

    /// Lets the command print that much more.
    pub fn give_back(&self, amount: usize) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += amount;
        self.changed.notify_all();
    }
}

/// A process with its pipes.
struct Started {
    child: Child,
    input: Option<File>,
    outputs: Vec<(Stream, File)>,
}

/// Starts a command; its output and end go to `events`.
///
/// # Errors
///
/// Why it could not be started, in words.
pub fn start(exec: Exec, events: Sender<Event>) -> Result<Running, String> {
    let [program, arguments @ ..] = &exec.argv[..] else { return Err("The command has no program".into()) };
    let describe = |e: io::Error| format!("Cannot start {program}: {e}");
    let started = match exec.streams {
        Streams::Terminal { rows, columns } => on_terminal(&exec, rows, columns),
        streams => {
            let mut command = Command::new(program);
            command.args(arguments).envs(exec.env.iter().cloned());
            on_pipes(command, streams == Streams::Piped)
        }
    }
    .map_err(describe)?;
    Ok(watch(exec.id, started, events))
}

fn on_pipes(mut command: Command, with_input: bool) -> io::Result<Started> {
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if with_input { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn()?;
    let file = |end: OwnedFd| File::from(end);
    let out = child.stdout.take().map(|end| (Stream::Out, file(end.into())));
    let err = child.stderr.take().map(|end| (Stream::Err, file(end.into())));
    let input = child.stdin.take().map(|end| file(end.into()));
    Ok(Started { child, input, outputs: out.into_iter().chain(err).collect() })
}

/// A new session whose controlling terminal is the far end of a pseudo-terminal. `setsid -c` of the guest's own
/// tools makes it so, which spares code between fork and exec here.
fn on_terminal(exec: &Exec, rows: u16, columns: u16) -> io::Result<Started> {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&near)?;
    unlockpt(&near)?;
    tcsetwinsize(&near, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let path = ptsname(&near, Vec::new())?.into_string().map_err(io::Error::other)?;
    let far = File::options().read(true).write(true).open(path)?;
    let mut command = Command::new("setsid");
    command.arg("-c").args(&exec.argv).envs(exec.env.iter().cloned());
    command.stdin(far.try_clone()?).stdout(far.try_clone()?).stderr(far);
    let child = command.spawn()?;
    let near = File::from(near);
    Ok(Started { child, input: Some(near.try_clone()?), outputs: vec![(Stream::Out, near)] })
}

fn watch(id: CommandId, started: Started, events: Sender<Event>) -> Running {
    let Started { mut child, input, outputs } = started;
    let pid = child.id();
    let credit = Credit::new();
    let readers: Vec<JoinHandle<()>> = outputs
        .into_iter()
        .map(|(stream, file)| {
            let (events, credit) = (events.clone(), Arc::clone(&credit));
            thread::spawn(move || read_output(id, stream, file, &events, &credit))
        })
        .collect();
    let input = input.map(|file| {
        let (sender, receiver) = mpsc::channel::<Vec<u8>>();
        thread::spawn(move || feed(file, receiver));
        sender
    });
    thread::spawn(move || {
        let ending = child.wait().map_or_else(|e| Ending::NotStarted(e.to_string()), how_it_ended);
        for reader in readers {
            let _ = reader.join();
        }
        let _ = events.send(Event::Report(Report::Ended { id, ending }));
    });
    Running { pid, credit, input }
}

fn how_it_ended(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Status(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Status(-1),
    }
}

/// Reads until the last holder of the other end closes it. A terminal without a holder says EIO, which is its end.
fn read_output(id: CommandId, stream: Stream, mut file: File, events: &Sender<Event>, credit: &Credit) {
    let mut buffer = [0; MAX_OUTPUT];
    loop {
        let length = match file.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        credit.take(length);
        let report = Report::Output { id, stream, bytes: buffer[..length].to_vec() };
        if events.send(Event::Report(report)).is_err() {
            return;
        }
    }
}

fn feed(mut file: File, input: mpsc::Receiver<Vec<u8>>) {
    for bytes in input {
        if file.write_all(&bytes).is_err() {
            return;
        }
    }
}
