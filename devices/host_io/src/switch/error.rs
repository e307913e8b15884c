//! Why a switch could not be started or reached.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::protocol::ProtocolError;
use crate::socket_file::ListenError;

/// Why a switch could not serve.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// Its socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The event loop failed.
    #[error("Switch event loop failed")]
    Loop(#[source] io::Error),
}

/// Why a port could not be connected to a switch.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The path does not fit in a socket address.
    #[error("Socket path {0} is longer than 107 bytes: choose a shorter one")]
    PathTooLong(PathBuf),
    /// There is no socket at the path.
    #[error("No switch at {0}: start one with `verbena switch --socket {0}`")]
    Absent(PathBuf),
    /// There is a socket, and nobody listens on it.
    #[error("The switch at {0} has died: start it again with `verbena switch --socket {0}`")]
    Dead(PathBuf),
    /// The socket belongs to somebody else.
    #[error("No permission to use the switch at {0}: it serves only the user who started it")]
    Permission(PathBuf),
    /// Something listens that is not a switch.
    #[error("{0} is not the socket of a Verbena switch")]
    Foreign(PathBuf),
    /// The switch did not answer in time.
    #[error("The switch at {0} does not answer: is it stopped, or another program?")]
    Silent(PathBuf),
    /// The connection ended without an answer.
    #[error(
        "{0} hung up without an answer: it is no Verbena switch, has just stopped, or has too many connections"
    )]
    HungUp(PathBuf),
    /// The switch said no.
    #[error("The switch at {path} refused the port: {reason}")]
    Refused {
        /// The switch's socket.
        path: PathBuf,
        /// In the switch's words.
        reason: String,
    },
    /// The switch speaks another language.
    #[error("Cannot understand the switch at {path}")]
    Protocol {
        /// The switch's socket.
        path: PathBuf,
        /// What is wrong.
        source: ProtocolError,
    },
    /// The port would send what the switch does not carry.
    #[error(
        "Port MTU {port} is larger than the {switch} of the switch at {path}: lower it, or start the switch with a larger one"
    )]
    Mtu {
        /// The switch's socket.
        path: PathBuf,
        /// Asked for.
        port: u16,
        /// Carried by the switch.
        switch: u16,
    },
    /// The operating system refused.
    #[error("Cannot connect to the switch at {path}")]
    Io {
        /// The switch's socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ConnectError {
    /// Names the cause of a failed `connect`.
    pub(super) fn from_connect(path: PathBuf, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Absent(path),
            Errno::CONNREFUSED => Self::Dead(path),
            Errno::ACCESS | Errno::PERM => Self::Permission(path),
            Errno::PROTOTYPE => Self::Foreign(path),
            Errno::AGAIN => Self::Silent(path),
            errno => Self::Io { path, source: errno.into() },
        }
    }
}
