//! Tests that boot something: host and guest halves in one place.
//!
//! * [`guests`] starts stock guests under `verbena` and runs commands in them.
//! * [`rdma`] knows the programs that use RDMA devices there and reads what they print.
//!
//! Everything here trusts its guests as far as one test run goes: they are ours. It runs as well directly on a
//! machine with hardware virtualisation as inside the lab; the caller decides which.

#![forbid(unsafe_code)]

pub mod guests;
pub mod rdma;
