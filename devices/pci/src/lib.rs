//! PCI root, config space, BARs, capabilities and MSI-X.
//!
//! A device model implements [`Device`] and never sees config space: the [`Function`] that wraps it holds the type 0
//! header, decodes BARs, runs MSI-X and tells the device only what concerns it. A [`Root`] holds the functions of bus 0
//! and routes a virtual machine monitor's port, ECAM and memory accesses to them.
//!
//! # How the parts are put together
//!
//! 1. Make the [`Msix`] from the device's [`MsixSpec`] and a [`MsiRouter`].
//! 2. Make the device, which takes the `Msix` as its `device_model::irq::Interrupts`.
//! 3. Wrap both in a [`Function`], with a [`BarListener`] when doorbells must follow the BARs.
//! 4. Plug functions into a [`RootBuilder`]; [`RootBuilder::build`] assigns BAR addresses as firmware would.
//!
//! # Not here
//!
//! One bus, memory BARs and MSI-X only: no bridges but the host bridge, no I/O BARs, no INTx, no power management, no
//! hot-plug.
//!
//! # Trust
//!
//! Every access is the guest's, from several vCPU threads at once, at any offset and of any length. Reads of what does
//! not exist return ones, writes to it do nothing, and read-only bits stay. The device and the router are trusted.

#![forbid(unsafe_code)]

mod assign;
mod bdf;
mod bridge;
mod config;
mod decode;
pub mod device;
mod function;
pub mod msix;
mod root;
mod save;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use assign::{AssignError, Window, Windows};
pub use bdf::Bdf;
pub use device::{
    BarKind, BarListener, BarSpec, Device, Identity, MsiMessage, MsiRouter, MsixSpec, VendorCapability,
};
pub use function::{Function, FunctionError};
pub use msix::Msix;
pub use root::{CONFIG_ADDRESS, CONFIG_DATA, ECAM_SIZE, Root, RootBuilder, RootError};

/// Locks even after a panic elsewhere: the state behind these locks is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod testing;
