//! The driver shared region: read once, when the driver hands it over.

use device_model::ram::{GuestRam, RamError};
use pvrdma_spec::command::{REQUEST_SIZE, RESPONSE_SIZE};
use pvrdma_spec::event::{Cqne, Eqe};
use pvrdma_spec::shared::{CAPS_OFFSET, DeviceCaps, RingPageInfo, SharedRegion, uar_pfn};
use pvrdma_spec::{PAGE_SIZE, version};

use crate::ring::{Indices, PageError, ProducerRing, RingPages};

/// Pages of a device ring that the device bothers with: one table of a page directory.
const MAX_RING_PAGES: u32 = pvrdma_spec::PAGE_DIR_ENTRIES;

/// A shared region that the device cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegionError {
    /// Its address.
    #[error("Shared region at {0:#x} is not aligned")]
    Unaligned(u64),
    /// The region, or a slot it names.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// A driver that the device cannot answer.
    #[error("Driver version {0} is not supported, the oldest is 17")]
    Version(u32),
    /// The number of pages of a ring.
    #[error("A device ring of {0} pages cannot work, choose 2 to 512")]
    RingPages(u32),
    /// The pages of a ring.
    #[error(transparent)]
    Pages(#[from] PageError),
}

/// What the driver said in its shared region.
#[derive(Debug)]
pub(crate) struct Region {
    /// Version of the driver.
    pub(crate) driver_version: u32,
    /// Address of the command slot.
    pub(crate) command_slot: u64,
    /// Address of the response slot.
    pub(crate) response_slot: u64,
    /// Page number of the first doorbell page.
    pub(crate) uar_base: u64,
    /// Asynchronous events.
    pub(crate) events: ProducerRing,
    /// Completion notifications.
    pub(crate) notifications: ProducerRing,
}

impl Region {
    /// Reads the region at `address` and fills in the capabilities.
    pub(crate) fn load(ram: &dyn GuestRam, address: u64, caps: &DeviceCaps) -> Result<Self, RegionError> {
        if !address.is_multiple_of(8) {
            return Err(RegionError::Unaligned(address));
        }
        let shared: SharedRegion = ram.read_obj(address)?;
        if shared.driver_version < version::ROCE_V1 {
            return Err(RegionError::Version(shared.driver_version));
        }
        ram.slice(shared.cmd_slot_dma, REQUEST_SIZE)?;
        ram.slice(shared.resp_slot_dma, RESPONSE_SIZE)?;
        let region = Self {
            driver_version: shared.driver_version,
            command_slot: shared.cmd_slot_dma,
            response_slot: shared.resp_slot_dma,
            uar_base: uar_pfn(shared.uar_pfn, shared.driver_version),
            events: device_ring::<Eqe>(ram, shared.async_ring_pages)?,
            notifications: device_ring::<Cqne>(ram, shared.cq_ring_pages)?,
        };
        ram.write_obj(address + CAPS_OFFSET, caps)?;
        Ok(region)
    }
}

/// Loads a ring of elements of type `T`.
fn device_ring<T>(ram: &dyn GuestRam, info: RingPageInfo) -> Result<ProducerRing, RegionError> {
    let (indices, stride) = ring_shape::<T>(info.num_pages)?;
    Ok(ProducerRing::new(RingPages::load(ram, info.pdir_dma, info.num_pages)?, indices, stride))
}

/// Arithmetic and stride of a device ring of so many pages.
pub(crate) fn ring_shape<T>(pages: u32) -> Result<(Indices, u32), RegionError> {
    let bad = RegionError::RingPages(pages);
    if !(2..=MAX_RING_PAGES).contains(&pages) {
        return Err(bad);
    }
    let stride = size_of::<T>() as u32;
    let slots = (pages - 1) * (PAGE_SIZE as u32 / stride);
    Ok((Indices::new(slots).ok_or(bad)?, stride))
}
