//! The tests that boot guests.
//!
//! A [`Case`] has its host and its guest half in one function. Cases that can share guests stand in one [`Stage`],
//! which boots once: inside the lab a boot takes longer than most cases. A case that leaves a guest unusable costs
//! one more boot and nothing else.

mod case;
mod runner;

pub use case::{Case, Outcome, Stage, Stand};

use anyhow::Result;
use serde::{Deserialize, Serialize};

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

/// A long run, of cases that are too many or take too long for every day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Soak {
    /// Connections through rdma_cm.
    Cm,
    /// Programs with all their options.
    Programs,
    /// Debian's rdma_rxe as the peer.
    Wire,
}

/// Runs the cases of a long run, as [`run`] does.
///
/// # Errors
///
/// As [`run`].
pub fn soak(setup: &Setup, what: Soak, only: &[String]) -> Result<bool> {
    println!("Guests run {}.", setup.way.describe());
    runner::run(setup, cases::soak_stages(what), only)
}
