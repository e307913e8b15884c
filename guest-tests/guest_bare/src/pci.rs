//! Finding a function on bus 0 and switching it on.

use crate::io;

/// Offsets in configuration space (PCI Local Bus Specification, section 6.1).
const ID: u64 = 0x00;
const COMMAND: u64 = 0x04;
const BARS: u64 = 0x10;
/// Memory accesses and bus mastering.
const MEMORY_AND_MASTER: u32 = 1 << 1 | 1 << 2;
/// Bits of a memory BAR that are no address.
const FLAGS: u32 = 0xf;
/// A BAR whose next register holds the upper half of its address.
const IS_64_BIT: u32 = 1 << 2;

/// A function, by the address of its configuration space.
#[derive(Clone, Copy)]
pub struct Function(u64);

impl Function {
    /// The first function of bus 0 with this vendor and device number.
    pub fn find(ecam: u64, vendor: u16, device: u16) -> Option<Self> {
        let wanted = u32::from(device) << 16 | u32::from(vendor);
        let functions = (0..256).map(|function| Self(ecam + (function << 12)));
        functions.into_iter().find(|function| io::read_register(function.0 + ID) == wanted)
    }

    /// Lets it answer to its BARs and reach memory.
    pub fn enable(self) {
        let command = io::read_register(self.0 + COMMAND) & 0xffff;
        io::write_register(self.0 + COMMAND, command | MEMORY_AND_MASTER);
    }

    /// Address of a memory BAR, as the VMM has placed it.
    pub fn bar(self, number: u8) -> u64 {
        let register = self.register(number);
        let low = io::read_register(register);
        let high = if low & IS_64_BIT != 0 { io::read_register(register + 4) } else { 0 };
        u64::from(high) << 32 | u64::from(low & !FLAGS)
    }

    /// Moves a 64-bit memory BAR to an address below 4 GiB. To be called before [`Function::enable`].
    pub fn move_bar(self, number: u8, address: u32) {
        let register = self.register(number);
        io::write_register(register, address);
        io::write_register(register + 4, 0);
    }

    fn register(self, bar: u8) -> u64 {
        self.0 + BARS + 4 * u64::from(bar)
    }
}
