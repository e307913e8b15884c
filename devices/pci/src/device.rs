//! The contract between a PCI function and the device behind it.

use device_model::save::{Record, RestoreError, SaveError};
use serde::{Deserialize, Serialize};

/// What config space says a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Base class, sub-class, programming interface.
    pub class: [u8; 3],
    /// Revision id.
    pub revision: u8,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
}

/// Address width of a memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// 32-bit, not prefetchable.
    Memory32,
    /// 64-bit, prefetchable; takes two BAR registers.
    Memory64,
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarSpec {
    /// BAR register, 0 to 5.
    pub index: u8,
    /// Size in bytes, a power of two of at least 4096.
    pub size: u64,
    /// Address width.
    pub kind: BarKind,
}

/// Where a function keeps its MSI-X table and pending bit array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixSpec {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR that holds both structures.
    pub bar: u8,
    /// Byte offset of the table in the BAR, 8-aligned.
    pub table_offset: u32,
    /// Byte offset of the pending bit array in the BAR, 8-aligned.
    pub pba_offset: u32,
}

/// A message-signalled interrupt: a write of `data` to `address`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsiMessage {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
}

/// A vendor-specific capability (PCI Local Bus Specification 3.0, appendix H), such as those of virtio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorCapability {
    /// What follows the id, next-pointer and length bytes, which the function fills in. Read-only to the guest.
    pub body: Vec<u8>,
    /// Whether it is a `virtio_pci_cfg_cap` (virtio 1.2, section 4.1.4.9), through which firmware reaches into BARs that
    /// are not mapped: then its BAR, offset, length and data are writable, and using the data uses the BAR.
    pub window: bool,
}

/// Delivers one function's messages to the interrupt controller (KVM irqfds in the virtual machine monitor).
pub trait MsiRouter: Send + Sync {
    /// Sets the message `vector` sends from now on. Called when an entry is written, before it may fire.
    fn set(&self, vector: u16, message: MsiMessage);

    /// Sends `vector`'s message. Never blocks.
    fn fire(&self, vector: u16);
}

/// A device behind a PCI function.
///
/// Accesses come from vCPU threads, several at once; the implementation locks for itself. Offsets are inside the BAR and
/// an access never crosses its end, but may have any length from 1 to 8 and any alignment: what the device does not
/// understand reads as zeros and writes to nowhere. Accesses to the MSI-X structures are served by the function.
///
/// [`Device::set_bus_master`] and [`Device::reset`] are called with the function's config space locked, so they must not
/// access the function or the root; signalling interrupts and (un)registering doorbells is fine.
pub trait Device: Send + Sync {
    /// Identification; constant.
    fn identity(&self) -> Identity;

    /// BARs; constant.
    fn bars(&self) -> Vec<BarSpec>;

    /// MSI-X layout; constant. `None` for a function without interrupts.
    fn msix(&self) -> Option<MsixSpec>;

    /// Vendor-specific capabilities, in the order they are chained; constant. None by default.
    fn vendor_capabilities(&self) -> Vec<VendorCapability> {
        Vec::new()
    }

    /// Handles a guest read.
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// Handles a guest write.
    fn write(&self, bar: u8, offset: u64, data: &[u8]);

    /// The guest allowed (`true`) or forbade the function to access memory. While forbidden the device neither reads nor
    /// writes guest memory nor signals interrupts. Functions start forbidden.
    fn set_bus_master(&self, enabled: bool);

    /// Returns to the power-on state: on function level reset, on slot or machine reset.
    fn reset(&self);

    /// Saves the device, which nobody makes use of and which does nothing meanwhile. What its function knows (config
    /// space, MSI-X, whether it masters the bus) is saved by the function.
    ///
    /// # Errors
    ///
    /// [`SaveError`] from a device that cannot be saved, as is the default.
    fn save(&self) -> Result<Record, SaveError> {
        Err(SaveError::Unsupported(format!("{:x?} has no saved state", self.identity())))
    }

    /// Restores what [`Device::save`] saved into a device in its power-on state, whose function has been restored. It
    /// looks for itself for work that was announced and not done yet.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] when the record is damaged or of another device.
    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        let _ = record;
        Err(RestoreError::Unsupported(format!("{:x?} has no saved state", self.identity())))
    }
}

/// Learns where a function's BARs are, so that doorbells registered with the hypervisor follow them.
pub trait BarListener: Send + Sync {
    /// `bar` is decoded at guest-physical address `base` from now on; nowhere when `None`.
    ///
    /// Called only on a change, on the vCPU thread that wrote config space, before that write completes and with the
    /// function's config space locked: the listener must not access the function or the root.
    fn bar_moved(&self, bar: u8, base: Option<u64>);
}
