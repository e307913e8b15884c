//! One guest that is up, and the commands that run in it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use guest_protocol::message::{CommandId, MAX_OUTPUT, Request, Stream};
use rustix::process::Signal;

use super::address::{Address, Nic};
use super::control::{Control, Identity, JobEvent};
use super::error::{GuestError, tail};
use super::process::Process;
use super::task::{Echo, Output, Task};
use super::vm::Files;

/// Linux's number of the signal that cannot be ignored.
const KILL: i32 = 9;

/// How long a VMM may take to say why it ends, once it has closed its sockets.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A guest, from the start of its VM to its end.
pub struct Guest {
    address: Address,
    control: Control,
    vm: Process,
    console: PathBuf,
    api: PathBuf,
    moves: u32,
}

impl Guest {
    pub(super) fn new(files: &Files<'_>, control: Control, vm: Process) -> Self {
        let (console, api) = (files.console().into(), files.api().into());
        Self { address: files.guest, control, vm, console, api, moves: files.moves }
    }

    /// Socket at which its VMM can be asked.
    pub fn api_socket(&self) -> &Path {
        &self.api
    }

    /// How often it has moved to another VMM.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }

    /// Goes on in another VMM, whose control line is `socket`. Gives the VMM before.
    pub(super) fn move_to(&mut self, files: &Files<'_>, vm: Process) -> Process {
        (self.console, self.api, self.moves) = (files.console().into(), files.api().into(), files.moves);
        std::mem::replace(&mut self.vm, vm)
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Its place in the plan of names and addresses.
    pub fn address(&self) -> Address {
        self.address
    }

    /// `a` for the first guest.
    pub fn name(&self) -> char {
        self.address.name()
    }

    /// IPv4 address of a NIC.
    pub fn ip(&self, nic: Nic) -> String {
        self.address.ipv4(nic)
    }

    /// Who the guest says it is, once it is up.
    pub fn identity(&self) -> Option<Identity> {
        self.control.status().identity.clone()
    }

    /// What its kernel has written on the console so far.
    pub fn console(&self) -> String {
        std::fs::read(&self.console).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// The file its console goes to.
    pub fn console_path(&self) -> &Path {
        &self.console
    }

    /// Waits until an agent has come up for the `life`th time, counted from one.
    ///
    /// # Errors
    ///
    /// [`GuestError::NotReady`] with the end of the console, or [`GuestError::Gone`].
    pub fn wait_ready(&self, life: u32, timeout: Duration) -> Result<(), GuestError> {
        if !self.control.wait(timeout, |status| status.lives >= life || status.gone.is_some()) {
            let console = tail(&self.console());
            return Err(GuestError::NotReady { guest: self.name(), after: timeout, console });
        }
        let status = self.control.status();
        match &status.gone {
            Some(reason) if status.lives < life => {
                self.vm.settle(LAST_WORDS);
                let reason = format!("{reason}; the VMM says: {}", tail(&self.vm.printed()));
                Err(GuestError::Gone { guest: self.name(), reason })
            }
            _ => Ok(()),
        }
    }

    /// Runs a command to its end. Anything but status 0 is in the output, not an error.
    ///
    /// # Errors
    ///
    /// When the command takes too long or the guest goes away.
    pub fn run(&self, task: impl Into<Task>) -> Result<Output, GuestError> {
        self.start(task).wait()
    }

    /// Runs a command that has to succeed and gives its standard output.
    ///
    /// # Errors
    ///
    /// As [`Guest::run`], and when it does not exit with status 0.
    pub fn must(&self, task: impl Into<Task>) -> Result<String, GuestError> {
        Ok(self.run(task)?.success()?.out)
    }

    /// Starts a command beside whatever runs already.
    pub fn start(&self, task: impl Into<Task>) -> Job {
        let task = task.into();
        let (id, events) = self.control.exec(&task);
        Job {
            guest: self.name(),
            title: task.title(),
            id,
            events,
            control: self.control.clone(),
            deadline: Instant::now() + task.timeout,
            timeout: task.timeout,
            out: Printed::new(Stream::Out, task.echo),
            err: Printed::new(Stream::Err, task.echo),
            ended: false,
        }
    }

    /// Restarts the guest and waits until it is up again.
    ///
    /// # Errors
    ///
    /// As [`Guest::wait_ready`].
    pub fn reboot(&self, timeout: Duration) -> Result<(), GuestError> {
        let life = self.control.status().lives + 1;
        self.control.send(Request::Reboot);
        self.wait_ready(life, timeout)
    }

    /// How many times an agent has come up in it.
    pub fn lives(&self) -> u32 {
        self.control.status().lives
    }

    /// Switches the guest off and gives the exit status of its VMM; none if it did not end in time.
    pub fn power_off(&mut self, timeout: Duration) -> Option<ExitStatus> {
        self.control.send(Request::PowerOff);
        self.wait_end(timeout)
    }

    /// Waits until the guest has switched itself off and gives the exit status of its VMM; none if it did not in time.
    pub fn wait_end(&mut self, timeout: Duration) -> Option<ExitStatus> {
        self.vm.wait(timeout)
    }

    /// Kills the VMM, which gets no chance to tidy up.
    pub fn kill(&self) {
        self.vm.signal(Signal::KILL);
    }

    /// Number of the VMM's process.
    pub fn vm_id(&self) -> u32 {
        self.vm.id()
    }
}

/// A command that runs. Dropping it kills it.
pub struct Job {
    guest: char,
    title: String,
    id: CommandId,
    events: Receiver<JobEvent>,
    control: Control,
    deadline: Instant,
    timeout: Duration,
    out: Printed,
    err: Printed,
    ended: bool,
}

impl Job {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it takes too long (it is killed then) or the guest goes away.
    pub fn wait(mut self) -> Result<Output, GuestError> {
        loop {
            if let Some(output) = self.advance()? {
                return Ok(output);
            }
        }
    }

    /// Waits until it has printed `text`. If it ends before, its output is given instead of nothing.
    ///
    /// # Errors
    ///
    /// As [`Job::wait`].
    pub fn wait_for(&mut self, text: &str) -> Result<Option<Output>, GuestError> {
        while !self.out.text().contains(text) && !self.err.text().contains(text) {
            if let Some(output) = self.advance()? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Gives it a new time limit, counted from now.
    pub fn limit(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.deadline = Instant::now() + timeout;
    }

    /// Its output if it has ended by now.
    ///
    /// # Errors
    ///
    /// When the guest has gone away.
    pub fn poll(&mut self) -> Result<Option<Output>, GuestError> {
        while let Ok(event) = self.events.try_recv() {
            if let Some(output) = self.handle(event)? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Waits a moment for news.
    ///
    /// # Errors
    ///
    /// When its time is over.
    pub fn pause(&self) -> Result<(), GuestError> {
        std::thread::sleep(Duration::from_millis(50));
        if Instant::now() < self.deadline { Ok(()) } else { Err(self.timed_out()) }
    }

    /// Sends a signal, by its Linux number, to it and its children.
    pub fn signal(&self, signal: i32) {
        self.control.send(Request::Signal { id: self.id, signal });
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    ///
    /// As [`Job::wait`].
    pub fn kill(self) -> Result<Output, GuestError> {
        self.signal(KILL);
        self.wait()
    }

    /// Gives bytes to its input; nothing at all closes it.
    pub fn input(&self, bytes: &[u8]) {
        Input { id: self.id, control: self.control.clone() }.send(bytes);
    }

    /// A handle to its input for another thread.
    pub fn input_handle(&self) -> Input {
        Input { id: self.id, control: self.control.clone() }
    }

    /// Takes in one event or the end of the time.
    fn advance(&mut self) -> Result<Option<Output>, GuestError> {
        match self.events.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => self.handle(event),
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out()),
            Err(RecvTimeoutError::Disconnected) => {
                self.handle(JobEvent::Lost("Its control line is closed".into()))
            }
        }
    }

    fn timed_out(&self) -> GuestError {
        GuestError::TimedOut {
            guest: self.guest,
            command: self.title.clone(),
            after: self.timeout,
            tail: tail(&format!("{}{}", self.out.text(), self.err.text())),
        }
    }

    fn handle(&mut self, event: JobEvent) -> Result<Option<Output>, GuestError> {
        match event {
            JobEvent::Output(Stream::Out, bytes) => self.out.take(self.guest, &bytes),
            JobEvent::Output(Stream::Err, bytes) => self.err.take(self.guest, &bytes),
            JobEvent::Lost(reason) => {
                self.ended = true;
                return Err(GuestError::Gone { guest: self.guest, reason });
            }
            JobEvent::Ended(ending) => {
                self.ended = true;
                self.out.finish(self.guest);
                self.err.finish(self.guest);
                return Ok(Some(Output {
                    guest: self.guest,
                    command: self.title.clone(),
                    ending,
                    out: self.out.text(),
                    err: self.err.text(),
                }));
            }
        }
        Ok(None)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(KILL);
        }
    }
}

/// A command's standard input.
pub struct Input {
    id: CommandId,
    control: Control,
}

impl Input {
    /// Gives it bytes; nothing at all closes it.
    pub fn send(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.control.send(Request::Input { id: self.id, bytes: Vec::new() });
        }
        for piece in bytes.chunks(MAX_OUTPUT) {
            self.control.send(Request::Input { id: self.id, bytes: piece.to_vec() });
        }
    }
}

/// What a command has printed on one of its streams.
struct Printed {
    stream: Stream,
    echo: Echo,
    bytes: Vec<u8>,
    shown: usize,
}

impl Printed {
    fn new(stream: Stream, echo: Echo) -> Self {
        Self { stream, echo, bytes: Vec::new(), shown: 0 }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn take(&mut self, guest: char, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.echo {
            Echo::Quiet => {}
            Echo::Raw => {
                let _ = std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush());
            }
            Echo::Prefixed => {
                while let Some(length) = self.bytes[self.shown..].iter().position(|b| *b == b'\n') {
                    self.show(guest, length);
                }
            }
        }
    }

    fn finish(&mut self, guest: char) {
        if self.echo == Echo::Prefixed && self.shown < self.bytes.len() {
            self.show(guest, self.bytes.len() - self.shown);
        }
    }

    fn show(&mut self, guest: char, length: usize) {
        let line = String::from_utf8_lossy(&self.bytes[self.shown..self.shown + length]);
        match self.stream {
            Stream::Out => println!("[{guest}] {line}"),
            Stream::Err => eprintln!("[{guest}] {line}"),
        }
        self.shown = (self.shown + length + 1).min(self.bytes.len());
    }
}
