//! Registers. All are 32 bits wide and 8 bytes apart; only aligned 32-bit accesses exist.

use super::{MAX_RX_QUEUES, MAX_TX_QUEUES, MAX_VECTORS};

/// BAR number of the data path registers (`VMXNET3_IO_TYPE_PT`).
pub const BAR_DATA: u8 = 0;
/// BAR number of the control registers (`VMXNET3_IO_TYPE_VD`).
pub const BAR_CONTROL: u8 = 1;
/// BAR number of the MSI-X structures.
pub const BAR_MSIX: u8 = 2;
/// Size of each BAR in bytes.
pub const BAR_SIZE: u64 = 4096;
/// Distance between two registers in bytes.
pub const STRIDE: u64 = 8;
/// Offset of the first TXPROD register.
pub const TXPROD: u64 = 0x600;

/// A register of BAR 0, with its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRegister {
    /// `IMR`: 1 masks the vector, 0 unmasks it. Read/write.
    InterruptMask(u8),
    /// `TXPROD`: a write tells that a transmit ring has new descriptors.
    TxProducer(u8),
    /// `RXPROD` and `RXPROD2`: a write tells how far a receive ring is filled.
    RxProducer(u8),
}

impl DataRegister {
    /// The register at `offset` of BAR 0.
    pub fn at(offset: u64) -> Option<Self> {
        let index = |base: u64, count: u8| {
            let distance = offset.checked_sub(base)?;
            let index = u8::try_from(distance / STRIDE).ok()?;
            (distance % STRIDE == 0 && index < count).then_some(index)
        };
        index(0, MAX_VECTORS)
            .map(Self::InterruptMask)
            .or_else(|| index(TXPROD, MAX_TX_QUEUES).map(Self::TxProducer))
            .or_else(|| index(0x800, MAX_RX_QUEUES).map(Self::RxProducer))
            .or_else(|| index(0xa00, MAX_RX_QUEUES).map(Self::RxProducer))
    }
}

/// A register of BAR 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRegister {
    /// `VRRS`: reads as the bitmap of device revisions on offer; the driver writes its choice.
    Revisions,
    /// `UVRS`: the same for UPT versions.
    UptVersions,
    /// `DSAL`: low half of the shared area's address. Read/write.
    SharedLow,
    /// `DSAH`: high half. Read/write.
    SharedHigh,
    /// `CMD`: a write executes a command, a read gives the last command's result.
    Command,
    /// `MACL`: bytes 0 to 3 of the current address. Read/write.
    MacLow,
    /// `MACH`: bytes 4 and 5. Read/write; takes effect together with `MACL`.
    MacHigh,
    /// `ICR`: cause of a pin interrupt; this device has only message-signalled ones. Reads zero.
    InterruptCause,
    /// `ECR`: a write acknowledges events; reads as those outstanding.
    EventCause,
}

impl ControlRegister {
    /// The register at `offset` of BAR 1.
    pub fn at(offset: u64) -> Option<Self> {
        Some(match offset {
            0x00 => Self::Revisions,
            0x08 => Self::UptVersions,
            0x10 => Self::SharedLow,
            0x18 => Self::SharedHigh,
            0x20 => Self::Command,
            0x28 => Self::MacLow,
            0x30 => Self::MacHigh,
            0x38 => Self::InterruptCause,
            0x40 => Self::EventCause,
            _ => return None,
        })
    }
}
