//! A shell in a guest on the user's terminal.

use std::io::{self, IsTerminal, Read};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest_protocol::message::Streams;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::run::Machine;
use crate::guests::{Echo, Guests, Task};
use crate::setup::Setup;

/// A shell may stay open as long as its user likes.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Boots two guests and gives the user a shell in one of them; both end with it. Gives the shell's exit status.
///
/// # Errors
///
/// When there is no such guest, no terminal, or the guests do not come up.
pub fn shell(setup: &Setup, machine: &Machine, copy: &[std::path::PathBuf], guest: char) -> Result<u8> {
    eprintln!("Starting guests a and b {} …", setup.way.describe());
    let guests = Guests::start(&machine.options(setup, copy)?)?;
    let Some(chosen) = guests.all().iter().find(|candidate| candidate.name() == guest) else {
        bail!("There is no guest {guest}; they are a and b");
    };
    let terminal = RawTerminal::enter().context("A shell needs a terminal on standard input")?;
    let task = Task::shell("cd /root && exec sh -l")
        .env("TERM", std::env::var("TERM").unwrap_or_else(|_| "linux".into()))
        .streams(terminal.size())
        .echo(Echo::Raw)
        .timeout(FOR_EVER);
    let job = chosen.start(task);
    let input = job.input_handle();
    // The thread ends with the process: a read of the terminal cannot be called off.
    thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = io::stdin().read(&mut buffer) {
            input.send(&buffer[..length]);
        }
    });
    let output = job.wait();
    drop(terminal);
    Ok(u8::try_from(output?.status()).unwrap_or(u8::MAX))
}

/// The user's terminal without line editing and echo; as it was when dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> io::Result<Self> {
        if !io::stdin().is_terminal() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }

    fn size(&self) -> Streams {
        let size = tcgetwinsize(io::stdin()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        Streams::Terminal { rows, columns }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
