//! Developer commands behind `./dev`.

mod images;
mod lab;
mod prepush;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Verbena's developer commands.
///
/// Everything that is needed is fetched or built on first use and kept in build/, so that the second run is quick. On a
/// machine without hardware virtualisation guests run inside the lab, an emulated machine that has it; the commands
/// are the same.
#[derive(Parser)]
#[command(name = "./dev", bin_name = "./dev", subcommand_required = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Images(images::Arguments),
    Lab(lab::Arguments),
    Prepush(prepush::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Images(arguments) => arguments.run(),
        Command::Lab(arguments) => arguments.run(),
        Command::Prepush(arguments) => arguments.run(),
    }
}

/// The build directory, with progress on standard error.
fn cache() -> Result<::images::Cache> {
    Ok(::images::Cache::open(|line| eprintln!("{line}"))?)
}
