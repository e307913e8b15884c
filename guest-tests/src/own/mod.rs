//! The user's own program in two guests.
//!
//! Guest a runs the first command. Guest b runs the second as soon as something in a listens (a TCP port or an
//! `rdma_cm` identifier), or after a while if nothing does. In both commands the word `ADDR` stands for the other
//! guest's address; the variables in `own::address` tell the same and more. When b has ended, a gets some time to
//! end too and is stopped then, which is no failure: that is how servers end.

mod address;
mod console;
mod run;

pub use console::shell;
pub use run::{Commands, Machine, run};
