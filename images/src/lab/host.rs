//! The lab host's kernel and initramfs.

use std::fs;
use std::path::{Path, PathBuf};

use super::emulator::Emulator;
use crate::cache::{Cache, Inputs};
use crate::cpio::Tree;
use crate::error::{Named, Result};
use crate::kernel::{GuestKernel, KernelVersion};
use crate::{host, modules};

/// Raised when this recipe would make something else from the same inputs.
const RECIPE: u32 = 2;

const INIT: &str = include_str!("../../lab/init");

/// Modules that the lab host loads at start, in this order.
const LOADED_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_rng",
    "virtio_console",
    "crc32c_intel",
    "crc32c_generic",
    "9pnet_virtio",
    "9p",
    "overlay",
    "kvm_amd",
    "tun",
];

/// Modules that a run can ask for. rdma_rxe looks for the last one by the name of its checksum.
const OFFERED_MODULES: &[&str] =
    &["dummy", "ib_uverbs", "rdma_rxe", "rdma_ucm", "veth", "virtio_blk", "virtio_net", "crc32_generic"];

/// What QEMU boots as the lab host.
#[derive(Clone, Debug)]
pub struct LabHost {
    /// Its kernel: Debian's, the same as the guests'.
    pub kernel: GuestKernel,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// What emulates its processors.
    pub(super) emulator: Emulator,
}

impl Cache {
    /// The lab host, and the QEMU that it runs on.
    pub fn lab_host(&self) -> Result<LabHost> {
        host::require(self, &[host::Purpose::Images])?;
        let kernel = self.guest_kernel(KernelVersion::V6_1)?;
        let busybox = busybox();
        let inputs = Inputs::recipe(RECIPE)
            .source("init", INIT)
            .artefact("kernel", kernel.dir())?
            .value("busybox", &crate::hash::file(busybox)?);
        let dir = self.make("lab", &inputs, |dir| {
            let mut tree = Tree::default();
            for name in ["control", "dev", "host", "lower", "proc", "scratch", "sys"] {
                tree.directory(name);
            }
            for link in ["bin", "sbin", "lib"] {
                tree.symlink(link, &format!("usr/{link}"));
            }
            tree.file("usr/bin/busybox", busybox, Some(0o755))?;
            tree.symlink("usr/bin/sh", "busybox");
            tree.symlink("usr/sbin/modprobe", "../bin/busybox");
            tree.bytes("init", INIT, 0o755);
            tree.bytes("etc/modules", LOADED_MODULES.join("\n") + "\n", 0o644);
            let scratch = tempfile::tempdir_in(self.root()).named("create", self.root())?;
            let wanted = [LOADED_MODULES, OFFERED_MODULES].concat();
            modules::add(&mut tree, &kernel, &wanted, scratch.path())?;
            tree.write(&dir.join("lab.cpio"))
        })?;
        Ok(LabHost { kernel, initramfs: dir.join("lab.cpio"), emulator: self.emulator()? })
    }
}

fn busybox() -> &'static Path {
    let usr = Path::new("/usr/bin/busybox");
    if fs::exists(usr).unwrap_or(false) { usr } else { Path::new("/bin/busybox") }
}
