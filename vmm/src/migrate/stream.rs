//! Sections over sockets. Whoever waits for a peer looks now and then whether it still should.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use host_io::socket_file::Listener;
use host_io::tls;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketType, recvmsg, sendmsg, sockopt,
};
use rustix::process::{PidfdFlags, pidfd_open};

use super::address::Address;
use super::wire::{Damaged, HEADER, Head, Message};
use crate::error::Error;

/// How often is looked whether to go on waiting.
const TICK: Duration = Duration::from_millis(50);
/// How long a connection may take to be made.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Bytes of a body that room is made for before they arrive.
const CHUNK: usize = 1 << 20;

/// Why there is no more to be had of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// Somebody here wants no more.
    #[error("It was given up")]
    Stopped,
    /// It is closed.
    #[error("The connection is closed")]
    Closed,
    /// Nothing moved for too long.
    #[error("The other end has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// For a reason that is neither end's fault.
    #[error("{0}")]
    Unfit(String),
    /// The ends do not trust each other.
    #[error(
        "TLS failed: {0}; both ends need --tls, each with a certificate that the other one's authority signed"
    )]
    Refused(io::Error),
    /// TLS cannot be begun.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// What came makes no sense.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The operating system says so.
    #[error("The connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Failure(lost.to_string())
    }
}

/// Says whether to stop waiting.
pub(super) type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

trait Socket: Read + Write + Send {}

impl<T: Read + Write + Send> Socket for T {}

/// A connection.
pub(super) struct Connection {
    socket: Box<dyn Socket>,
    /// The same, if files can be sent over it.
    local: Option<UnixStream>,
    stop: Stop,
    /// Longest time without any progress.
    patience: Duration,
}

impl Connection {
    /// Dials a place where a machine is received.
    pub(super) fn dial(
        to: &Address,
        tls: Option<&tls::Client>,
        stop: Stop,
        patience: Duration,
    ) -> Result<Self, Lost> {
        match to {
            Address::Unix(path) => Self::local(UnixStream::connect(path)?, stop, patience),
            Address::Tcp(place) => {
                let socket = remote(dial_tcp(place)?)?;
                let socket: Box<dyn Socket> = match tls {
                    Some(tls) => Box::new(tls.dial(socket, host(place))?),
                    None => Box::new(socket),
                };
                Ok(Self { socket, local: None, stop, patience })
            }
        }
    }

    pub(super) fn local(socket: UnixStream, stop: Stop, patience: Duration) -> Result<Self, Lost> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        let local = Some(socket.try_clone()?);
        Ok(Self { socket: Box::new(socket), local, stop, patience })
    }

    /// Whether both ends are on one host, so that whatever one has sent will be read by the other, even if it is gone by then.
    pub(super) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Sets how long nothing may move.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Lost> {
        let section = message.encode().ok_or(Damaged("a section is too long to be sent"))?;
        self.send_section(&section)
    }

    /// Sends a section that is encoded already.
    pub(super) fn send_section(&mut self, mut bytes: &[u8]) -> Result<(), Lost> {
        let mut last = Instant::now();
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    bytes = bytes.get(count..).unwrap_or_default();
                    last = Instant::now();
                }
                Err(error) => self.wait_on(error, last)?,
            }
        }
        while let Err(error) = self.socket.flush() {
            self.wait_on(error, last)?;
        }
        Ok(())
    }

    /// Takes a message.
    pub(super) fn receive(&mut self) -> Result<Message, Lost> {
        let mut header = [0; HEADER];
        self.read(&mut header)?;
        let head = Head::parse(&header)?;
        let mut body = Vec::new();
        while body.len() < head.length() {
            let have = body.len();
            body.resize(head.length().min(have + CHUNK), 0);
            self.read(body.get_mut(have..).unwrap_or_default())?;
        }
        Ok(head.open(&body)?)
    }

    fn read(&mut self, mut place: &mut [u8]) -> Result<(), Lost> {
        let mut last = Instant::now();
        while !place.is_empty() {
            match self.socket.read(place) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    place = place.get_mut(count..).unwrap_or_default();
                    last = Instant::now();
                }
                Err(error) => self.wait_on(error, last)?,
            }
        }
        Ok(())
    }

    /// Closes a connection to a process of this host, and gives what it had said by then. From now on it can say nothing:
    /// sending fails there.
    pub(super) fn last_word(&mut self) -> Option<Message> {
        let local = self.local.as_ref()?;
        // It fails for a connection that is closed already, which is as good.
        let _ = local.shutdown(Shutdown::Both);
        self.receive().ok()
    }

    /// A handle of the process at the other end, if it is on this host.
    pub(super) fn process(&self) -> Option<OwnedFd> {
        let peer = sockopt::socket_peercred(self.local.as_ref()?).ok()?;
        pidfd_open(peer.pid, PidfdFlags::empty()).ok()
    }

    /// Sends a file along.
    pub(super) fn send_file(&mut self, file: impl AsFd) -> Result<(), Lost> {
        let socket = self.local.as_ref().ok_or(Damaged("files go to processes of this host only"))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
        Ok(())
    }

    /// Takes a file that was sent along.
    pub(super) fn receive_file(&mut self) -> Result<File, Lost> {
        let start = Instant::now();
        loop {
            let socket = self.local.as_ref().ok_or(Damaged("files come from processes of this host only"))?;
            match receive_file(socket) {
                Ok(Some(file)) => return Ok(file.into()),
                Ok(None) => return Err(Damaged("no memory was handed over").into()),
                Err(errno) => self.wait_on(errno.into(), start)?,
            }
        }
    }

    /// Whether to go on after an error, which only may say that nothing has moved.
    fn wait_on(&self, error: io::Error, last: Instant) -> Result<(), Lost> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                return Err(Lost::Closed);
            }
            _ if tls::is_refusal(&error) => return Err(Lost::Refused(error)),
            _ => return Err(Lost::Io(error)),
        }
        if (self.stop)() {
            return Err(Lost::Stopped);
        }
        if last.elapsed() > self.patience { Err(Lost::Silent(self.patience)) } else { Ok(()) }
    }
}

fn receive_file(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host(place: &str) -> &str {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn remote(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TICK))?;
    socket.set_write_timeout(Some(TICK))?;
    Ok(socket)
}

fn dial_tcp(place: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where a machine is received.
pub(super) enum Door {
    /// A socket file, removed at the end.
    Local(Listener),
    /// A port, and who may come if it is not everybody.
    Remote(TcpListener, Option<tls::Server>),
}

impl Door {
    /// Listens at a place.
    pub(super) fn open(at: &Address, tls: Option<&tls::Files>) -> Result<Self, Error> {
        let tls = at.secured(tls, tls::Server::new)?;
        match at {
            Address::Unix(path) => Ok(Self::Local(Listener::bind(path, SocketType::STREAM)?)),
            Address::Tcp(place) => {
                let failed = |e| Error::io(format!("listen at {at}"), e);
                let listener = TcpListener::bind(place.as_str()).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Remote(listener, tls))
            }
        }
    }

    /// The port, if there is one.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Local(_) => None,
            Self::Remote(listener, _) => listener.local_addr().ok().map(|address| address.port()),
        }
    }

    /// The next who comes, if anyone does within a moment.
    pub(super) fn accept(&self, stop: &Stop, patience: Duration) -> Result<Option<Connection>, Lost> {
        let accepted = match self {
            Self::Local(listener) => match listener.accept() {
                Ok(socket) => Some(Connection::local(socket.into(), Arc::clone(stop), patience)?),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
                Err(errno) => return Err(io::Error::from(errno).into()),
            },
            Self::Remote(listener, tls) => match listener.accept() {
                Ok((socket, _)) => {
                    let socket = remote(socket)?;
                    let socket: Box<dyn Socket> = match tls {
                        Some(tls) => Box::new(tls.accept(socket)?),
                        None => Box::new(socket),
                    };
                    Some(Connection { socket, local: None, stop: Arc::clone(stop), patience })
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => None,
                Err(error) => return Err(error.into()),
            },
        };
        if accepted.is_none() {
            if stop() {
                return Err(Lost::Stopped);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(accepted)
    }
}
