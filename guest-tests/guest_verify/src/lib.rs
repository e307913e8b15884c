//! The parts of `verbena-verify` that need no verbs device: what is moved, how it is checked, how the two ends agree.
//!
//! perftest and most other verbs benchmarks never look at the bytes they move. This program does: every message has
//! a number and content that follows from it, made anew by the receiver and compared, in both directions at once.
//! The verbs themselves are in the program, which is built only with the feature `verbs`.

#![forbid(unsafe_code)]

pub mod gid;
pub mod peer;
pub mod plan;
pub mod script;
pub mod tally;
