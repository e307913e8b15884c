//! Recipes that make kernels, guest systems and the lab host out of Debian packages, and the lab itself.
//!
//! * [`Cache::guest_kernel`]: Debian's stock kernel and modules, with the `vmw_pvrdma` driver that Debian leaves out built
//!   unmodified from Debian's kernel source;
//! * [`Cache::guest_initramfs`]: a small guest with the verbs tools, which boots in seconds;
//! * [`Cache::root_disk`]: a full Debian system with any packages, as a raw disk;
//! * [`Cache::lab_host`] and [`Cache::run_in_lab`]: on a machine without hardware virtualisation, a place that has it.
//!
//! Artefacts live in the build directory (see [`Cache::open`]) and are made again only when an input changes. Each has a
//! `manifest.json` with versions and hashes of what it was made from. Nothing is installed on the host but the few tools
//! named in [`host`].
//!
//! Trusted: the package archive (apt checks its signatures), the host's tools, whoever can write to the build
//! directory. The crate holds no `unsafe`.
#![forbid(unsafe_code)]

mod archive;
mod cache;
mod command;
pub mod cpio;
mod driver;
mod error;
mod guest;
mod hash;
pub mod host;
mod kernel;
pub mod lab;
mod modules;
mod packages;
mod programs;
mod root_disk;

pub use cache::{BUILD_VARIABLE, Cache};
pub use error::{Error, Result};
pub use guest::GuestInitramfs;
pub use host::Host;
pub use kernel::{GuestKernel, KernelVersion};
pub use lab::{LabHost, LabOptions};
