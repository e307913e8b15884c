//! Tests and demonstrations that boot something: host and guest halves in one place.
//!
//! * [`guests`] starts stock guests under `verbena` and runs commands in them.
//! * [`rdma`] knows the programs that use RDMA devices there and reads what they print.
//! * [`demo`], [`own`] and [`suite`] are what people run: the demonstration, their own program, the tests.
//! * [`provider`] says which device carries RDMA out for them.
//! * [`bare`] runs the device cases in a guest without an operating system.
//! * [`cli`] is their command line; it takes a run into the lab where there is no hardware virtualisation.
//!
//! Everything here trusts its guests as far as one test run goes: they are ours. It does not decide how guests are
//! made (`images` does) and has no part in what they run on (`verbena`, the program that users run).

#![forbid(unsafe_code)]

pub mod bare;
pub mod capture;
mod cases;
pub mod cli;
pub mod demo;
pub mod guests;
pub mod own;
pub mod programs;
pub mod provider;
pub mod rdma;
pub mod setup;
pub mod suite;
