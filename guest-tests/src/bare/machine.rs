//! A machine without an operating system, and the line to the guest inside.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guests::Process;

/// How long a socket may take to be there.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a guest may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until there is a socket at `path`.
///
/// # Errors
///
/// When there is none in time.
pub fn wait_for_socket(path: &Path) -> Result<()> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    while !path.exists() {
        ensure!(Instant::now() < deadline, "Nobody listens at {}", path.display());
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Starts a switch that listens at `socket`.
///
/// # Errors
///
/// When it does not.
pub fn start_switch(verbena: &Path, socket: &Path) -> Result<Process> {
    let mut switch = Command::new(verbena);
    switch.arg("switch").arg("--socket").arg(socket);
    let switch = Process::start(switch, &socket.with_extension("log"), socket.parent())?;
    wait_for_socket(socket).with_context(|| format!("The switch says: {}", switch.printed()))?;
    Ok(switch)
}

/// What a guest says of its load, as of `guest_bare`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Rounds of the guest that are complete.
    pub sent: u64,
    /// Rounds of the other side that it has checked.
    pub received: u64,
    /// Bytes that it has compared.
    pub bytes: u64,
    /// Longest time between two completions since it was last asked.
    pub gap: Duration,
}

impl LoadReport {
    fn parse(line: &str) -> Option<Self> {
        let mut report = Self::default();
        for word in line.strip_prefix("LOAD ")?.split_whitespace() {
            let (name, value) = word.split_once('=')?;
            let value = value.parse().ok()?;
            match name {
                "sent" => report.sent = value,
                "received" => report.received = value,
                "bytes" => report.bytes = value,
                "gap_us" => report.gap = Duration::from_micros(value),
                _ => return None,
            }
        }
        Some(report)
    }
}

/// A machine whose guest runs a load.
pub struct Machine {
    /// The monitor.
    pub process: Process,
    name: String,
    api: PathBuf,
    serial: UnixStream,
    text: String,
}

impl Machine {
    /// Starts `command`, a monitor, in `directory`, with the guest's serial port in our hands.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(mut command: Command, directory: &Path, name: &str) -> Result<Self> {
        let socket: PathBuf = directory.join(format!("{name}.serial"));
        let api = directory.join(format!("{name}.api"));
        command.arg("--serial").arg(format!("num=1,type=socket,path={}", socket.display()));
        command.arg("--api-socket").arg(&api);
        let process = Process::start(command, &directory.join(format!("{name}.log")), Some(directory))?;
        let connect = || -> Result<UnixStream> {
            wait_for_socket(&socket)?;
            let serial = UnixStream::connect(&socket)?;
            serial.set_read_timeout(Some(PAUSE))?;
            Ok(serial)
        };
        let serial = connect().with_context(|| format!("{name} says: {}", process.printed()))?;
        Ok(Self { process, name: name.to_owned(), api, serial, text: String::new() })
    }

    /// Socket of the monitor's API.
    pub fn api_socket(&self) -> &Path {
        &self.api
    }

    /// Sends the guest a command.
    ///
    /// # Errors
    ///
    /// When the monitor is gone.
    pub fn say(&mut self, command: u8) -> Result<()> {
        self.serial.write_all(&[command]).with_context(|| self.fate())
    }

    /// Asks the guest how far it is.
    ///
    /// # Errors
    ///
    /// When it has found something wrong, or does not answer.
    pub fn report(&mut self) -> Result<LoadReport> {
        self.say(b'p')?;
        self.expect("an answer", LoadReport::parse)
    }

    /// Waits for the guest's verdict.
    ///
    /// # Errors
    ///
    /// When something was wrong, or there is none.
    pub fn verdict(&mut self) -> Result<()> {
        self.expect("a verdict", |line| (line == "TEST bare/load ok").then_some(()))
    }

    /// Ends the machine.
    ///
    /// # Errors
    ///
    /// When it does not end well.
    pub fn end(mut self) -> Result<()> {
        self.say(b'x')?;
        self.gone()
    }

    /// Waits for the end of a monitor that has nothing more to do.
    ///
    /// # Errors
    ///
    /// When it does not end well.
    pub fn gone(mut self) -> Result<()> {
        match self.process.wait(ANSWER_TIMEOUT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{} ended with {status}: {}", self.name, self.process.printed()),
            None => bail!("{} does not end", self.name),
        }
    }

    /// The first line that `parse` takes. A line about a failure ends the wait.
    fn expect<T>(&mut self, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            while let Some((line, rest)) = self.text.split_once('\n') {
                let (line, rest) = (line.trim_end().to_owned(), rest.to_owned());
                self.text = rest;
                ensure!(!line.contains(" FAIL "), "{}: {line}", self.name);
                if let Some(found) = parse(&line) {
                    return Ok(found);
                }
            }
            ensure!(Instant::now() < deadline, "The guest of {} gives no {what}; {}", self.name, self.fate());
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 4096];
        match self.serial.read(&mut bytes) {
            Ok(0) => bail!("{}", self.fate()),
            Ok(count) => {
                self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            Err(error) => Err(error).with_context(|| self.fate()),
        }
    }

    fn fate(&self) -> String {
        format!("the monitor of {} says: {}", self.name, self.process.printed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_and_other_lines_are_not() {
        let report = LoadReport::parse("LOAD sent=5 received=4 bytes=100 gap_us=7").unwrap();
        assert_eq!(report, LoadReport { sent: 5, received: 4, bytes: 100, gap: Duration::from_micros(7) });
        assert_eq!(LoadReport::parse("LOAD ready"), None);
        assert_eq!(LoadReport::parse("LOAD sent=x"), None);
        assert_eq!(LoadReport::parse("TEST bare/load ok"), None);
    }
}
