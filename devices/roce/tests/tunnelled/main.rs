//! What two devices must do on the wire and over the channels of one host they must do over those of two hosts too: the same
//! tests, whose payloads are fetched while the devices do other things. Beside them what only that can bring about.

#![allow(clippy::duplicate_mod, reason = "each file of tests brings the module it shares with the others")]

#[path = "../basic.rs"]
mod basic;
#[path = "../direct/changes.rs"]
mod changes;
#[path = "../datagrams.rs"]
mod datagrams;
#[path = "../drain.rs"]
mod drain;
#[path = "../errors.rs"]
mod errors;
#[path = "../exactness.rs"]
mod exactness;
#[path = "../fast_reg.rs"]
mod fast_reg;
#[path = "../overflow.rs"]
mod overflow;
#[path = "../regions.rs"]
mod regions;
#[path = "../srq.rs"]
mod srq;
#[path = "../states.rs"]
mod states;

#[path = "../common/mod.rs"]
mod common;

mod fetches;
