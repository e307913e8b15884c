//! A command for a guest and what came of it.

use std::time::Duration;

use guest_protocol::message::{CommandId, Ending, Exec, Streams};

use super::error::{GuestError, tail};

/// Where a command's output goes while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// Nowhere; it is in the [`Output`] afterwards.
    #[default]
    Quiet,
    /// To standard output and error of this process, each line behind the guest's name.
    Prefixed,
    /// To standard output, byte for byte.
    Raw,
}

/// A command for a guest.
#[derive(Clone, Debug)]
pub struct Task {
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) streams: Streams,
    pub(super) timeout: Duration,
    pub(super) echo: Echo,
}

impl Task {
    /// How long a command may take when nobody says otherwise. Nested emulation makes seconds out of milliseconds.
    pub const TIMEOUT: Duration = Duration::from_secs(300);

    /// A program and its arguments, without a shell.
    pub fn program<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        Self { argv, env: Vec::new(), streams: Streams::Output, timeout: Self::TIMEOUT, echo: Echo::Quiet }
    }

    /// A line for the guest's shell.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::program(["sh".to_string(), "-c".to_string(), line.into()])
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets how long it may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets where its output goes while it runs.
    pub fn echo(mut self, echo: Echo) -> Self {
        self.echo = echo;
        self
    }

    /// Gives it a terminal, or a pipe for its input.
    pub fn streams(mut self, streams: Streams) -> Self {
        self.streams = streams;
        self
    }

    /// What a message calls it.
    pub fn title(&self) -> String {
        match &self.argv[..] {
            [sh, c, line] if sh == "sh" && c == "-c" => line.clone(),
            argv => argv.join(" "),
        }
    }

    pub(super) fn exec(&self, id: CommandId) -> Exec {
        Exec { id, argv: self.argv.clone(), env: self.env.clone(), streams: self.streams }
    }
}

impl From<&str> for Task {
    fn from(line: &str) -> Self {
        Self::shell(line)
    }
}

impl From<String> for Task {
    fn from(line: String) -> Self {
        Self::shell(line)
    }
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Name of the guest.
    pub guest: char,
    /// The command, as messages call it.
    pub command: String,
    /// How it ended.
    pub ending: Ending,
    /// Its standard output; bytes that are no UTF-8 are replaced.
    pub out: String,
    /// Its standard error, likewise.
    pub err: String,
}

impl Output {
    /// Whether it exited with status 0.
    pub fn succeeded(&self) -> bool {
        self.ending == Ending::Status(0)
    }

    /// Makes an error of anything but status 0.
    ///
    /// # Errors
    ///
    /// [`GuestError::Failed`].
    pub fn success(self) -> Result<Self, GuestError> {
        if self.succeeded() {
            return Ok(self);
        }
        Err(GuestError::Failed {
            guest: self.guest,
            ending: in_words(&self.ending),
            tail: tail(&format!("{}{}", self.out, self.err)),
            command: self.command,
        })
    }

    /// The status a shell would give: 128 and the number for a signal, 127 for a program that could not be started.
    pub fn status(&self) -> i32 {
        match self.ending {
            Ending::Status(status) => status,
            Ending::Signal(signal) => 128 + signal,
            Ending::NotStarted(_) => 127,
        }
    }
}

/// How a command ended, for a message.
pub(super) fn in_words(ending: &Ending) -> String {
    match ending {
        Ending::Status(status) => format!("status {status}"),
        Ending::Signal(signal) => format!("signal {signal}"),
        Ending::NotStarted(reason) => reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(ending: Ending) -> Output {
        let (out, err) = ("before\n".to_string(), "No such device\n".to_string());
        Output { guest: 'b', command: "ibv_devinfo".into(), ending, out, err }
    }

    #[test]
    fn failure_names_guest_command_status_and_last_words() {
        let message = output(Ending::Status(255)).success().unwrap_err().to_string();
        assert_eq!(
            message,
            "`ibv_devinfo` in guest b ended with status 255; its output ends with:\nbefore\nNo such device"
        );
    }

    #[test]
    fn status_follows_the_shell() {
        assert_eq!(output(Ending::Status(3)).status(), 3);
        assert_eq!(output(Ending::Signal(9)).status(), 137);
        assert_eq!(output(Ending::NotStarted("No such file".into())).status(), 127);
    }

    #[test]
    fn title_of_a_shell_line_is_the_line() {
        assert_eq!(Task::shell("ls /").title(), "ls /");
        assert_eq!(Task::program(["ls", "/"]).title(), "ls /");
    }
}
