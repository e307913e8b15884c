//! The `verbena` command.
fn main() {}
