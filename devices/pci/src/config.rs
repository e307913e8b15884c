//! Config space of a type 0 function: an image of bytes, and which of its bits the guest may write.
//!
//! BAR sizing needs no state of its own: the address bits below a BAR's size are read-only zeros, so writing ones reads
//! back the size mask.

use crate::device::{BarKind, BarSpec, Identity, MsixSpec, VendorCapability};

/// Bytes of the PCI-compatible part. The extended part that follows is empty and reads as zeros.
const SIZE: usize = 256;

const VENDOR_ID: usize = 0x00;
const DEVICE_ID: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION_ID: usize = 0x08;
const CLASS_CODE: usize = 0x09;
const CACHE_LINE_SIZE: usize = 0x0c;
const HEADER_TYPE: usize = 0x0e;
const BAR0: usize = 0x10;
const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
const SUBSYSTEM_ID: usize = 0x2e;
const CAPABILITIES_POINTER: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const HEADER_END: usize = 0x40;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// Parity and SERR# reporting and INTx disable: writable, without effect on a function that has none of them.
const COMMAND_INERT: u16 = 1 << 6 | 1 << 8 | 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const HEADER_MULTIFUNCTION: u8 = 1 << 7;

const BAR_64BIT: u32 = 0b10 << 1;
const BAR_PREFETCHABLE: u32 = 1 << 3;
const BAR_FLAGS: u64 = 0xf;

const CAPABILITY_VENDOR: u8 = 0x09;
const CAPABILITY_EXPRESS: u8 = 0x10;
const CAPABILITY_MSIX: u8 = 0x11;

/// Bytes of a PCI Express capability, version 2, with its link, slot, root and second-generation registers.
const EXPRESS_BYTES: usize = 60;
/// PCI Express capabilities register: version 2, root complex integrated endpoint.
const EXPRESS_FLAGS: u16 = 2 | 9 << 4;
const EXPRESS_DEVICE_CAPABILITIES: usize = 4;
/// Role-based error reporting and function level reset.
const DEVICE_CAPABILITIES: u32 = 1 << 15 | 1 << 28;
const EXPRESS_DEVICE_CONTROL: usize = 8;
const DEVICE_CONTROL_WRITABLE: u16 = 0xffff;
/// Initiate function level reset; reads as zero.
const DEVICE_CONTROL_RESET: u16 = 1 << 15;

/// Fields of a capability that is a window into BARs, `struct virtio_pci_cfg_cap`, and its size.
const WINDOW_BAR: usize = 4;
const WINDOW_OFFSET: usize = 8;
const WINDOW_LENGTH: usize = 12;
const WINDOW_DATA: usize = 16;
const WINDOW_BYTES: usize = 20;

const MSIX_CONTROL: usize = 2;
const MSIX_MASK_ALL: u16 = 1 << 14;
const MSIX_ENABLE: u16 = 1 << 15;

/// A capability list that does not fit config space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// An access to a BAR by way of config space, as the guest asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowAccess {
    pub(crate) bar: u8,
    pub(crate) offset: u64,
    /// 1, 2 or 4.
    pub(crate) length: usize,
    pub(crate) data: [u8; 4],
}

/// Config space of one function.
#[derive(Clone)]
pub(crate) struct ConfigSpace {
    bytes: [u8; SIZE],
    writable: [u8; SIZE],
    /// Where the next capability goes, and the pointer that is to name it.
    next: usize,
    link: usize,
    express: Option<usize>,
    msix: Option<usize>,
    window: Option<usize>,
}

impl ConfigSpace {
    /// A header without BARs and capabilities.
    pub(crate) fn new(identity: &Identity) -> Self {
        let mut this = Self {
            bytes: [0; SIZE],
            writable: [0; SIZE],
            next: HEADER_END,
            link: CAPABILITIES_POINTER,
            express: None,
            msix: None,
            window: None,
        };
        let [base, sub, interface] = identity.class;
        this.put(VENDOR_ID, &identity.vendor.to_le_bytes());
        this.put(DEVICE_ID, &identity.device.to_le_bytes());
        this.put(REVISION_ID, &[identity.revision]);
        this.put(CLASS_CODE, &[interface, sub, base]);
        this.put(SUBSYSTEM_VENDOR_ID, &identity.subsystem_vendor.to_le_bytes());
        this.put(SUBSYSTEM_ID, &identity.subsystem.to_le_bytes());
        this.allow(COMMAND, &(COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_INERT).to_le_bytes());
        this.allow(CACHE_LINE_SIZE, &[0xff]);
        this.allow(INTERRUPT_LINE, &[0xff]);
        this
    }

    /// Adds a BAR, whose description must have been checked.
    pub(crate) fn add_bar(&mut self, bar: &BarSpec) {
        let at = bar_offset(bar.index);
        let address_bits = !(bar.size - 1) & !BAR_FLAGS;
        let flags = match bar.kind {
            BarKind::Memory32 => 0,
            BarKind::Memory64 => BAR_64BIT | BAR_PREFETCHABLE,
        };
        self.put(at, &flags.to_le_bytes());
        let width = bar.kind.registers() * 4;
        self.allow(at, &address_bits.to_le_bytes()[..width]);
    }

    /// Adds the PCI Express capability of a root complex integrated endpoint with function level reset.
    pub(crate) fn add_express(&mut self) -> Result<(), NoRoom> {
        let at = self.add_capability(CAPABILITY_EXPRESS, &[0; EXPRESS_BYTES - 2])?;
        self.put(at + 2, &EXPRESS_FLAGS.to_le_bytes());
        self.put(at + EXPRESS_DEVICE_CAPABILITIES, &DEVICE_CAPABILITIES.to_le_bytes());
        self.allow(at + EXPRESS_DEVICE_CONTROL, &DEVICE_CONTROL_WRITABLE.to_le_bytes());
        self.express = Some(at);
        Ok(())
    }

    /// Adds the MSI-X capability.
    pub(crate) fn add_msix(&mut self, spec: &MsixSpec) -> Result<(), NoRoom> {
        let bar = u32::from(spec.bar);
        let mut body = [0; 10];
        let (control, rest) = body.split_at_mut(2);
        let (table, pba) = rest.split_at_mut(4);
        control.copy_from_slice(&spec.vectors.wrapping_sub(1).to_le_bytes());
        table.copy_from_slice(&(spec.table_offset | bar).to_le_bytes());
        pba.copy_from_slice(&(spec.pba_offset | bar).to_le_bytes());
        let at = self.add_capability(CAPABILITY_MSIX, &body)?;
        self.allow(at + MSIX_CONTROL, &(MSIX_ENABLE | MSIX_MASK_ALL).to_le_bytes());
        self.msix = Some(at);
        Ok(())
    }

    /// Adds a vendor-specific capability.
    pub(crate) fn add_vendor(&mut self, capability: &VendorCapability) -> Result<(), NoRoom> {
        let length = u8::try_from(capability.body.len() + 3).map_err(|_| NoRoom)?;
        let body: Vec<u8> = std::iter::once(length).chain(capability.body.iter().copied()).collect();
        let at = self.add_capability(CAPABILITY_VENDOR, &body)?;
        if capability.window {
            if body.len() + 2 != WINDOW_BYTES {
                return Err(NoRoom);
            }
            self.allow(at + WINDOW_BAR, &[0xff]);
            self.allow(at + WINDOW_OFFSET, &[0xff; WINDOW_BYTES - WINDOW_OFFSET]);
            self.window = Some(at);
        }
        Ok(())
    }

    /// The access to a BAR that an access to `len` bytes at `offset` stands for.
    pub(crate) fn window_access(&self, offset: u16, len: usize) -> Option<WindowAccess> {
        let window = self.window?;
        let (start, data) = (usize::from(offset), window + WINDOW_DATA);
        if start >= data + 4 || start + len <= data {
            return None;
        }
        let length = usize::try_from(self.u32(window + WINDOW_LENGTH)).ok()?;
        let offset = u64::from(self.u32(window + WINDOW_OFFSET));
        let aligned = matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length as u64);
        aligned.then(|| WindowAccess {
            bar: self.bytes[window + WINDOW_BAR],
            offset,
            length,
            data: self.u32(data).to_le_bytes(),
        })
    }

    /// Shows what was read by way of the window.
    pub(crate) fn set_window_data(&mut self, data: &[u8]) {
        if let Some(window) = self.window {
            self.put(window + WINDOW_DATA, data);
        }
    }

    /// Says in the header that the slot has more than one function.
    pub(crate) fn set_multifunction(&mut self) {
        self.bytes[HEADER_TYPE] |= HEADER_MULTIFUNCTION;
    }

    /// Copies bytes out; beyond the end they are zeros.
    pub(crate) fn read(&self, offset: u16, data: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(data) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Changes the writable bits.
    pub(crate) fn write(&mut self, offset: u16, data: &[u8]) {
        let targets = self.bytes.iter_mut().zip(&self.writable).skip(usize::from(offset));
        for ((byte, mask), new) in targets.zip(data) {
            *byte = (*byte & !mask) | (new & mask);
        }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes over saved bytes. `false`, and nothing has changed, when they are of another function: its read-only bits
    /// differ.
    #[must_use]
    pub(crate) fn restore(&mut self, saved: &[u8]) -> bool {
        let Ok(saved) = <&[u8; SIZE]>::try_from(saved) else { return false };
        let same = |((own, saved), writable): ((&u8, &u8), &u8)| own & !writable == saved & !writable;
        let alike = self.bytes.iter().zip(saved).zip(&self.writable).all(same);
        if alike {
            self.bytes = *saved;
        }
        alike
    }

    /// Every writable bit back to zero, which is the power-on value of all of them.
    pub(crate) fn reset(&mut self) {
        for (byte, mask) in self.bytes.iter_mut().zip(&self.writable) {
            *byte &= !mask;
        }
    }

    /// Whether the guest has just asked for a function level reset.
    pub(crate) fn take_reset_request(&mut self) -> bool {
        let Some(at) = self.express.map(|express| express + EXPRESS_DEVICE_CONTROL) else { return false };
        let control = self.u16(at);
        self.put(at, &(control & !DEVICE_CONTROL_RESET).to_le_bytes());
        control & DEVICE_CONTROL_RESET != 0
    }

    /// Bus master enable.
    pub(crate) fn is_bus_master(&self) -> bool {
        self.u16(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// MSI-X enable and function mask.
    pub(crate) fn msix_control(&self) -> (bool, bool) {
        let control = self.msix.map_or(0, |msix| self.u16(msix + MSIX_CONTROL));
        (control & MSIX_ENABLE != 0, control & MSIX_MASK_ALL != 0)
    }

    /// Where `bar` is decoded; `None` while memory decoding is off or the BAR holds no address.
    pub(crate) fn bar_base(&self, bar: &BarSpec) -> Option<u64> {
        if self.u16(COMMAND) & COMMAND_MEMORY == 0 {
            return None;
        }
        let mut address = [0; 8];
        let at = bar_offset(bar.index);
        let width = bar.kind.registers() * 4;
        address[..width].copy_from_slice(&self.bytes[at..at + width]);
        Some(u64::from_le_bytes(address) & !BAR_FLAGS).filter(|base| *base != 0)
    }

    /// Writes `base` into `bar`, as firmware does.
    pub(crate) fn set_bar(&mut self, bar: &BarSpec, base: u64) {
        let width = bar.kind.registers() * 4;
        let at = u16::from(bar.index) * 4 + BAR0 as u16;
        self.write(at, &base.to_le_bytes()[..width]);
    }

    fn add_capability(&mut self, id: u8, body: &[u8]) -> Result<usize, NoRoom> {
        let at = self.next;
        let end = at + 2 + body.len();
        if end > SIZE {
            return Err(NoRoom);
        }
        self.put(self.link, &[u8::try_from(at).map_err(|_| NoRoom)?]);
        self.put(at, &[id, 0]);
        self.put(at + 2, body);
        self.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.link = at + 1;
        self.next = end.next_multiple_of(4);
        Ok(at)
    }

    // The offsets of the four below are constants or came from `add_capability`: never the guest's.

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

fn bar_offset(index: u8) -> usize {
    BAR0 + usize::from(index) * 4
}
