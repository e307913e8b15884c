//! Loading what the machine starts.

mod kernel;
mod params;

use std::fs::File;
use std::path::Path;

use device_model::ram::Ram;
use vm_memory::{Bytes, GuestAddress};

use super::layout::{CMDLINE, HIGH_RAM, LOW_RAM_END};
use super::memory::low_ram_end;
use crate::error::{Error, Result};

/// Role names in messages.
const KERNEL: &str = "a kernel";
const INITRAMFS: &str = "an initramfs";

/// A kernel in guest memory.
struct Kernel {
    /// Where the boot CPU starts in 64-bit mode.
    entry: u64,
    /// End of what the kernel occupies before it knows its memory map.
    end: u64,
    /// Its setup header; made up for an ELF kernel.
    header: linux_loader::bootparam::setup_header,
}

/// A range of guest memory.
#[derive(Clone, Copy, Debug, Default)]
struct Placed {
    base: u64,
    size: u64,
}

/// Loads kernel, initramfs and command line, writes the boot parameters, and returns the entry point.
///
/// # Errors
///
/// [`Error::Image`] when a file is not what it should be or does not fit.
pub fn load_linux(
    ram: &Ram,
    kernel: &Path,
    initramfs: Option<&Path>,
    cmdline: &str,
    rsdp: u64,
) -> Result<u64> {
    let loaded = kernel::load(ram, kernel)?;
    let initramfs = match initramfs {
        Some(path) => load_initramfs(ram, path, &loaded)?,
        None => Placed::default(),
    };
    load_cmdline(ram, cmdline, loaded.header.cmdline_size)?;
    params::write(ram, &loaded, initramfs, rsdp)?;
    Ok(loaded.entry)
}

fn image_error(role: &'static str, path: &Path, reason: impl Into<String>) -> Error {
    Error::Image { role, path: path.to_owned(), reason: reason.into() }
}

fn open(role: &'static str, path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| image_error(role, path, e.to_string()))?;
    let metadata = file.metadata().map_err(|e| image_error(role, path, e.to_string()))?;
    if metadata.is_dir() {
        return Err(image_error(role, path, "it is a directory"));
    }
    Ok(file)
}

/// Puts the initramfs as high below 4 GiB as the kernel allows.
fn load_initramfs(ram: &Ram, path: &Path, kernel: &Kernel) -> Result<Placed> {
    let mut file = open(INITRAMFS, path)?;
    let size = file.metadata().map_err(|e| image_error(INITRAMFS, path, e.to_string()))?.len();
    if size == 0 {
        return Err(image_error(INITRAMFS, path, "it is empty"));
    }
    let highest = u64::from(kernel.header.initrd_addr_max).saturating_add(1);
    let limit = low_ram_end(ram).min(highest);
    let base = limit.checked_sub(size).map(|base| base & !0xfff).filter(|base| *base >= kernel.end);
    let base = base.ok_or_else(|| {
        let (size, room) = (size >> 10, limit.saturating_sub(kernel.end) >> 10);
        image_error(
            INITRAMFS,
            path,
            format!("its {size} KiB do not fit the {room} KiB beside the kernel: give a larger --memory"),
        )
    })?;
    let length = usize::try_from(size).map_err(|e| image_error(INITRAMFS, path, e.to_string()))?;
    ram.read_exact_volatile_from(GuestAddress(base), &mut file, length)
        .map_err(|e| image_error(INITRAMFS, path, e.to_string()))?;
    Ok(Placed { base, size })
}

fn load_cmdline(ram: &Ram, cmdline: &str, max: u32) -> Result<()> {
    let usage = |why: String| Error::Usage(format!("Kernel command line: {why}"));
    if cmdline.contains('\0') {
        return Err(usage("it contains a zero byte".to_owned()));
    }
    let room = usize::try_from(max).unwrap_or(usize::MAX).min((LOW_RAM_END - CMDLINE) as usize - 1);
    if cmdline.len() > room {
        return Err(usage(format!("its {} bytes are more than the kernel's {room}", cmdline.len())));
    }
    let mut bytes = cmdline.as_bytes().to_vec();
    bytes.push(0);
    ram.write_slice(&bytes, GuestAddress(CMDLINE)).map_err(|e| usage(e.to_string()))
}

/// Whether `end` is RAM's end or before it, below the hole.
fn fits(ram: &Ram, end: u64) -> bool {
    (HIGH_RAM..=low_ram_end(ram)).contains(&end)
}
