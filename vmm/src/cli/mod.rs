//! The command line.

mod control;
mod doctor;
mod fabric;
mod inspect;
mod logging;
mod migrate;
mod run;
mod switch;
mod tables;
mod target;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{EXIT_STATUS_HELP, Error, Exit, Result};

const ABOUT: &str = "A small KVM virtual machine monitor whose guests get a real RDMA device";

#[derive(Debug, Parser)]
#[command(name = "verbena", version, about = ABOUT, after_help = EXIT_STATUS_HELP, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    logging: logging::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a virtual machine
    Run(run::Command),
    /// Pause a running machine
    Pause(control::Pause),
    /// Let a paused machine go on
    Resume(control::Resume),
    /// Save a running machine in a directory
    Snapshot(control::Snapshot),
    /// Move a running machine to another process or host
    Migrate(migrate::Migrate),
    /// Receive a machine that `verbena migrate` moves, and run it
    Receive(migrate::Receive),
    /// Run an Ethernet switch for the virtual machines of this host
    Switch(switch::Command),
    /// Export disks by virtio over fabrics
    Target(target::Command),
    /// Use disks that a target exports
    #[command(subcommand)]
    Fabric(fabric::Command),
    /// Check host, guest files and a running machine for what usually is wrong
    Doctor(doctor::Command),
    /// Look at RDMA devices of a running machine
    #[command(subcommand)]
    Rdma(inspect::RdmaCommand),
    /// Look at network interfaces of a running machine
    #[command(subcommand)]
    Net(inspect::NetCommand),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors and go to standard output.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::PoweredOff };
            let _ = error.print();
            return ExitCode::from(exit as u8);
        }
    };
    match dispatch(cli) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            eprintln!("verbena: {}", error.chain());
            ExitCode::from(error.exit() as u8)
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit, Error> {
    logging::init(&cli.logging)?;
    match cli.command {
        Command::Run(command) => command.run(),
        Command::Pause(command) => command.run(),
        Command::Resume(command) => command.run(),
        Command::Snapshot(command) => command.run(),
        Command::Migrate(command) => command.run(),
        Command::Receive(command) => command.run(),
        Command::Switch(command) => command.run(),
        Command::Target(command) => command.run(),
        Command::Fabric(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Rdma(command) => command.run(),
        Command::Net(command) => command.run(),
    }
}

/// Writes what was asked for. A reader that has seen enough is no error.
fn write_out(text: &str) -> Result<Exit> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::io("write the output", error)),
        _ => Ok(Exit::PoweredOff),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
