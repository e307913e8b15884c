//! Developer commands behind `./dev`.

mod bench;
mod cargo;
mod fuzz;
mod images;
mod lab;
mod prepush;
mod soak;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use guest_tests::cli;

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
    /// Boot two stock Debian guests and run RDMA programs between them.
    Demo(cli::DemoArguments),
    /// Run your own program in two stock guests, or open a shell in one.
    Guests(Box<cli::GuestsArguments>),
    Test(test::Arguments),
    Bench(bench::Arguments),
    Soak(soak::Arguments),
    Fuzz(fuzz::Arguments),
    Images(images::Arguments),
    Lab(lab::Arguments),
    Prepush(prepush::Arguments),
    /// Does a job inside the lab; the commands above start it there.
    #[command(hide = true)]
    Inside(cli::InsideArguments),
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
        Command::Demo(arguments) => Ok(cli::demo(arguments, &cache()?)?.into()),
        Command::Guests(arguments) => Ok(cli::guests(*arguments, &cache()?)?.into()),
        Command::Inside(arguments) => Ok(cli::inside(arguments)?.into()),
        Command::Test(arguments) => arguments.run(),
        Command::Bench(arguments) => arguments.run(),
        Command::Soak(arguments) => arguments.run(),
        Command::Fuzz(arguments) => arguments.run(),
        Command::Images(arguments) => arguments.run(),
        Command::Lab(arguments) => arguments.run(),
        Command::Prepush(arguments) => arguments.run(),
    }
}

/// The build directory, with progress on standard error.
fn cache() -> Result<::images::Cache> {
    Ok(::images::Cache::open(|line| eprintln!("{line}"))?)
}
