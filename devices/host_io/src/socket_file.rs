//! The file of a listening UNIX socket: made without a race, private to its user, and removed with the process that made
//! it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

/// Connections that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 64;
/// Tries to get the lock of the socket's directory, and the pause between two.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Why a socket could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens at the path.
    #[error("Socket {0} is in use by another process: stop that process or choose another path")]
    InUse(PathBuf),
    /// The path names something that is not a socket.
    #[error("{0} exists and is not a socket: remove it or choose another path")]
    NotSocket(PathBuf),
    /// The path does not fit in a socket address.
    #[error("Socket path {0} is longer than 107 bytes: choose a shorter one")]
    PathTooLong(PathBuf),
    /// Another process keeps the directory's lock.
    #[error("Directory {0} is locked by another process: try again or choose another directory")]
    DirectoryLocked(PathBuf),
    /// The operating system refused.
    #[error("Cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A listening socket and its file, which has mode 0600. Never blocks.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that only our own is removed.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. The file of a dead process is replaced.
    ///
    /// # Errors
    ///
    /// [`ListenError::InUse`] when a live process listens there; other variants name their cause.
    pub fn bind(path: &Path, kind: SocketType) -> Result<Self, ListenError> {
        let fail = |action| move |source| ListenError::Io { action, path: path.into(), source };
        let address = SocketAddrUnix::new(path).map_err(|_| ListenError::PathTooLong(path.into()))?;
        let _lock = lock_directory(path)?;
        clear_stale(path, &address, kind)?;
        let socket = new_socket(kind).map_err(|e| fail("make a socket for")(e.into()))?;
        // Before `bind`: the file is then made with this mode, and no other user can slip in between.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|e| fail("protect")(e.into()))?;
        bind(&socket, &address).map_err(|e| fail("create socket")(e.into()))?;
        listen(&socket, LISTEN_BACKLOG).map_err(|e| fail("listen on")(e.into()))?;
        let file = fs::symlink_metadata(path).map_err(fail("inspect"))?;
        Ok(Self { socket, path: path.into(), file: (file.dev(), file.ino()) })
    }

    /// A waiting connection, non-blocking.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`] when there is none, and what `accept` says otherwise.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "Socket file stays behind");
        }
    }
}

fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Removes a socket file that no process listens on. Call with the directory's lock.
fn clear_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> Result<(), ListenError> {
    let fail = |action| move |source| ListenError::Io { action, path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("inspect")(error)),
        Ok(file) if !file.file_type().is_socket() => return Err(ListenError::NotSocket(path.into())),
        Ok(_) => {}
    }
    let probe = new_socket(kind).map_err(|e| fail("make a socket for")(e.into()))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(fail("replace the stale socket")),
        // Connected, its queue is full, or a socket of another type: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(ListenError::InUse(path.into())),
        Err(errno) => Err(fail("probe")(errno.into())),
    }
}

/// Keeps two starting processes from replacing the same stale file. The lock ends with the returned file.
fn lock_directory(path: &Path) -> Result<File, ListenError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let fail = |source| ListenError::Io { action: "open directory", path: directory.into(), source };
    let file = File::open(directory).map_err(fail)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
    }
    Err(ListenError::DirectoryLocked(directory.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    const KIND: SocketType = SocketType::SEQPACKET;

    #[test]
    fn socket_file_is_private_and_removed_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let listener = Listener::bind(&path, KIND).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn live_socket_is_in_use_whatever_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let _switch = Listener::bind(&path, KIND).unwrap();
        assert!(matches!(Listener::bind(&path, KIND), Err(ListenError::InUse(_))));
        let path = dir.path().join("y.sock");
        let _stream = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path, KIND), Err(ListenError::InUse(_))));
    }

    #[test]
    fn stale_socket_of_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let dead = new_socket(KIND).unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(path.exists());
        assert!(Listener::bind(&path, KIND).is_ok());
    }

    #[test]
    fn file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path, KIND), Err(ListenError::NotSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn successor_at_the_same_path_keeps_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let first = Listener::bind(&path, KIND).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&path, KIND).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn overlong_path_and_missing_directory_are_named() {
        let long = PathBuf::from("/tmp").join("x".repeat(120));
        assert!(matches!(Listener::bind(&long, KIND), Err(ListenError::PathTooLong(_))));
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/x.sock");
        assert!(matches!(
            Listener::bind(&missing, KIND),
            Err(ListenError::Io { action: "open directory", .. })
        ));
    }
}
