//! Stock Linux guests: switches, any number of VMs on them, and a hand on each of those.
//!
//! [`Guests::start`] spawns the same `verbena` binary that users run, one process per VM, and waits until the agent
//! in each guest answers. Guests are called a, b, c and so on; guest number n has the address 10.0.0.(n+1) on its
//! first NIC and finds the others by name. Nothing survives a [`Guests`]: processes end and files go when it is
//! dropped, except that consoles and captures are kept when something failed ([`Guests::keep`]).

mod address;
mod control;
mod error;
mod guest;
mod overlay;
mod process;
mod set;
mod task;
mod vm;

pub use address::{Address, Nic};
pub use error::GuestError;
pub use guest::{Guest, Job};
pub use overlay::Overlay;
pub use process::{Process, end_all_on_signal};
pub use set::{Disk, Guests, NicOptions, Options, RdmaIn, STOCK_WORDS};
pub use task::{Echo, Output, Task};
