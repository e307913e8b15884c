//! What a run needs, made before the guests start: programs, kernel, guest image.
//!
//! It is made outside of the lab, where there is a network and a fast processor, and travels into the lab as JSON.

use std::path::PathBuf;

use anyhow::{Context, Result};
use images::host::Purpose;
use images::{Cache, Host, KernelVersion};
use serde::{Deserialize, Serialize};

use crate::guests::{Options, Overlay};
use crate::programs::Programs;

/// What the full system has beside the usual tools.
const DEBIAN_PACKAGES: [&str; 3] = ["fio", "nvme-cli", "python3-pyverbs"];

/// Where guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// On this machine's own hardware virtualisation.
    Direct,
    /// Inside the lab.
    Lab,
}

impl Way {
    /// In words: "directly, …" or "inside the lab …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::Direct => Host::Direct.describe(),
            Self::Lab => Host::Lab.describe(),
        }
    }
}

/// A stock kernel and the small guest that belongs to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    /// The kernel as Debian ships it.
    pub bzimage: PathBuf,
    /// The same kernel, unpacked.
    pub elf: PathBuf,
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// SHA-256 of the source of the RDMA driver.
    pub driver_hash: String,
    /// The small guest.
    pub initramfs: PathBuf,
    /// More programs and modules for it.
    pub extra: PathBuf,
}

impl Image {
    fn make(cache: &Cache, version: KernelVersion) -> Result<Self> {
        let kernel = cache.guest_kernel(version)?;
        let initramfs = cache.guest_initramfs(&kernel)?;
        Ok(Self {
            bzimage: kernel.vmlinuz,
            elf: kernel.vmlinux,
            release: kernel.release,
            driver_hash: kernel.driver_source_hash,
            initramfs: initramfs.base,
            extra: initramfs.extra,
        })
    }
}

/// Files and facts of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Where the guests run.
    pub way: Way,
    /// Programs of this workspace.
    pub programs: Programs,
    /// Debian 12's kernel.
    pub stock: Image,
    /// The newer kernel that Debian 12 offers, for runs that need it.
    pub newer: Option<Image>,
    /// A disk with a full Debian system for the stock kernel, likewise.
    pub debian: Option<PathBuf>,
    /// Where files go that outlive the run.
    pub results: PathBuf,
}

impl Setup {
    /// Makes everything; the newer kernel and the full system too if asked.
    ///
    /// # Errors
    ///
    /// When a package is missing, a build fails, or this machine has hardware virtualisation that cannot be used.
    pub fn make(cache: &Cache, with_all: bool) -> Result<Self> {
        let way = match Host::detect()? {
            Host::Direct => Way::Direct,
            Host::Lab => Way::Lab,
        };
        // All at once: who cannot install packages gets to see one line, not one after another.
        images::host::require(cache, &[Purpose::Programs, Purpose::Images])?;
        let programs = Programs::build(way == Way::Direct)?;
        let stock = Image::make(cache, KernelVersion::V6_1)?;
        let newer = with_all.then(|| Image::make(cache, KernelVersion::V6_12)).transpose()?;
        let packages = DEBIAN_PACKAGES.map(str::to_owned);
        let debian = with_all.then(|| cache.root_disk(&cache.guest_kernel(KernelVersion::V6_1)?, &packages));
        let debian = debian.transpose()?;
        let results = cache.root().join("results");
        std::fs::create_dir_all(&results).with_context(|| format!("Cannot make {}", results.display()))?;
        Ok(Self { way, programs, stock, newer, debian, results })
    }

    /// Two stock guests with the verifier in them.
    ///
    /// # Errors
    ///
    /// When the verifier or one of its libraries cannot be read.
    pub fn options(&self) -> Result<Options> {
        self.options_with(&self.stock)
    }

    /// Two guests of a kernel, with the verifier in them.
    ///
    /// # Errors
    ///
    /// As [`Setup::options`].
    pub fn options_with(&self, image: &Image) -> Result<Options> {
        let mut overlay = Overlay::default();
        overlay.program(&self.programs.verifier, "/usr/local/bin/verbena-verify")?;
        // Decompressing itself takes a kernel longer than the rest of its boot, inside the lab.
        let kernel = if self.way == Way::Lab { &image.elf } else { &image.bzimage };
        Ok(Options {
            verbena: self.programs.verbena.clone(),
            agent: self.programs.agent.clone(),
            kernel: kernel.clone(),
            initramfs: vec![image.initramfs.clone()],
            overlay,
            results: self.results.clone(),
            ..Options::default()
        })
    }
}
