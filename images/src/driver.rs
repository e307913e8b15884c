//! Builds `vmw_pvrdma.ko`, unmodified, from Debian's kernel source: Debian ships the source and leaves the option off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Named, Result};
use crate::{command, hash};

const SOURCE: &str = "drivers/infiniband/hw/vmw_pvrdma";

/// The driver as built.
pub(crate) struct Driver {
    pub(crate) module: PathBuf,
    pub(crate) source_hash: String,
}

/// Builds the driver for the kernel `release`. `unpacked` holds the content of the header, kbuild and source packages
/// and is used as scratch space.
pub(crate) fn build(unpacked: &Path, release: &str) -> Result<Driver> {
    let tree = unpacked.join("driver");
    fs::create_dir_all(&tree).named("create", &tree)?;
    unpack_source(unpacked, &tree)?;
    let source = tree.join(SOURCE);
    let source_hash = hash::tree(&source)?;
    let headers = relocated_headers(unpacked, release)?;
    command::run(
        Command::new("make")
            .arg("-C")
            .arg(headers)
            .arg(format!("M={}", source.display()))
            .arg("CONFIG_INFINIBAND_VMWARE_PVRDMA=m")
            // Type information for tracers needs a tool of its own (pahole) and nothing here reads it.
            .arg("CONFIG_DEBUG_INFO_BTF_MODULES=")
            .arg("modules"),
    )?;
    Ok(Driver { module: source.join("vmw_pvrdma.ko"), source_hash })
}

fn unpack_source(unpacked: &Path, tree: &Path) -> Result<()> {
    let sources = unpacked.join("usr/src");
    let archive = fs::read_dir(&sources)
        .named("read", &sources)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.to_string_lossy().ends_with(".tar.xz"))
        .unwrap_or_else(|| sources.join("linux-source.tar.xz"));
    command::run(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .args(["--strip-components=1", "--wildcards", &format!("*/{SOURCE}/*")])
            .current_dir(tree),
    )
}

/// The header package's makefile names its common half by the path of an installed system.
fn relocated_headers(unpacked: &Path, release: &str) -> Result<PathBuf> {
    let headers = unpacked.join("usr/src").join(format!("linux-headers-{release}"));
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).named("read", &makefile)?;
    let moved = text.replace("/usr/src/", &format!("{}/usr/src/", unpacked.display()));
    fs::write(&makefile, moved).named("write", makefile)?;
    Ok(headers)
}
