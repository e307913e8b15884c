//! Opcodes.

use super::Error;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a command asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode {
            $($(#[$doc])* $name = $value,)*
        }

        impl Opcode {
            /// Every opcode.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];
        }

        impl TryFrom<u16> for Opcode {
            type Error = Error;

            fn try_from(value: u16) -> Result<Self, Error> {
                match value {
                    $($value => Ok(Opcode::$name),)*
                    _ => Err(Error::Opcode(value)),
                }
            }
        }
    };
}

opcodes! {
    /// The first command of every connection.
    Connect = 0x0000,
    /// The last command of a connection.
    Disconnect = 0x0001,
    /// Shows that the peer is there.
    Keepalive = 0x0002,
    /// Reads transport features.
    GetFeature = 0x0004,
    /// Chooses transport features.
    SetFeature = 0x0005,
    /// Asks how many descriptors a command may have.
    GetKeyedNumDescs = 0x0100,
    /// Asks for target memory that the initiator may write to.
    GetKeyedEagerBuf = 0x0102,
    /// Extension: authentication.
    Auth = 0x0203,
    /// Extension: lists what the target exports.
    Discover = 0x0204,
    /// Extension: reads configuration space of any length.
    GetConfigBulk = 0x0206,
    /// Extension: writes configuration space of any length.
    SetConfigBulk = 0x0207,
    /// Extension: keeps the session while no connection is open.
    SessionDetach = 0x0209,
    /// Extension: keys of the slots that the target offers.
    GetSlotKeys = 0x020a,
    /// Extension: cancels a command.
    Abort = 0x020c,
    /// Extension: resets one virtqueue.
    VqReset = 0x020e,
    /// Extension: exports device state.
    DevStateGet = 0x0210,
    /// Extension: imports device state.
    DevStateSet = 0x0211,
    /// Extension: stops or runs the device.
    DevModeSet = 0x0213,
    /// Extension: a buffer of a virtqueue.
    Vqx = 0x0ffc,
    /// A buffer of a virtqueue whose readable bytes are in target memory already.
    VqKeyedEagerBuf = 0x0ffe,
    /// A buffer of a virtqueue.
    Vq = 0x0fff,
    /// Reads the virtio vendor id.
    GetVendorId = 0x1000,
    /// Reads the virtio device id.
    GetDeviceId = 0x1001,
    /// Resets the device.
    ResetDevice = 0x1003,
    /// Reads the device status.
    GetStatus = 0x1004,
    /// Writes the device status.
    SetStatus = 0x1005,
    /// Reads device features.
    GetDeviceFeature = 0x1006,
    /// Accepts device features.
    SetDriverFeature = 0x1009,
    /// Asks for the largest size of a virtqueue.
    GetVqSize = 0x100a,
    /// Reads configuration space.
    GetConfig = 0x100c,
    /// Writes configuration space.
    SetConfig = 0x100d,
}

impl Opcode {
    /// Whether the command has the format of the extension's control commands: a body length and two arguments.
    pub fn is_extended_control(self) -> bool {
        (0x0200..0x0300).contains(&(self as u16))
    }
}
