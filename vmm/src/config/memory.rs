//! `--memory size=1G,hugepages=on`

use serde::Deserialize;

use super::key_value::Keyed;
use super::values::{ByteSize, on_off};

/// The guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Bytes of RAM.
    #[serde(default = "default_size")]
    pub size: ByteSize,
    /// Whether RAM comes from the host's pool of huge pages.
    #[serde(default, deserialize_with = "on_off")]
    pub hugepages: bool,
}

impl Keyed for MemoryConfig {
    const MAIN_KEY: &'static str = "size";
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { size: default_size(), hugepages: false }
    }
}

fn default_size() -> ByteSize {
    ByteSize(1 << 30)
}
