//! The socket file: made without a race, private to its user, and removed with the process that made it.

use std::fs::{self, File, TryLockError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with, sockopt,
};
use std::io::{IoSlice, IoSliceMut};

use super::error::SwitchError;

/// Connections that may wait for the switch to accept them.
const LISTEN_BACKLOG: i32 = 64;
/// Kernel buffer asked for in each direction; what the system's limit allows is used.
const SEND_BUFFER: usize = 4 << 20;
/// Tries to get the lock of the socket's directory, and the pause between two.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that only our own is removed.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. The file of a dead process is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, SwitchError> {
        let fail = |action| move |source| SwitchError::Io { action, path: path.into(), source };
        let address = SocketAddrUnix::new(path).map_err(|_| SwitchError::PathTooLong(path.into()))?;
        let _lock = lock_directory(path)?;
        clear_stale(path, &address)?;
        let socket = new_socket().map_err(|e| fail("make a socket for")(e.into()))?;
        // Before `bind`: the file is then made with this mode, and no other user can slip in between.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|e| fail("protect")(e.into()))?;
        bind(&socket, &address).map_err(|e| fail("create socket")(e.into()))?;
        listen(&socket, LISTEN_BACKLOG).map_err(|e| fail("listen on")(e.into()))?;
        let file = fs::symlink_metadata(path).map_err(fail("inspect"))?;
        Ok(Self { socket, path: path.into(), file: (file.dev(), file.ino()) })
    }

    /// A waiting connection.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        enlarge_send_buffer(&socket);
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

/// A connection to the switch at `path`, which has not greeted yet.
pub(super) fn dial(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = new_socket()?;
    connect(&socket, address)?;
    enlarge_send_buffer(&socket);
    Ok(socket)
}

/// Sends one message. Never blocks.
pub(super) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags).map(drop)
}

/// What [`recv`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A whole message of this many bytes.
    Message(usize),
    /// A message longer than the buffer; it is gone.
    TooLong,
    /// The peer has hung up.
    Closed,
}

/// Takes one message. Never blocks: [`Errno::AGAIN`] when there is none.
pub(super) fn recv(socket: impl AsFd, parts: &mut [IoSliceMut<'_>]) -> Result<Received, Errno> {
    // Without room for control data the kernel closes any descriptor a peer sends along.
    let got = recvmsg(socket, parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?;
    Ok(match got {
        m if m.flags.contains(ReturnFlags::TRUNC) => Received::TooLong,
        m if m.bytes == 0 => Received::Closed,
        m => Received::Message(m.bytes),
    })
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A larger kernel buffer only saves copies into the queue behind it, so a refusal is no error.
fn enlarge_send_buffer(socket: &OwnedFd) {
    let forced = sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER);
    let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER));
}

/// Removes a socket file that no process listens on. Call with the directory's lock.
fn clear_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SwitchError> {
    let fail = |action| move |source| SwitchError::Io { action, path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("inspect")(error)),
        Ok(file) if !file.file_type().is_socket() => return Err(SwitchError::NotSocket(path.into())),
        Ok(_) => {}
    }
    let probe = new_socket().map_err(|e| fail("make a socket for")(e.into()))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(fail("replace the stale socket")),
        // Connected, its queue is full, or a socket of another type: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(SwitchError::InUse(path.into())),
        Err(errno) => Err(fail("probe")(errno.into())),
    }
}

/// Keeps two starting switches from replacing the same stale file. The lock ends with the returned file.
fn lock_directory(path: &Path) -> Result<File, SwitchError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let fail = |source| SwitchError::Io { action: "open directory", path: directory.into(), source };
    let file = File::open(directory).map_err(fail)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
    }
    Err(SwitchError::DirectoryLocked(directory.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_file_is_private_and_removed_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn live_socket_is_in_use_whatever_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let _switch = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(SwitchError::InUse(_))));
        let path = dir.path().join("y.sock");
        let _stream = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(SwitchError::InUse(_))));
    }

    #[test]
    fn stale_socket_of_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let dead = new_socket().unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(path.exists());
        assert!(Listener::bind(&path).is_ok());
    }

    #[test]
    fn file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path), Err(SwitchError::NotSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn successor_at_the_same_path_keeps_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let first = Listener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn overlong_path_and_missing_directory_are_named() {
        let long = PathBuf::from("/tmp").join("x".repeat(120));
        assert!(matches!(Listener::bind(&long), Err(SwitchError::PathTooLong(_))));
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/x.sock");
        assert!(matches!(Listener::bind(&missing), Err(SwitchError::Io { action: "open directory", .. })));
    }
}
