//! The command channel: copies a request out of the command slot, parses, executes and answers it, all inside the write
//! to `REQUEST`.
//!
//! The driver reads `ERR` at once and gives up if it is not zero; then no interrupt may follow, for it would be taken for
//! the answer to the next command. Commands without a response are over when `ERR` reads zero, and the guest reuses the
//! memory of what they destroyed.

mod bind;
mod convert;
mod execute;
mod memory;
mod parse;
mod port;
mod qp;
mod queue;

pub(crate) use parse::Command;
pub(crate) use queue::WorkQueueSize;

use pvrdma_spec::command::Opcode;

use crate::ring::PageError;

/// Values of `ERR` and of `hdr.err`, with the numbers of Linux, whose driver prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    /// `ENOENT`
    NotFound = 2,
    /// `EIO`
    Io = 5,
    /// `ENOMEM`
    NoMemory = 12,
    /// `EFAULT`
    Fault = 14,
    /// `EBUSY`
    Busy = 16,
    /// `EEXIST`
    Exists = 17,
    /// `EINVAL`
    Invalid = 22,
    /// `ENOTCONN`: no shared region, not activated, or not allowed to access memory. Also the value at power-on.
    NotReady = 107,
    /// `EOPNOTSUPP`
    Unsupported = 95,
}

/// Why a command failed. Nothing has changed when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    /// A number that is no command.
    #[error("Unknown command {0}")]
    Unknown(u32),
    /// A command the device does not have.
    #[error("Command {0:?} is not supported")]
    Unsupported(Opcode),
    /// A handle that names nothing.
    #[error("No {0} has handle {1}")]
    NoObject(&'static str, u32),
    /// Objects that belong to different contexts or protection domains.
    #[error("{0} belongs to another context")]
    Foreign(&'static str),
    /// Other objects depend on it.
    #[error("{0} {1} is in use")]
    Busy(&'static str, u32),
    /// A capability is reached.
    #[error("No more {0}")]
    Exhausted(&'static str),
    /// A value outside its range.
    #[error("Invalid {0}")]
    Invalid(&'static str),
    /// A bad page directory.
    #[error(transparent)]
    Pages(#[from] PageError),
    /// The provider refused.
    #[error(transparent)]
    Provider(#[from] verbs::Error),
}

impl CommandError {
    /// What the driver is told.
    pub(crate) const fn errno(&self) -> Errno {
        match self {
            Self::Unknown(_) | Self::Invalid(_) => Errno::Invalid,
            Self::Unsupported(_) => Errno::Unsupported,
            Self::NoObject(..) => Errno::NotFound,
            Self::Foreign(_) => Errno::Invalid,
            Self::Busy(..) => Errno::Busy,
            Self::Exhausted(_) => Errno::NoMemory,
            Self::Pages(_) => Errno::Fault,
            Self::Provider(error) => match error {
                verbs::Error::NotFound => Errno::NotFound,
                verbs::Error::Exists => Errno::Exists,
                verbs::Error::Busy => Errno::Busy,
                verbs::Error::Exhausted => Errno::NoMemory,
                verbs::Error::Invalid(_) | verbs::Error::Transition => Errno::Invalid,
                verbs::Error::Unsupported(_) => Errno::Unsupported,
                verbs::Error::Host(_) => Errno::Io,
            },
        }
    }
}
