//! Transport opcodes.

/// Transport service, the top three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// The position of a packet that does or does not start and end its message.
    pub const fn of(starts: bool, ends: bool) -> Self {
        match (starts, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Whether the message starts with this packet.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A transport opcode as it stands in the base transport header (IBTA table 38). Any value may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($name:ident = $value:literal),+ $(,)?) => {
        #[allow(missing_docs, reason = "named after table 38")]
        impl Opcode {
            $(pub const $name: Self = Self($value);)+
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00,
    RC_SEND_MIDDLE = 0x01,
    RC_SEND_LAST = 0x02,
    RC_SEND_LAST_IMM = 0x03,
    RC_SEND_ONLY = 0x04,
    RC_SEND_ONLY_IMM = 0x05,
    RC_WRITE_FIRST = 0x06,
    RC_WRITE_MIDDLE = 0x07,
    RC_WRITE_LAST = 0x08,
    RC_WRITE_LAST_IMM = 0x09,
    RC_WRITE_ONLY = 0x0a,
    RC_WRITE_ONLY_IMM = 0x0b,
    RC_READ_REQUEST = 0x0c,
    RC_READ_RESPONSE_FIRST = 0x0d,
    RC_READ_RESPONSE_MIDDLE = 0x0e,
    RC_READ_RESPONSE_LAST = 0x0f,
    RC_READ_RESPONSE_ONLY = 0x10,
    RC_ACKNOWLEDGE = 0x11,
    RC_ATOMIC_ACKNOWLEDGE = 0x12,
    RC_COMPARE_SWAP = 0x13,
    RC_FETCH_ADD = 0x14,
    RC_SEND_LAST_INV = 0x16,
    RC_SEND_ONLY_INV = 0x17,
    UD_SEND_ONLY = 0x64,
    UD_SEND_ONLY_IMM = 0x65,
    CNP = 0x81,
}

impl Opcode {
    /// The service it belongs to; `None` for services this engine does not speak.
    pub const fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::Rc),
            3 => Some(Service::Ud),
            _ if self.0 == Self::CNP.0 => Some(Service::Cnp),
            _ => None,
        }
    }
}
