//! What two devices must do on the wire they must do over channels too: the same tests, whose worlds have another carrier.
//! Beside them what only a carrier that comes and goes can do.

#![allow(clippy::duplicate_mod, reason = "each file of tests brings the module it shares with the others")]

#[path = "../basic.rs"]
mod basic;
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

mod changes;
mod hostile;
