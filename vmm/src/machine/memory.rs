//! Guest RAM: one sealed memory file, mapped below and above the 4 GiB hole.

use std::fs::File;
use std::sync::Arc;

use device_model::ram::Ram;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Address, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

use super::layout::{RAM_HOLE, ram_ranges};
use crate::config::MemoryConfig;
use crate::error::{Error, Result};

/// What keeps a memory file from being resized.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes the memory of a machine. Its file cannot be resized by anyone, so that a process which maps it needs no
/// protection against truncation.
///
/// # Errors
///
/// [`Error::Resource`] when the host has not that much memory, or too few huge pages.
pub fn create(config: &MemoryConfig) -> Result<Ram> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if config.hugepages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    } else {
        check_host_has(config.size.0)?;
    }
    let file = File::from(memfd_create("guest-ram", flags).map_err(|e| Error::io("create guest memory", e))?);
    ftruncate(&file, config.size.0).map_err(|e| too_much(config, &e))?;
    fcntl_add_seals(&file, SEALS).map_err(|e| Error::io("seal guest memory", e))?;
    lay_out(config, file)
}

/// Makes the memory of a machine out of the file of another one, whose contents it keeps.
///
/// # Errors
///
/// When the file is not one that [`create`] makes for the same configuration.
pub fn adopt(config: &MemoryConfig, file: File) -> Result<Ram> {
    let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
    let size = fstat(&file).map(|stat| stat.st_size).map_err(|e| Error::io("look at guest memory", e))?;
    if !sealed || u64::try_from(size) != Ok(config.size.0) {
        return Err(Error::Failure(
            "What was handed over is not the memory of a machine of this size".to_owned(),
        ));
    }
    lay_out(config, file)
}

fn lay_out(config: &MemoryConfig, file: File) -> Result<Ram> {
    let file = Arc::new(file);
    let mut offset = 0;
    let mut regions = Vec::new();
    for range in ram_ranges(config.size.0) {
        regions.push(map(config, &file, offset, range)?);
        offset += range.size;
    }
    Ram::from_regions(regions).map_err(|e| Error::Failure(format!("Failed to lay out guest memory: {e}")))
}

fn map(
    config: &MemoryConfig,
    file: &Arc<File>,
    offset: u64,
    range: pci::Window,
) -> Result<GuestRegionMmap<AtomicBitmap>> {
    let size = usize::try_from(range.size).map_err(|e| too_much(config, &e))?;
    // Huge pages are reserved when mapped, so that a pool too small is an error here and not a signal later.
    let reserve = if config.hugepages { 0 } else { libc::MAP_NORESERVE };
    let region = MmapRegionBuilder::new_with_bitmap(size, AtomicBitmap::with_len(size))
        .with_file_offset(FileOffset::from_arc(Arc::clone(file), offset))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED | reserve)
        .with_hugetlbfs(config.hugepages)
        .build()
        .map_err(|e| too_much(config, &e))?;
    GuestRegionMmap::new(region, GuestAddress(range.base))
        .ok_or_else(|| Error::Failure("Guest memory wraps around the address space".to_owned()))
}

/// Refuses what the host could not back even if it did nothing else: the guest would be killed long after its start.
fn check_host_has(size: u64) -> Result<()> {
    let info = rustix::system::sysinfo();
    let total = u64::from(info.mem_unit).saturating_mul(info.totalram.saturating_add(info.totalswap));
    if size <= total {
        return Ok(());
    }
    Err(Error::Resource(format!(
        "Guest memory of {} MiB is more than the host's {} MiB of memory and swap: give a smaller --memory",
        size >> 20,
        total >> 20
    )))
}

/// End of RAM below the 4 GiB hole.
pub(super) fn low_ram_end(ram: &Ram) -> u64 {
    ram.iter().map(end_of).filter(|end| *end <= RAM_HOLE).max().unwrap_or(0)
}

/// First address behind `region`.
pub(super) fn end_of(region: &impl GuestMemoryRegion) -> u64 {
    region.start_addr().raw_value() + region.len()
}

fn too_much(config: &MemoryConfig, cause: &dyn std::fmt::Display) -> Error {
    let remedy = if config.hugepages {
        "raise /proc/sys/vm/nr_hugepages or leave out hugepages=on"
    } else {
        "give a smaller --memory"
    };
    Error::Resource(format!("Not enough memory for a guest of {} ({cause}): {remedy}", config.size))
}

#[cfg(test)]
mod tests {
    use rustix::fs::fcntl_get_seals;
    use vm_memory::Bytes;

    use super::*;
    use crate::config::values::ByteSize;

    fn config(size: u64) -> MemoryConfig {
        MemoryConfig { size: ByteSize(size), hugepages: false }
    }

    #[test]
    fn regions_share_one_sealed_file_at_consecutive_offsets() {
        let ram = create(&config((3 << 30) + (1 << 20))).unwrap();
        let regions: Vec<_> = ram.iter().collect();
        assert_eq!(regions.len(), 2);
        let files: Vec<_> = regions.iter().map(|region| region.file_offset().unwrap()).collect();
        assert_eq!((files[0].start(), files[1].start()), (0, 3 << 30));
        assert!(Arc::ptr_eq(files[0].arc(), files[1].arc()));
        let seals = fcntl_get_seals(files[0].file()).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
        assert!(files[0].file().set_len(1 << 20).is_err());
        ram.write_obj(7_u32, GuestAddress(1 << 32)).unwrap();
        assert!(ram.write_obj(7_u32, GuestAddress(3 << 30)).is_err());
    }

    #[test]
    fn memory_that_is_handed_over_keeps_what_is_in_it_and_must_be_sealed() {
        let old = create(&config(4 << 20)).unwrap();
        old.write_obj(7_u32, GuestAddress(0x1000)).unwrap();
        let file = || old.iter().next().unwrap().file_offset().unwrap().file().try_clone().unwrap();
        let new = adopt(&config(4 << 20), file()).unwrap();
        assert_eq!(new.read_obj::<u32>(GuestAddress(0x1000)).unwrap(), 7);
        assert!(adopt(&config(8 << 20), file()).is_err());
        let open = File::from(memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap());
        open.set_len(4 << 20).unwrap();
        assert!(adopt(&config(4 << 20), open).is_err());
    }

    #[test]
    fn memory_beyond_the_host_is_refused_with_a_remedy() {
        let error = create(&config(1 << 46)).unwrap_err();
        assert!(matches!(&error, Error::Resource(text) if text.contains("--memory")), "{error}");
    }
}
