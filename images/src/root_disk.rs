//! A full Debian system as a raw disk: one ext4 file system without a partition table, made without mounting anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;
use crate::cache::{Cache, Inputs};
use crate::error::{Named, Result};
use crate::kernel::GuestKernel;
use crate::packages::{Package, PackageSet};
use crate::{command, hash, host};

/// Raised when this recipe would make something else from the same inputs.
const RECIPE: u32 = 1;

/// Makes the file system out of the unpacked system.
const SCRIPT: &str = include_str!("../root-disk/make");

/// Lays the merged `/usr` out before the first package is unpacked.
const MERGED_USR: &str = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr";

/// Part of every root disk, beside the essential packages.
const BASE_PACKAGES: &[&str] = &[
    "apt",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "pciutils",
    "perftest",
    "rdma-core",
    "rdmacm-utils",
    "systemd-sysv",
    "udev",
    // The merged /usr from the start, in place of the package that converts to it.
    "usr-is-merged",
];

impl Cache {
    /// A raw disk with Debian, `packages` and their dependencies, and the kernel's modules. To boot it, give the guest
    /// the small guest's initramfs and `verbena.root=/dev/vda` on the kernel command line; to let systemd run it, also
    /// `verbena.init=/sbin/init`; the test harness's agent is then one of its services. Root logs in without a password.
    pub fn root_disk(&self, kernel: &GuestKernel, packages: &[String]) -> Result<PathBuf> {
        host::require(self, &[host::Purpose::RootDisk])?;
        let mut wanted: Vec<_> = BASE_PACKAGES.iter().map(|&name| name.to_owned()).collect();
        wanted.extend(packages.iter().cloned());
        wanted.sort();
        wanted.dedup();
        let name = format!("root-disk-{}-{}", kernel.series(), short_hash(&wanted));
        let resolve =
            |archive: &Archive| archive.closure(&[archive.essential()?, wanted.clone()].concat(), None);
        let set = PackageSet { name: &name, wanted: wanted.clone(), resolve: &resolve };
        let inputs = |packages: &[Package]| {
            let inputs = Inputs::recipe(RECIPE).source("make", SCRIPT).packages(packages);
            inputs.artefact("kernel", kernel.dir())
        };
        let recipe = |dir: &Path, packages: &[Package]| self.fill_root_disk(dir, packages, &wanted, kernel);
        Ok(self.make_from_packages(&name, &set, inputs, recipe)?.join("disk.raw"))
    }

    fn fill_root_disk(
        &self,
        dir: &Path,
        packages: &[Package],
        wanted: &[String],
        kernel: &GuestKernel,
    ) -> Result<()> {
        let scratch = tempfile::tempdir_in(self.root()).named("create", self.root())?;
        let repository = scratch.path().join("repository");
        fs::create_dir(&repository).named("create", &repository)?;
        for package in packages {
            let link = repository.join(&package.file);
            let file = self.package_file(package)?;
            fs::hard_link(&file, &link).named("link", file)?;
        }
        let index = Archive::open(self)?.index_of(packages)?;
        fs::write(repository.join("Packages"), index).named("write", &repository)?;

        self.say(&format!("installing {} packages into the root disk", packages.len()));
        let archive = scratch.path().join("root.tar");
        command::run(
            Command::new("mmdebstrap")
                .args(["--variant=apt", "--architectures=amd64", MERGED_USR])
                .arg(format!("--include={}", wanted.join(",")))
                .arg("bookworm")
                .arg(&archive)
                .arg(format!("deb [trusted=yes] copy:{} ./", repository.display())),
        )?;
        self.say("making its file system");
        let root = rustix::process::geteuid().is_root();
        let mut make = Command::new(if root { "sh" } else { "fakeroot" });
        if !root {
            make.arg("sh");
        }
        let script = scratch.path().join("make");
        fs::write(&script, SCRIPT).named("write", &script)?;
        make.arg(script).arg(&archive).arg(kernel.modules()).arg(dir.join("disk.raw"));
        command::run(make.current_dir(scratch.path()))
    }
}

fn short_hash(words: &[String]) -> String {
    let mut hash = hash::bytes(words.join(" ").as_bytes());
    hash.truncate(8);
    hash
}
