//! `--disk path=root.img,readonly=on`

use std::path::PathBuf;

use host_io::tls;
use serde::Deserialize;

use super::key_value::Keyed;
use super::values::on_off;

/// A virtio-blk disk.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Raw image file or block device.
    pub path: PathBuf,
    /// Whether the guest may only read it.
    #[serde(default, deserialize_with = "on_off")]
    pub readonly: bool,
}

impl Keyed for DiskConfig {
    const MAIN_KEY: &'static str = "path";
}

impl Keyed for tls::Files {
    const MAIN_KEY: &'static str = "cert";
}
