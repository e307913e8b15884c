//! What every device model shares: typed guest memory, interrupts, doorbells, network links, time and saved state.
//!
//! The crate holds contracts, not devices. A device model is written against the traits here, and a virtual machine
//! monitor supplies the other side; the [`ram::GuestRam`], [`irq::Interrupts`] and [`doorbell::Doorbells`] objects are
//! the whole of what a device needs from it. Nothing here knows KVM, an event loop or a file descriptor's meaning.
//!
//! # Trust
//!
//! Everything read through [`ram::GuestRam`] is the guest's and may change between two reads: copy once, validate the
//! copy, act on the copy. Everything received from a [`net::Link`] is a stranger's.
//!
//! # Threads
//!
//! All traits are `Send + Sync`: vCPU threads write registers while an I/O thread moves data.

#![forbid(unsafe_code)]

pub mod direct;
pub mod doorbell;
pub mod irq;
pub mod log;
pub mod net;
pub mod ram;
pub mod save;
pub mod time;
