//! The tests that boot guests.
//!
//! A [`Case`] has its host and its guest half in one function. Cases that can share guests stand in one [`Stage`],
//! which boots once: inside the lab a boot takes longer than most cases. A case that leaves a guest unusable costs
//! one more boot and nothing else.

mod case;
mod runner;

pub use case::{Case, Outcome, Stage, Stand};

use anyhow::Result;

use crate::cases;
use crate::setup::Setup;

/// Runs all cases whose name contains one of `only` (all if there is none), prints a line for each and a summary. Gives whether none failed.
///
/// # Errors
///
/// When scratch files cannot be made. A stage that does not boot fails its cases.
pub fn run(setup: &Setup, only: &[String]) -> Result<bool> {
    println!("Guests run {}.", setup.way.describe());
    runner::run(setup, cases::stages(), only)
}
