//! Guest memory, addressed by guest-physical address.

use std::mem::size_of;
use std::sync::atomic::Ordering;

use vm_memory::bitmap::{AtomicBitmap, BS};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, VolatileSlice};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A run of guest memory that is contiguous in the host; writes through it are entered in the dirty bitmap.
pub type RamSlice<'a> = VolatileSlice<'a, BS<'a, AtomicBitmap>>;

/// Guest RAM as the virtual machine monitor of this project lays it out.
pub type Ram = GuestMemoryMmap<AtomicBitmap>;

/// A guest-physical range that is not RAM from end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Guest range {gpa:#x} of {len:#x} bytes is not RAM")]
pub struct RamError {
    /// First guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: usize,
}

/// Guest memory. Implemented for [`Ram`]; another virtual machine monitor implements it for its own memory type.
///
/// Only RAM is reachable: MMIO, ROM and holes are errors, so a device can never be made to call into another device.
pub trait GuestRam: Send + Sync {
    /// The `len` bytes at `gpa`, which must lie in one RAM region.
    ///
    /// # Errors
    ///
    /// [`RamError`] when any byte of the range is not RAM, or the range wraps.
    fn slice(&self, gpa: u64, len: usize) -> Result<RamSlice<'_>, RamError>;
}

impl GuestRam for Ram {
    fn slice(&self, gpa: u64, len: usize) -> Result<RamSlice<'_>, RamError> {
        let err = RamError { gpa, len };
        let (region, start) = self.to_region_addr(GuestAddress(gpa)).ok_or(err)?;
        region.get_slice(start, len).map_err(|_| err)
    }
}

impl dyn GuestRam + '_ {
    /// Whether all of the range is RAM.
    pub fn is_ram(&self, gpa: u64, len: usize) -> bool {
        self.slice(gpa, len).is_ok()
    }

    /// Copies guest bytes out. The guest may write concurrently: validate the copy, never read twice.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the range is not RAM; `buf` is then unchanged.
    pub fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), RamError> {
        self.slice(gpa, buf.len())?.copy_to(buf);
        Ok(())
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the range is not RAM; nothing is then written.
    pub fn write(&self, gpa: u64, buf: &[u8]) -> Result<(), RamError> {
        self.slice(gpa, buf.len())?.copy_from(buf);
        Ok(())
    }

    /// Copies one structure out.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the range is not RAM.
    pub fn read_obj<T: FromBytes + IntoBytes>(&self, gpa: u64) -> Result<T, RamError> {
        let mut value = T::new_zeroed();
        self.read(gpa, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copies one structure in.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the range is not RAM.
    pub fn write_obj<T: IntoBytes + Immutable>(&self, gpa: u64, value: &T) -> Result<(), RamError> {
        self.write(gpa, value.as_bytes())
    }

    /// Loads a naturally aligned little-endian 32-bit word atomically, for ring indices shared with the guest's CPUs.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the word is not RAM or not aligned.
    pub fn load_u32(&self, gpa: u64, order: Ordering) -> Result<u32, RamError> {
        let err = RamError { gpa, len: size_of::<u32>() };
        let word: u32 = self.slice(gpa, err.len)?.load(0, order).map_err(|_| err)?;
        Ok(u32::from_le(word))
    }

    /// Stores a naturally aligned little-endian 32-bit word atomically.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the word is not RAM or not aligned.
    pub fn store_u32(&self, gpa: u64, value: u32, order: Ordering) -> Result<(), RamError> {
        let err = RamError { gpa, len: size_of::<u32>() };
        self.slice(gpa, err.len)?.store(value.to_le(), 0, order).map_err(|_| err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram() -> Ram {
        Ram::from_ranges(&[(GuestAddress(0), 0x4000), (GuestAddress(0x1_0000), 0x4000)]).unwrap()
    }

    #[test]
    fn range_across_the_end_of_a_region_is_refused_and_nothing_is_written() {
        let ram = ram();
        let ram: &dyn GuestRam = &ram;
        assert_eq!(ram.write(0x3ffc, &[1; 8]), Err(RamError { gpa: 0x3ffc, len: 8 }));
        assert_eq!(ram.load_u32(0x3ffc, Ordering::Acquire), Ok(0));
    }

    #[test]
    fn wrapping_range_is_refused() {
        let ram = ram();
        assert!(ram.slice(u64::MAX - 3, 8).is_err());
        assert!(ram.slice(0x1000, usize::MAX).is_err());
    }

    #[test]
    fn unaligned_word_is_refused() {
        let ram = ram();
        let ram: &dyn GuestRam = &ram;
        assert!(ram.load_u32(0x1002, Ordering::Acquire).is_err());
    }

    #[test]
    fn stored_word_is_little_endian() {
        let ram = ram();
        let ram: &dyn GuestRam = &ram;
        ram.store_u32(0x1_0000, 0x0102_0304, Ordering::Release).unwrap();
        assert_eq!(ram.read_obj::<[u8; 4]>(0x1_0000), Ok([4, 3, 2, 1]));
    }
}
