//! BAR 1: 32-bit registers.

/// BAR of the MSI-X table and pending bit array.
pub const BAR_MSIX: u8 = 0;
/// BAR of the registers.
pub const BAR_REGISTERS: u8 = 1;
/// BAR of the doorbell (UAR) pages.
pub const BAR_UAR: u8 = 2;

/// Registers by byte offset. Accesses are aligned 32-bit words.
///
/// | offset | name | access | |
/// |---|---|---|---|
/// | 0x00 | `VERSION` | R | device version |
/// | 0x04 | `DSRLOW` | W | low half of the shared region's address |
/// | 0x08 | `DSRHIGH` | W | high half; loads the region and fills its capabilities |
/// | 0x0c | `CTL` | W | [`Control`] |
/// | 0x10 | `REQUEST` | W | 0 executes the command in the command slot |
/// | 0x14 | `ERR` | R | 0 if the last control or request succeeded |
/// | 0x18 | `ICR` | R | causes since the last read, [`Vector`] by bit |
/// | 0x1c | `IMR` | RW | masked causes |
/// | 0x20 | `MACL` | RW | first four bytes of the MAC address |
/// | 0x24 | `MACH` | RW | last two bytes of the MAC address |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Register {
    /// `PVRDMA_REG_VERSION`
    Version = 0x00,
    /// `PVRDMA_REG_DSRLOW`
    DsrLow = 0x04,
    /// `PVRDMA_REG_DSRHIGH`
    DsrHigh = 0x08,
    /// `PVRDMA_REG_CTL`
    Ctl = 0x0c,
    /// `PVRDMA_REG_REQUEST`
    Request = 0x10,
    /// `PVRDMA_REG_ERR`
    Err = 0x14,
    /// `PVRDMA_REG_ICR`
    Icr = 0x18,
    /// `PVRDMA_REG_IMR`
    Imr = 0x1c,
    /// `PVRDMA_REG_MACL`
    MacLow = 0x20,
    /// `PVRDMA_REG_MACH`
    MacHigh = 0x24,
}

impl Register {
    /// All of them, ascending.
    pub const ALL: [Self; 10] = [
        Self::Version,
        Self::DsrLow,
        Self::DsrHigh,
        Self::Ctl,
        Self::Request,
        Self::Err,
        Self::Icr,
        Self::Imr,
        Self::MacLow,
        Self::MacHigh,
    ];

    /// The register at a byte offset.
    pub fn at(offset: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|register| register.offset() == offset)
    }

    /// Its byte offset.
    pub const fn offset(self) -> u64 {
        self as u64
    }
}

/// Values of `CTL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Control {
    /// Starts to take commands.
    Activate = 0,
    /// The paired network interface came up.
    Unquiesce = 1,
    /// Drops everything, the shared region too.
    Reset = 2,
}

impl Control {
    /// Decodes a register value.
    pub const fn from_value(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Activate,
            1 => Self::Unquiesce,
            2 => Self::Reset,
            _ => return None,
        })
    }
}

/// Interrupt vectors; their causes in `ICR` and `IMR` have the same bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Vector {
    /// A response lies in the response slot.
    Response = 0,
    /// The asynchronous event ring has entries.
    Async = 1,
    /// The completion notification ring has entries.
    Completion = 2,
}

impl Vector {
    /// Number of vectors.
    pub const COUNT: u16 = 3;
    /// All of them, ascending.
    pub const ALL: [Self; 3] = [Self::Response, Self::Async, Self::Completion];

    /// Its bit in `ICR` and `IMR`.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}
