//! Why a run ended, as an error for people and an exit status for scripts.

use std::io;
use std::path::{Path, PathBuf};

use host_io::socket_file::ListenError;
use virtio::block::ImageError;

/// The exit statuses of `verbena`. Part of the interface: numbers never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The guest powered itself off, or the operator pressed the exit key.
    PoweredOff = 0,
    /// Something failed while the machine ran or was built.
    Failure = 1,
    /// The command line or the configuration file is wrong.
    Usage = 2,
    /// A kernel, initramfs or disk image cannot be used.
    Image = 3,
    /// KVM is missing or forbidden.
    Kvm = 4,
    /// A host resource is in use or exhausted.
    Resource = 5,
    /// The guest crashed: kernel panic, triple fault, or a state KVM cannot run.
    GuestCrashed = 6,
    /// The guest asked for a reboot and `--on-reboot exit` is in force.
    Rebooted = 7,
    /// A signal ended the run before the guest powered off.
    Signalled = 8,
    /// Nobody can know where a machine runs that was being moved: the operator has to decide.
    Undecided = 9,
}

/// Text of the exit statuses for `--help`.
pub const EXIT_STATUS_HELP: &str = "\
Exit status:
  0  the guest powered off (or Ctrl-A x was pressed), or the machine was saved or moved elsewhere
  1  failure at run time
  2  wrong command line or configuration file
  3  a kernel, initramfs or disk image cannot be used
  4  KVM is missing or forbidden (the message says what to do)
  5  a host resource is in use or exhausted (socket, locked disk, memory)
  6  the guest crashed (kernel panic, triple fault, or a state KVM cannot run)
  7  the guest asked for a reboot and --on-reboot exit is in force
  8  ended by a signal before the guest powered off
  9  it is not known whether a machine that was being moved runs at the target (`verbena migrate --resolve`)";

/// What can end a run early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or configuration file is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file that the guest is made of cannot be used.
    #[error("Cannot use {} as {role}: {reason}", path.display())]
    Image {
        /// What the file was meant to be, with its article.
        role: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the remedy if there is one.
        reason: String,
    },
    /// KVM cannot be used at all.
    #[error("Cannot use KVM: {0}")]
    Kvm(String),
    /// Something on the host is taken, or there is not enough of it.
    #[error("{0}")]
    Resource(String),
    /// The guest reached a state that it cannot leave.
    #[error("Guest crashed: {0}")]
    GuestCrashed(String),
    /// The host refused an operation.
    #[error("Failed to {action}")]
    Io {
        /// What was attempted, in the infinitive.
        action: String,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// A part of the machine failed.
    #[error("{0}")]
    Failure(String),
}

impl Error {
    /// A failed host operation; `action` completes "Failed to …".
    pub fn io(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { action: action.into(), source: source.into() }
    }

    /// A failed KVM call; `action` completes "Failed to …".
    pub fn kvm(action: &str, errno: kvm_ioctls::Error) -> Self {
        Self::io(action, io::Error::from_raw_os_error(errno.errno()))
    }

    /// An image that cannot be a disk.
    pub fn disk_image(path: &Path, error: &ImageError) -> Self {
        let reason = match error {
            ImageError::Locked(_) => return Self::Resource(error.to_string()),
            ImageError::Open { source, .. } => source.to_string(),
            _ => error.to_string(),
        };
        Self::Image { role: "a disk", path: path.to_owned(), reason }
    }

    /// The exit status this error ends the process with.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Image { .. } => Exit::Image,
            Self::Kvm(_) => Exit::Kvm,
            Self::Resource(_) => Exit::Resource,
            Self::GuestCrashed(_) => Exit::GuestCrashed,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Exit::Resource,
            Self::Io { .. } | Self::Failure(_) => Exit::Failure,
        }
    }

    /// The error and its causes in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl From<ListenError> for Error {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::InUse(_) | ListenError::DirectoryLocked(_) => Self::Resource(error.to_string()),
            ListenError::NotSocket(_) | ListenError::PathTooLong(_) => Self::Usage(error.to_string()),
            ListenError::Io { action, path, source } => {
                Self::io(format!("{action} {}", path.display()), source)
            }
        }
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
