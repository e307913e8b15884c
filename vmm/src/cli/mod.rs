//! The command line.

mod logging;
mod run;
mod switch;

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
    /// Run an Ethernet switch for the virtual machines of this host
    Switch(switch::Command),
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
        Command::Switch(command) => command.run(),
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
