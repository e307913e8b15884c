//! Where log lines go.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::error::{Error, Result};

/// Options of every subcommand.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Say more: -v for progress, -vv for details, -vvv for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Logging")]
    verbose: u8,

    /// Write log lines to FILE and not to standard error
    #[arg(long, value_name = "FILE", global = true, help_heading = "Logging")]
    log_file: Option<PathBuf>,
}

/// Starts logging. The environment variable VERBENA_LOG (`pvrdma=debug,warn`) overrides -v.
pub(super) fn init(options: &Options) -> Result<()> {
    match &options.log_file {
        None => start(options, std::io::stderr),
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| Error::io(format!("open log file {}", path.display()), e))?;
            start(options, Arc::new(file))
        }
    }
    Ok(())
}

fn start<W>(options: &Options, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = match options.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("VERBENA_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(options.log_file.is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
