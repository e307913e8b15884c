//! `./dev images`: makes guest kernels, guests and the lab host.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use images::{Cache, KernelVersion};

/// Make guest kernels, guests, root disks and the lab host out of Debian packages.
///
/// Without a command: the kernel, the small guest, and the lab host. Versions of packages are chosen when first needed and
/// then kept; every artefact has a manifest.json with versions and hashes.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kernel series: 6.1 or 6.12.
    #[arg(long, global = true, default_value = "6.1")]
    kernel: KernelVersion,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Forget the chosen package versions, so that the archive's newest are taken.
    Update,
    /// Make a full Debian system as a raw disk with any packages of the archive, and print its path.
    ///
    /// To run commands in two such systems, with systemd and all:
    /// ./dev guests --disk DISK --memory 1024 --cmdline 'verbena.root=/dev/vda verbena.init=/sbin/init' --a COMMAND --b COMMAND
    #[command(verbatim_doc_comment)]
    Rootfs {
        /// A package to install beside rdma-core, perftest and the tools around them. May be repeated.
        #[arg(long = "package", value_name = "NAME")]
        packages: Vec<String>,
    },
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = crate::cache()?;
        match self.command {
            None => make_all(&cache, self.kernel)?,
            Some(Command::Update) => {
                cache.forget_versions()?;
                make_all(&cache, self.kernel)?;
            }
            Some(Command::Rootfs { packages }) => {
                let kernel = cache.guest_kernel(self.kernel)?;
                println!("{}", cache.root_disk(&kernel, &packages)?.display());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn make_all(cache: &Cache, version: KernelVersion) -> Result<()> {
    let kernel = cache.guest_kernel(version)?;
    let guest = cache.guest_initramfs(&kernel)?;
    let lab = cache.lab_host()?;
    println!("kernel           {}", kernel.vmlinuz.display());
    println!("kernel as ELF    {}", kernel.vmlinux.display());
    println!("release          {} (Debian {})", kernel.release, kernel.version);
    println!("driver source    sha256 {}", kernel.driver_source_hash);
    println!("guest            {}", guest.base.display());
    println!("more for guests  {}", guest.extra.display());
    println!("lab host         {}", lab.initramfs.display());
    Ok(())
}
