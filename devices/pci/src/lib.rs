//! PCI root, config space, BARs, capabilities and MSI-X.
//!
//! A device model implements [`Device`] and never sees config space: the function that wraps it holds the type 0
//! header, decodes BARs, runs MSI-X and tells the device only what concerns it.

#![forbid(unsafe_code)]

pub mod device;

pub use device::{BarKind, BarSpec, Device, Identity, MsiMessage, MsiRouter, MsixSpec};
