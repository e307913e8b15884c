//! `verbena-agent`: runs in a guest what the test harness asks for over the second serial port.
//!
//! The guest's init starts it as the last thing it does, so it is usually process 1 and also buries orphans. It
//! runs any number of commands at once, gives them a terminal when asked, and switches the machine off. It has no
//! files and no settings of its own, and it trusts the harness with everything: it is a tool for test guests.
//!
//! Usage: `verbena-agent [SERIAL-PORT]`, `/dev/ttyS1` when none is given.

#![forbid(unsafe_code)]

mod command;
mod commands;
mod line;
mod machine;

use std::process::ExitCode;

fn main() -> ExitCode {
    let port = std::env::args().nth(1).unwrap_or_else(|| "/dev/ttyS1".into());
    match line::serve(port.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbena-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
