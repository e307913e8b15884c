//! What a machine is made of, from flags and an optional configuration file.
//!
//! [`RunOptions`] is the one definition of every option: it derives both the flags and the file's format, so both have the
//! same names. [`RunOptions::resolve`] checks it and fills in defaults.

mod fabric;
mod file;
pub mod key_value;
mod memory;
mod net;
mod options;
mod serial;
mod storage;
pub mod values;
mod vm;

pub use fabric::{ExportConfig, ExportKind, FabricDiskConfig, FabricUrl, Scheme};
pub use memory::MemoryConfig;
pub use net::{NetConfig, PollingMode, ProviderKind};
pub use options::RunOptions;
pub use serial::{SerialConfig, SerialType};
pub use storage::DiskConfig;
pub use vm::{BootConfig, OnReboot, RestoreConfig, VmConfig};
