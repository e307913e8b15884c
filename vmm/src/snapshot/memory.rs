//! Guest RAM as a sparse file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use device_model::ram::{GuestRam, Ram};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use crate::error::{Error, Result};

/// Bytes that are zero or are written.
const PAGE: usize = 4096;

/// Calls `f` for each page of RAM, with its place in the file.
fn for_each_page(ram: &Ram, mut f: impl FnMut(u64, u64) -> Result<()>) -> Result<u64> {
    let mut offset = 0;
    for region in ram.iter() {
        let start = region.start_addr().raw_value();
        for page in (0..region.len()).step_by(PAGE) {
            f(start + page, offset + page)?;
        }
        offset += region.len();
    }
    Ok(offset)
}

/// Writes all pages that hold anything.
pub(super) fn write(path: &Path, ram: &Ram) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("write {}", path.display()), e);
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(failed)?;
    let memory: &dyn GuestRam = ram;
    let mut page = [0; PAGE];
    let size = for_each_page(ram, |gpa, offset| {
        memory.read(gpa, &mut page).map_err(|e| Error::Failure(e.to_string()))?;
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(&page, offset).map_err(failed)?;
        }
        Ok(())
    })?;
    file.set_len(size).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// Fills memory that is all zeros.
pub(super) fn read(path: &Path, ram: &Ram) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("read {}", path.display()), e);
    let file = File::open(path).map_err(failed)?;
    let memory: &dyn GuestRam = ram;
    let mut page = [0; PAGE];
    let (mut data, mut hole) = (0, 0);
    let size: u64 = ram.iter().map(GuestMemoryRegion::len).sum();
    let found = file.metadata().map_err(failed)?.len();
    if found != size {
        return Err(Error::Usage(format!(
            "{} holds {found} bytes of memory, the machine has {size}: give --memory as it was",
            path.display()
        )));
    }
    for_each_page(ram, |gpa, offset| {
        if offset >= hole {
            (data, hole) = next_data(&file, offset, size).map_err(failed)?;
        }
        if offset + PAGE as u64 <= data {
            return Ok(());
        }
        file.read_exact_at(&mut page, offset).map_err(failed)?;
        memory.write(gpa, &page).map_err(|e| Error::Failure(e.to_string()))
    })
    .map(drop)
}

/// The next stretch of a file that holds data.
fn next_data(file: &File, from: u64, size: u64) -> std::io::Result<(u64, u64)> {
    let data = match seek(file, SeekFrom::Data(from)) {
        Ok(data) => data,
        Err(Errno::NXIO) => return Ok((size, size)),
        Err(error) => return Err(error.into()),
    };
    Ok((data, seek(file, SeekFrom::Hole(data))?))
}
