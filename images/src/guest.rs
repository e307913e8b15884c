//! The small guest: an initramfs that boots in seconds and has the verbs tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;
use crate::cache::{Cache, Inputs};
use crate::cpio::Tree;
use crate::error::{Named, Result};
use crate::kernel::GuestKernel;
use crate::packages::{Package, PackageSet};
use crate::programs::Programs;
use crate::{command, host, modules};

/// Raised when this recipe would make something else from the same inputs.
const RECIPE: u32 = 2;

const INIT: &str = include_str!("../guest/init");

/// Packages the guest's programs come from; their dependencies come along.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kexec-tools",
    "kmod",
    "libibverbs1",
    "pciutils",
    "perftest",
    "rdmacm-utils",
];

/// Packages all of whose programs are taken.
const VERBS_PACKAGES: &[&str] = &["ibverbs-utils", "perftest", "rdmacm-utils"];

/// Other files of the base archive. The provider libraries are loaded by name, so no program's list of needed
/// libraries brings them.
const BASE_FILES: &[&str] = &[
    "bin/ip",
    "bin/ss",
    "etc/libibverbs.d/rxe.driver",
    "etc/libibverbs.d/vmw_pvrdma.driver",
    "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "sbin/ethtool",
    "sbin/tc",
    "usr/bin/rdma",
    "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
    "usr/lib/x86_64-linux-gnu/libibverbs/libvmw_pvrdma-rdmav34.so",
    "usr/lib/x86_64-linux-gnu/rsocket/librspreload.so",
];

/// Programs that bring large libraries along.
const EXTRA_FILES: &[&str] =
    &["bin/kmod", "bin/ping", "sbin/kexec", "usr/bin/iperf3", "usr/bin/lspci", "usr/share/misc/pci.ids"];

/// Modules that every guest loads at start, in this order. The RDMA driver looks for a bound vmxnet3 and does not
/// look again, so vmxnet3 comes before it.
const LOADED_MODULES: &[&str] =
    &["virtio_pci", "virtio_blk", "virtio_rng", "vmxnet3", "ib_uverbs", "rdma_ucm", "ib_umad", "vmw_pvrdma"];

/// Modules that are there to be loaded.
const BASE_MODULES: &[&str] = &[
    "configfs",
    // rdma_rxe looks for it by the name of the checksum, so it is no dependency of the module.
    "crc32_generic",
    "crc32c_generic",
    "crc32c_intel",
    "dummy",
    "ext4",
    "overlay",
    "rdma_rxe",
    "veth",
    "virtio_net",
];

/// Storage and socket protocols over RDMA, and what they export or mount.
const EXTRA_MODULES: &[&str] = &[
    "brd",
    "ib_iser",
    "ib_isert",
    "ib_srp",
    "ib_srpt",
    "loop",
    "nfs",
    "nfsd",
    "nfsv4",
    "null_blk",
    "nvme_rdma",
    "nvmet_rdma",
    "rds_rdma",
    "rpcrdma",
    "smc",
];

/// The guest's archives, uncompressed: a nested guest unpacks them faster than it decompresses.
#[derive(Clone, Debug)]
pub struct GuestInitramfs {
    /// Boots by itself: busybox, drivers, verbs tools, `ip`, `rdma`, `ethtool`.
    pub base: PathBuf,
    /// To be appended to the base when needed: iperf3, ping, lspci, kexec, kmod, and the modules of storage over RDMA.
    pub extra: PathBuf,
}

impl Cache {
    /// The small guest for a kernel.
    pub fn guest_initramfs(&self, kernel: &GuestKernel) -> Result<GuestInitramfs> {
        let wanted: Vec<_> = PACKAGES.iter().map(|&name| name.to_owned()).collect();
        let resolve = |archive: &Archive| archive.closure(&wanted, None);
        let set = PackageSet { name: "guest", wanted: wanted.clone(), resolve: &resolve };
        let inputs = |packages: &[Package]| {
            let inputs = Inputs::recipe(RECIPE).source("init", INIT).packages(packages);
            inputs.artefact("kernel", kernel.dir())
        };
        let name = format!("guest-{}", kernel.series());
        let recipe = |dir: &Path, packages: &[Package]| self.fill_guest(dir, packages, kernel);
        let dir = self.make_from_packages(&name, &set, inputs, recipe)?;
        Ok(GuestInitramfs { base: dir.join("base.cpio"), extra: dir.join("extra.cpio") })
    }

    fn fill_guest(&self, dir: &Path, packages: &[Package], kernel: &GuestKernel) -> Result<()> {
        host::require(self, &[host::Purpose::Images])?;
        let scratch = tempfile::tempdir_in(self.root()).named("create", self.root())?;
        let scratch = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir(&path).named("create", &path).map(|()| path)
        };
        let (root, verbs) = (scratch("root")?, scratch("verbs")?);
        self.unpack(packages, &root)?;
        let (verbs_packages, _): (Vec<_>, Vec<_>) =
            packages.iter().cloned().partition(|package| VERBS_PACKAGES.contains(&package.name.as_str()));
        self.unpack(&verbs_packages, &verbs)?;

        let mut programs = Programs::new(&root);
        let mut tree = skeleton();
        add_busybox(&mut tree, &root.join("bin/busybox"))?;
        for name in names_in(&verbs.join("usr/bin"))? {
            programs.add(&mut tree, &format!("usr/bin/{name}"))?;
        }
        for file in BASE_FILES {
            programs.add(&mut tree, file)?;
        }
        let base_modules = [LOADED_MODULES, BASE_MODULES].concat();
        modules::add(&mut tree, kernel, &base_modules, &scratch("base-modules")?)?;
        tree.write(&dir.join("base.cpio"))?;

        let mut extra = Tree::default();
        for file in EXTRA_FILES {
            programs.add(&mut extra, file)?;
        }
        // The later archive's module index replaces the earlier one's, so it has to know all modules.
        let all_modules = [&base_modules, EXTRA_MODULES].concat();
        modules::add(&mut extra, kernel, &all_modules, &scratch("all-modules")?)?;
        extra.write(&dir.join("extra.cpio"))
    }
}

fn skeleton() -> Tree {
    let mut tree = Tree::default();
    for dir in ["bin", "sbin", "lib", "lib64"] {
        tree.symlink(dir, &format!("usr/{dir}"));
    }
    for dir in ["dev", "proc", "root", "run", "sys", "tmp", "var/log", "usr/local/bin", "usr/lib64"] {
        tree.directory(dir);
    }
    tree.symlink("var/run", "../run");
    tree.symlink("usr/lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    tree.bytes("init", INIT, 0o755);
    tree.bytes("etc/modules", LOADED_MODULES.join("\n") + "\n", 0o644);
    tree.bytes("etc/modprobe.d/vmw_pvrdma.conf", "softdep vmw_pvrdma pre: vmxnet3\n", 0o644);
    tree.bytes("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    tree.bytes("etc/group", "root:x:0:\n", 0o644);
    tree.bytes("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644);
    tree.bytes("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n", 0o644);
    tree
}

/// Adds busybox under all its names that no real program takes later: a later entry of the same name replaces it.
pub(crate) fn add_busybox(tree: &mut Tree, busybox: &Path) -> Result<()> {
    tree.file("usr/bin/busybox", busybox, Some(0o755))?;
    let applets = command::text(Command::new(busybox).arg("--list-full"))?;
    for applet in applets.lines().filter(|applet| !applet.ends_with("/busybox")) {
        tree.symlink(applet, "/usr/bin/busybox");
    }
    Ok(())
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).named("read", dir)? {
        names.push(entry.named("read", dir)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
