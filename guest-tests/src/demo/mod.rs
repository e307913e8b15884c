//! The demonstration: stock verbs programs between two stock guests, and a table of what came of them.

mod rows;
mod table;

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::guests::Guests;
use crate::provider::Provider;
use crate::setup::Setup;

use rows::{Bench, ROWS};
use table::{Line, table};

/// Boots two guests, runs every row and prints the table. Gives whether all rows passed.
///
/// # Errors
///
/// When the guests do not come up.
pub fn run(setup: &Setup, provider: &Provider) -> Result<bool> {
    println!("Guests run {}.", setup.way.describe());
    let start = Instant::now();
    let mut options = setup.options()?;
    options.capture = true;
    options.mirrored = provider.device(setup.way)?;
    if let Some(device) = &options.mirrored {
        println!("Programs' objects are mirrored onto {device}, an RDMA device of the host.");
    }
    println!("Starting two guests with the kernel {} …", setup.stock.release);
    let guests = Guests::start(&options)?;
    println!("Both are up after {} s.", start.elapsed().as_secs());
    let bench = match Bench::new(&guests) {
        Ok(bench) => bench,
        Err(error) => {
            guests.keep();
            return Err(error).context("The guests have no usable RDMA device");
        }
    };
    let lines: Vec<Line> = ROWS.iter().map(|row| show(row.title, || (row.run)(&bench))).collect();
    let passed = lines.iter().all(|line| line.figure.is_ok());
    if !passed {
        guests.keep();
    }
    println!("\n{}", table(&lines));
    println!("Guests ran {}, kernel {}.", setup.way.describe(), setup.stock.release);
    println!("Driver vmw_pvrdma built unmodified from Debian's source, sha256 {}.", setup.stock.driver_hash);
    Ok(passed)
}

/// Runs one row with its progress on the terminal.
fn show(title: &'static str, run: impl FnOnce() -> Result<String>) -> Line {
    print!("  {title} … ");
    let _ = std::io::stdout().flush();
    let figure = run().map_err(|error| format!("{error:#}"));
    match &figure {
        Ok(figure) => println!("ok, {figure}"),
        Err(reason) => println!("FAILED\n{reason}"),
    }
    Line { title, figure }
}
