//! What a console is connected to on the host: standard streams, a file, or a socket.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::config::{SerialConfig, SerialType};
use crate::error::{Error, Result};

/// A write of at most this much to a pipe or terminal that polls as writable does not block.
const SAFE_WRITE: usize = 4096;

/// The host end of a console.
pub(super) enum Endpoint {
    /// Standard input and output.
    Stdio,
    /// Output only.
    File(File),
    /// A listening socket with at most one client.
    Socket(Socket),
}

/// A listening UNIX socket, and who is connected.
pub(super) struct Socket {
    path: PathBuf,
    pub(super) listener: UnixListener,
    pub(super) client: Option<UnixStream>,
}

impl Endpoint {
    /// Opens what `config` says; `None` for a port connected to nothing.
    pub(super) fn open(config: &SerialConfig) -> Result<Option<Self>> {
        let path = config.path.as_deref().unwrap_or(Path::new(""));
        match config.kind {
            SerialType::Null => Ok(None),
            SerialType::Stdio => Ok(Some(Self::Stdio)),
            SerialType::File => {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(path)
                    .map_err(|e| Error::io(format!("open serial output file {}", path.display()), e))?;
                Ok(Some(Self::File(file)))
            }
            SerialType::Socket => Socket::listen(path).map(|socket| Some(Self::Socket(socket))),
        }
    }

    /// Whether somebody reads what is written.
    pub(super) fn has_reader(&self) -> bool {
        !matches!(self, Self::Socket(Socket { client: None, .. }))
    }

    /// Whether input comes from a terminal, so that escape keys mean something.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Stdio) && io::stdin().is_terminal()
    }

    /// Descriptors of input and output; the same one for a client.
    pub(super) fn fds(&self) -> (Option<RawFd>, Option<RawFd>) {
        match self {
            Self::Stdio => (Some(io::stdin().as_raw_fd()), Some(io::stdout().as_raw_fd())),
            Self::File(_) => (None, None),
            Self::Socket(socket) => {
                let client = socket.client.as_ref().map(AsRawFd::as_raw_fd);
                (client, client)
            }
        }
    }

    /// Writes what can be written without blocking. `WouldBlock` when that is nothing.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Stdio => write_when_ready(io::stdout().as_fd(), bytes),
            Self::File(file) => rustix::io::write(file, bytes),
            Self::Socket(Socket { client: Some(client), .. }) => rustix::io::write(client, bytes),
            Self::Socket(_) => Err(Errno::WOULDBLOCK),
        };
        Ok(written?)
    }

    /// Reads what has arrived; 0 at the end.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self {
            Self::Stdio => rustix::io::read(io::stdin(), buffer),
            Self::Socket(Socket { client: Some(client), .. }) => rustix::io::read(client, buffer),
            Self::File(_) | Self::Socket(_) => Err(Errno::WOULDBLOCK),
        };
        Ok(count?)
    }
}

/// Standard output may be shared with other processes, so it stays in blocking mode and is asked first.
fn write_when_ready(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    if fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
        return rustix::io::write(fd, bytes);
    }
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Err(Errno::WOULDBLOCK);
    }
    rustix::io::write(fd, &bytes[..bytes.len().min(SAFE_WRITE)])
}

impl Socket {
    fn listen(path: &Path) -> Result<Self> {
        remove_stale(path)?;
        let failed = |e| Error::io(format!("listen on serial socket {}", path.display()), e);
        let listener = UnixListener::bind(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { path: path.to_owned(), listener, client: None })
    }

    /// Takes the next client, if one waits, and returns the one it replaces.
    pub(super) fn accept(&mut self) -> io::Result<Option<Option<UnixStream>>> {
        match self.listener.accept() {
            Ok((client, _)) => {
                client.set_nonblocking(true)?;
                Ok(Some(self.client.replace(client)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket that a process which no longer runs has left behind.
fn remove_stale(path: &Path) -> Result<()> {
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::Resource(format!(
            "Serial socket {} is in use by another process: choose another path",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|e| Error::io(format!("remove the stale serial socket {}", path.display()), e)),
        // Nothing there, or something that bind will complain about.
        Err(_) => Ok(()),
    }
}
