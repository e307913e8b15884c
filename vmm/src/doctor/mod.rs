//! `verbena doctor`: looks for what usually is wrong, on the host, in a guest's files and in a running machine.
//!
//! Each check gathers facts first and judges them then, so that the judgement can be tested without a broken machine.

mod disk;
mod guest;
mod host;
mod kernel_config;
mod machine;
mod mirror;
mod modules;

use std::fmt;

pub use disk::check_disk;
pub use guest::check_root;
pub use host::check_host;
pub use machine::check_machine;
pub use mirror::{check_device, check_limits, check_locked};
pub use modules::check_modules;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Good,
    /// Only some uses need it.
    Note,
    /// Something will not work.
    Problem,
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was looked at.
    pub subject: String,
    /// How it is.
    pub state: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
}

impl Finding {
    fn good(subject: &str, state: impl Into<String>) -> Self {
        Self { level: Level::Good, subject: subject.to_owned(), state: state.into(), remedy: String::new() }
    }

    fn note(subject: &str, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Note, remedy: remedy.into(), ..Self::good(subject, state) }
    }

    fn problem(subject: &str, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Problem, remedy: remedy.into(), ..Self::good(subject, state) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Problem => "BAD ",
        };
        write!(f, "{mark}  {}: {}", self.subject, self.state)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n      {}", self.remedy) }
    }
}
