//! What can go wrong with guests.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a guest or something in it did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A program of the host could not be started.
    #[error("Cannot start {program}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("Cannot use the file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The guest did not come up.
    #[error("Guest {guest} was not ready after {} s; its console ends with:\n{console}", .after.as_secs())]
    NotReady {
        /// Name of the guest.
        guest: char,
        /// How long it had.
        after: Duration,
        /// The last lines of its console.
        console: String,
    },
    /// The guest, or the VMM under it, has ended.
    #[error("Guest {guest} is gone: {reason}")]
    Gone {
        /// Name of the guest.
        guest: char,
        /// What was seen of the end.
        reason: String,
    },
    /// A command took too long. It was killed.
    #[error("`{command}` in guest {guest} did not end within {} s; its output ends with:\n{tail}", .after.as_secs())]
    TimedOut {
        /// Name of the guest.
        guest: char,
        /// The command.
        command: String,
        /// How long it had.
        after: Duration,
        /// The last lines it printed.
        tail: String,
    },
    /// A command ended with a failure.
    #[error("`{command}` in guest {guest} ended with {ending}; its output ends with:\n{tail}")]
    Failed {
        /// Name of the guest.
        guest: char,
        /// The command.
        command: String,
        /// How it ended, in words.
        ending: String,
        /// The last lines it printed.
        tail: String,
    },
    /// Both ends of a connection failed.
    #[error("{0}\n{1}")]
    Both(Box<Self>, Box<Self>),
}

/// The last lines of a text, for a message.
pub fn tail(text: &str) -> String {
    const LINES: usize = 15;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines() {
        let text: String = (0..40).map(|i| format!("{i}\n")).collect();
        assert!(tail(&text).starts_with("25\n"));
        assert!(tail(&text).ends_with("\n39"));
        assert_eq!(tail("one"), "one");
        assert_eq!(tail(""), "");
    }
}
