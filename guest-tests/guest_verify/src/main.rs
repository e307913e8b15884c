//! `verbena-verify`: moves data between two machines through a verbs device and checks every byte.

fn main() {}
