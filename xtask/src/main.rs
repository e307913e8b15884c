//! Developer commands behind `./dev`.
fn main() {}
