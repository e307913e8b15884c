//! Guest memory of a monitor that keeps it as one flat mapping.

use device_model::ram::{GuestRam, RamError, RamSlice};
use vm_memory::bitmap::AtomicBitmap;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{MmapRegion, VolatileMemory};

/// Guest-physical address of the first byte.
pub const BASE: u64 = 0x4000_0000;

/// One mapping, at [`BASE`].
pub struct FlatMemory {
    mapping: MmapRegion<AtomicBitmap>,
}

impl FlatMemory {
    /// Zeroed memory.
    pub fn new(bytes: usize) -> Result<Self, MmapRegionError> {
        Ok(Self { mapping: MmapRegion::new(bytes)? })
    }

    /// One past the last guest-physical address.
    pub fn end(&self) -> u64 {
        BASE + u64::try_from(self.mapping.size()).expect("a size fits 64 bits")
    }
}

/// All that a device needs to know about memory: which host bytes a guest range is, if it is any.
impl GuestRam for FlatMemory {
    fn slice(&self, gpa: u64, len: usize) -> Result<RamSlice<'_>, RamError> {
        let error = RamError { gpa, len };
        let offset = gpa.checked_sub(BASE).and_then(|offset| usize::try_from(offset).ok()).ok_or(error)?;
        self.mapping.get_slice(offset, len).map_err(|_| error)
    }
}
