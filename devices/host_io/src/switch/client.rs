//! The virtual machine's side of a switch port.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_model::net::{Link, MAX_FRAME};
use parking_lot::{Mutex, RwLock};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::time::Timespec;
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use super::error::ConnectError;
use super::port::is_full;
use super::protocol::{Answer, FRAME, Header, Introduction, MAX_CONTROL};
use super::socket::{self, Received, dial};
use crate::backlog::Backlog;
use crate::event::Timer;
use crate::frame;

/// How long [`SwitchLink::connect`] waits for the switch's answer, and a reconnecting link before it tries afresh.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// Pause between two tries to reach a switch that has gone.
const RETRY_TIME: Duration = Duration::from_millis(200);
/// Bytes of frames that wait for room in the kernel's socket buffer.
const BACKLOG_BYTES: usize = 4 << 20;
/// Messages skipped in one call of `recv`, at most.
const MAX_SKIPPED: usize = 64;

/// How a port presents itself to the switch.
#[derive(Clone, Debug, Default)]
pub struct SwitchLinkOptions {
    /// What the switch's statistics call the port.
    pub name: String,
    /// Largest IP packet in bytes; the switch's own when `None`.
    pub mtu: Option<u16>,
}

/// A [`Link`] to a port of a switch.
///
/// When the switch goes away the link is down until a switch at the same path answers again. [`Link::recv`] does the
/// reconnecting, driven by [`Link::readable_fd`], so the owner looks at [`Link::is_up`] after it. Frames for which the
/// kernel has no room wait in a bounded queue, which `recv` and later sends drain.
#[derive(Debug)]
pub struct SwitchLink {
    path: PathBuf,
    address: SocketAddrUnix,
    hello: Vec<u8>,
    mtu: u16,
    connection: RwLock<Connection>,
    backlog: Mutex<Backlog>,
    /// Whether the backlog may hold something: spares the common case the lock.
    backlogged: AtomicBool,
    /// Readable when the socket or the timer is.
    poll: OwnedFd,
    /// Runs while the link is not up.
    timer: Timer,
}

#[derive(Debug)]
enum Connection {
    Down,
    /// The hello is sent and the answer awaited since then.
    Greeting(OwnedFd, Instant),
    Up(OwnedFd),
}

impl SwitchLink {
    /// Connects to the switch at `path` and waits, three seconds at most, until it has answered.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] names the cause and its remedy.
    pub fn connect(path: &Path, options: &SwitchLinkOptions) -> Result<Self, ConnectError> {
        let fail = |source| ConnectError::Io { path: path.into(), source };
        let address = SocketAddrUnix::new(path).map_err(|_| ConnectError::PathTooLong(path.into()))?;
        // Without an MTU of its own the port takes the switch's, which only the answer tells.
        let max_frame = options.mtu.map_or(MAX_FRAME, frame::max_len);
        let hello = Introduction { max_frame, features: 0, name: options.name.clone() }.encode();
        let socket = greet(path, &address, &hello)?;
        let switch_mtu = await_answer(path, &socket)?;
        let mtu = options.mtu.unwrap_or(switch_mtu);
        check_mtu(path, mtu, switch_mtu)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let timer = Timer::new().map_err(fail)?;
        watch(&poll, &timer).map_err(|e| fail(e.into()))?;
        watch(&poll, &socket).map_err(|e| fail(e.into()))?;
        Ok(Self {
            path: path.into(),
            address,
            hello,
            mtu,
            connection: RwLock::new(Connection::Up(socket)),
            backlog: Mutex::new(Backlog::new(BACKLOG_BYTES)),
            backlogged: AtomicBool::new(false),
            poll,
            timer,
        })
    }

    /// Queues a message the kernel has no room for and asks to be woken when it has.
    fn enqueue(&self, socket: &OwnedFd, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        let mut backlog = self.backlog.lock();
        let first = backlog.is_empty();
        if !backlog.push(message) {
            return Err(Errno::AGAIN);
        }
        if first {
            self.backlogged.store(true, Ordering::Release);
            epoll::modify(&self.poll, socket, EventData::new_u64(0), EventFlags::IN | EventFlags::OUT)?;
        }
        Ok(())
    }

    /// Sends what is queued, as far as the kernel takes it.
    fn drain(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let mut backlog = self.backlog.lock();
        while let Some(message) = backlog.front() {
            match socket::send(socket, &[IoSlice::new(message)]) {
                Ok(()) => backlog.pop(),
                Err(errno) if is_full(errno) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        if self.backlogged.swap(false, Ordering::AcqRel) {
            epoll::modify(&self.poll, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
    }

    fn send_on(&self, socket: &OwnedFd, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        if self.backlogged.load(Ordering::Acquire) {
            self.drain(socket)?;
            if self.backlogged.load(Ordering::Acquire) {
                return self.enqueue(socket, message);
            }
        }
        match socket::send(socket, message) {
            Err(errno) if is_full(errno) => self.enqueue(socket, message),
            other => other,
        }
    }

    fn recv_on(&self, socket: &OwnedFd, buf: &mut [u8]) -> Result<Option<usize>, Errno> {
        if self.backlogged.load(Ordering::Acquire) {
            self.drain(socket)?;
        }
        let mut header = Header::new_zeroed();
        for _ in 0..MAX_SKIPPED {
            let mut parts = [IoSliceMut::new(header.as_mut_bytes()), IoSliceMut::new(buf)];
            match socket::recv(socket, &mut parts) {
                Ok(Received::Message(len)) if header.kind == FRAME => {
                    return Ok(Some(len.saturating_sub(size_of::<Header>())));
                }
                Ok(Received::Message(_) | Received::TooLong) => {}
                Ok(Received::Closed) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Runs `act` on the socket of a link that is up. A dead socket takes the link down.
    fn with_socket<T>(&self, act: impl FnOnce(&OwnedFd) -> Result<T, Errno>) -> io::Result<T> {
        let outcome = match &*self.connection.read() {
            Connection::Up(socket) => act(socket),
            Connection::Down | Connection::Greeting(..) => return Err(io::ErrorKind::NotConnected.into()),
        };
        outcome.map_err(|errno| {
            if !is_full(errno) && errno != Errno::MSGSIZE {
                self.go_down(errno);
            }
            errno.into()
        })
    }

    fn go_down(&self, errno: Errno) {
        let mut connection = self.connection.write();
        if !matches!(*connection, Connection::Up(_)) {
            return;
        }
        // Dropping the socket takes it out of `poll`.
        *connection = Connection::Down;
        let lost = self.backlog.lock().clear();
        self.backlogged.store(false, Ordering::Release);
        self.timer.set(Some(RETRY_TIME));
        tracing::warn!(path = %self.path.display(), %errno, lost, "Switch has gone; the link is down until it is back");
    }

    /// Makes the next step towards a link that is up again.
    fn reconnect(&self) {
        let mut connection = self.connection.write();
        let due = self.timer.take_expired();
        *connection = match mem::replace(&mut *connection, Connection::Down) {
            Connection::Down if due => self.redial(),
            Connection::Greeting(socket, since) => self.hear(socket, since),
            unchanged => unchanged,
        };
        match *connection {
            Connection::Up(_) => self.timer.set(None),
            _ if due => self.timer.set(Some(RETRY_TIME)),
            _ => {}
        }
    }

    fn redial(&self) -> Connection {
        let dialled = greet(&self.path, &self.address, &self.hello);
        match dialled {
            Ok(socket) if watch(&self.poll, &socket).is_ok() => Connection::Greeting(socket, Instant::now()),
            _ => Connection::Down,
        }
    }

    fn hear(&self, socket: OwnedFd, since: Instant) -> Connection {
        match answer(&self.path, &socket)
            .and_then(|mtu| mtu.map(|m| check_mtu(&self.path, self.mtu, m)).transpose())
        {
            Ok(Some(())) => {
                tracing::info!(path = %self.path.display(), "Switch is back; the link is up");
                Connection::Up(socket)
            }
            Ok(None) if since.elapsed() < ANSWER_TIME => Connection::Greeting(socket, since),
            Ok(None) => Connection::Down,
            Err(error) => {
                device_model::guest_warn!(%error, "Switch is back and does not take the port");
                Connection::Down
            }
        }
    }
}

impl Link for SwitchLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        frame::checked_len(parts, self.mtu)?;
        let header = Header::new(FRAME);
        let mut message = SmallVec::<[IoSlice<'_>; 8]>::new();
        message.push(IoSlice::new(header.as_bytes()));
        message.extend(parts.iter().copied());
        self.with_socket(|socket| self.send_on(socket, &message))
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match self.with_socket(|socket| self.recv_on(socket, buf)) {
            Ok(received) => Ok(received),
            // The link is down, which `is_up` says, or just went down: nothing waits.
            Err(_) => {
                self.reconnect();
                Ok(None)
            }
        }
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        matches!(*self.connection.read(), Connection::Up(_))
    }
}

fn watch(poll: &OwnedFd, source: impl AsFd) -> Result<(), Errno> {
    epoll::add(poll, source, EventData::new_u64(0), EventFlags::IN)
}

fn check_mtu(path: &Path, port: u16, switch: u16) -> Result<(), ConnectError> {
    if port > switch {
        return Err(ConnectError::Mtu { path: path.into(), port, switch });
    }
    Ok(())
}

/// Dials the switch and says hello.
fn greet(path: &Path, address: &SocketAddrUnix, hello: &[u8]) -> Result<OwnedFd, ConnectError> {
    let fail = |errno| ConnectError::from_connect(path.into(), errno);
    let socket = dial(address).map_err(fail)?;
    match socket::send(&socket, &[IoSlice::new(hello)]) {
        Ok(()) => Ok(socket),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(ConnectError::HungUp(path.into())),
        Err(errno) => Err(fail(errno)),
    }
}

/// The MTU of a switch that has answered; `None` when it has not yet. Never blocks.
fn answer(path: &Path, socket: &OwnedFd) -> Result<Option<u16>, ConnectError> {
    let mut buf = [0; MAX_CONTROL];
    let len = match socket::recv(socket, &mut [IoSliceMut::new(&mut buf)]) {
        Ok(Received::Message(len)) => len,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Ok(Received::TooLong) => return Err(ConnectError::Foreign(path.into())),
        Ok(Received::Closed) | Err(Errno::CONNRESET) => return Err(ConnectError::HungUp(path.into())),
        Err(errno) => return Err(ConnectError::from_connect(path.into(), errno)),
    };
    match Answer::parse(&buf[..len]) {
        Ok(Answer::Welcome { mtu, .. }) => Ok(Some(mtu)),
        Ok(Answer::Refused(reason)) => Err(ConnectError::Refused { path: path.into(), reason }),
        Err(source) => Err(ConnectError::Protocol { path: path.into(), source }),
    }
}

/// Waits for [`answer`].
fn await_answer(path: &Path, socket: &OwnedFd) -> Result<u16, ConnectError> {
    let deadline = Instant::now() + ANSWER_TIME;
    loop {
        if let Some(mtu) = answer(path, socket)? {
            return Ok(mtu);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(ConnectError::Silent(path.into())),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(ConnectError::from_connect(path.into(), errno)),
        }
    }
}
