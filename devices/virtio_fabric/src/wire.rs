//! The wire format: every command, completion, descriptor and status of the base profile and of the extension.
//!
//! A message is a header of 16 bytes and, for some, a body. [`Command`] and [`Completion`] are the headers as types;
//! the modules beside them have the bodies. Parsers take bytes of a peer: they never panic, refuse what they do not
//! know by a named [`Error`] and look at no byte beyond the lengths they have checked.

/// Declares a wire structure with the size and the field offsets it must have.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident [$size:literal] {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty = $offset:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

mod cm;
mod command;
mod completion;
mod connect;
mod discovery;
mod event;
mod feature;
mod frame;
mod opcode;
mod slot;
mod status;
mod vqx;

pub use cm::{CmFlags, CmReject, CmReply, CmRequest};
pub use command::{Command, Request};
pub use completion::{Completion, Reply};
pub use connect::{
    CONNECT_BODY, CONNECT_REPLY, ConnectBody, ConnectFlags, ConnectReply, Extension, Name, ReplyFlags,
    VERSION,
};
pub use discovery::Discovered;
pub use event::{Event, Redirect};
pub use feature::Features;
pub use frame::{FRAME_HEADER, FrameFlags, FrameHeader, FrameType};
pub use opcode::Opcode;
pub use slot::SlotKey;
pub use status::Status;
pub use vqx::{Immediate, Keyed, VqxCommand, VqxFlags, VqxLimits, VqxMessage};

/// Bytes of every command and completion header.
pub const HEADER: usize = 16;
/// The device instance id that asks for a new instance: the Connect of a control queue.
pub const NEW_INSTANCE: u16 = 0xffff;
/// The queue size that the Connect of a control queue names.
pub const CONTROL_QUEUE_SIZE: u16 = 32;
/// Command ids from here on belong to events on a control queue.
pub const EVENT_IDS: u16 = 0xff00;
/// The port of a target, unless configured otherwise.
pub const PORT: u16 = 8549;
/// Most bytes of configuration that are read at once.
pub const MAX_CONFIG: usize = 1024;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the structure has.
    #[error("Short message: {got} bytes where {want} belong")]
    Short {
        /// Bytes there are.
        got: usize,
        /// Bytes there must be.
        want: usize,
    },
    /// More bytes than the structure has.
    #[error("Long message: {got} bytes where {want} belong")]
    Long {
        /// Bytes there are.
        got: usize,
        /// Bytes there must be.
        want: usize,
    },
    /// An opcode that neither profile has.
    #[error("Unknown opcode {0:#06x}")]
    Opcode(u16),
    /// A flag that must be zero.
    #[error("Reserved flag in {0:#x}")]
    Flag(u32),
    /// A magic number that is not ours.
    #[error("No magic number")]
    Magic,
    /// A structure that says it is smaller than its first version.
    #[error("Structure of {0} bytes")]
    Size(usize),
    /// A name that is not UTF-8, not terminated, or has forbidden characters.
    #[error("Bad qualified name: {0}")]
    Name(&'static str),
    /// A width other than 1, 2, 4, 8.
    #[error("Configuration access of {0} bytes")]
    Width(u8),
    /// A descriptor without bytes, or one that wraps around the address space.
    #[error("Bad descriptor: {0}")]
    Descriptor(&'static str),
    /// Lengths of a command that contradict each other.
    #[error("Bad lengths: {0}")]
    Length(&'static str),
    /// A limit that was agreed on and is exceeded.
    #[error("Limit exceeded: {0}")]
    Limit(&'static str, Status),
    /// An event that no version has.
    #[error("Unknown event {0:#06x}")]
    Event(u16),
    /// Immediate data that no version has.
    #[error("Unknown immediate data {0:#010x}")]
    Immediate(u32),
    /// A type of frame that no version has.
    #[error("Unknown frame type {0}")]
    Frame(u8),
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The first `N` bytes, as an array.
fn head<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Error> {
    bytes.first_chunk().ok_or(Error::Short { got: bytes.len(), want: N })
}

/// Refuses any length but `want`.
fn exactly(bytes: &[u8], want: usize) -> Result<(), Error> {
    match bytes.len() {
        got if got < want => Err(Error::Short { got, want }),
        got if got > want => Err(Error::Long { got, want }),
        _ => Ok(()),
    }
}
