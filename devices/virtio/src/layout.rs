//! Where the transport's structures lie in its BAR, and the capabilities that say so (section 4.1.4).

use pci::{BarKind, BarSpec, MsixSpec, VendorCapability};

/// The BAR that holds everything.
pub(crate) const BAR: BarSpec = BarSpec { index: 0, size: 0x8000, kind: BarKind::Memory32 };

/// A structure in the BAR.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    offset: u32,
    len: u32,
}

impl Region {
    /// The offset inside the region, if the access starts there.
    pub(crate) fn offset_of(self, offset: u64) -> Option<u64> {
        let inside = offset.checked_sub(u64::from(self.offset))?;
        (inside < u64::from(self.len)).then_some(inside)
    }
}

pub(crate) const COMMON: Region = Region { offset: 0, len: 56 };
pub(crate) const ISR: Region = Region { offset: 0x1000, len: 1 };
pub(crate) const DEVICE: Region = Region { offset: 0x2000, len: 0x1000 };
/// In a page of its own: the doorbells.
pub(crate) const NOTIFY: Region = Region { offset: 0x3000, len: 0x1000 };
const MSIX_TABLE: u32 = 0x4000;
const MSIX_PBA: u32 = 0x5000;

/// Bytes between the notification addresses of two queues.
pub(crate) const NOTIFY_MULTIPLIER: u32 = 4;

/// Most queues: each has an MSI-X vector, the configuration one more, and the table has a page.
pub(crate) const MAX_QUEUES: u16 = 255;

const CAP_COMMON: u8 = 1;
const CAP_NOTIFY: u8 = 2;
const CAP_ISR: u8 = 3;
const CAP_DEVICE: u8 = 4;
const CAP_PCI_CFG: u8 = 5;
/// Bytes of its data.
const PCI_CFG_DATA: [u8; 4] = [0; 4];

/// The MSI-X layout of a device with `queues` queues: a vector for configuration changes and one for each queue.
pub const fn msix_spec(queues: u16) -> MsixSpec {
    let vectors = if queues < MAX_QUEUES { queues + 1 } else { MAX_QUEUES + 1 };
    MsixSpec { vectors, bar: BAR.index, table_offset: MSIX_TABLE, pba_offset: MSIX_PBA }
}

/// The offset in the BAR where a write notifies `queue`.
pub(crate) fn notify_offset(queue: u16) -> u64 {
    u64::from(NOTIFY.offset) + u64::from(queue) * u64::from(NOTIFY_MULTIPLIER)
}

/// The capabilities of the transport.
pub(crate) fn capabilities() -> Vec<VendorCapability> {
    let plain = [(CAP_COMMON, COMMON), (CAP_ISR, ISR), (CAP_DEVICE, DEVICE)];
    let mut all: Vec<_> = plain.into_iter().map(|(kind, region)| capability(kind, region)).collect();
    let mut notify = capability(CAP_NOTIFY, NOTIFY);
    notify.body.extend(NOTIFY_MULTIPLIER.to_le_bytes());
    all.push(notify);
    let mut window = capability(CAP_PCI_CFG, Region { offset: 0, len: 0 });
    window.body.extend(PCI_CFG_DATA);
    window.window = true;
    all.push(window);
    all
}

/// `struct virtio_pci_cap` behind its first three bytes.
fn capability(kind: u8, region: Region) -> VendorCapability {
    let mut body = vec![kind, BAR.index, 0, 0, 0];
    body.extend(region.offset.to_le_bytes());
    body.extend(region.len.to_le_bytes());
    VendorCapability { body, window: false }
}
