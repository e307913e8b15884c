//! All connections of an engine: readiness in, messages out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use host_io::event::Timer;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::stream::{State, Stream};
use crate::ConnId;
use crate::transport::{Action, Engine};
use crate::wire::Redirect;

/// Messages taken from a connection before the others have their turn.
const TURN: usize = 64;
/// Bytes that may wait to be sent before nothing more is received.
const MAX_QUEUED: usize = 4 << 20;
/// How long a connection that is closed may take to send what is queued.
const CLOSING_TIME: Duration = Duration::from_secs(3);
/// How long no connections are accepted after the host had no room for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Event numbers that are no connections.
const TIMER: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// The connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Readable when any of them, or the timer, is ready.
    poll: OwnedFd,
    timer: Timer,
    start: Instant,
    listener: Option<TcpListener>,
    /// When the listener is watched again.
    listen_again: Option<Duration>,
    next_accepted: u64,
    streams: BTreeMap<ConnId, (Stream, EventFlags)>,
    /// Connections that may have messages read ahead.
    again: BTreeSet<ConnId>,
    /// Connections for which something is queued.
    unsent: BTreeSet<ConnId>,
    /// Connections that wait for room.
    paused: BTreeSet<ConnId>,
}

impl Sockets {
    pub fn new() -> io::Result<Self> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&poll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self {
            poll,
            timer,
            start: Instant::now(),
            listener: None,
            listen_again: None,
            next_accepted: 0,
            streams: BTreeMap::new(),
            again: BTreeSet::new(),
            unsent: BTreeSet::new(),
            paused: BTreeSet::new(),
        })
    }

    pub fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        epoll::add(&self.poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Accepts no more connections.
    pub fn stop_listening(&mut self) {
        self.listener = None;
        self.listen_again = None;
    }

    /// Time since the start, as the engine is told.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether something is still to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Watches something else too, whose readiness only wakes the owner.
    pub fn watch(&self, other: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.poll, other, EventData::new_u64(TIMER), EventFlags::IN)?)
    }

    /// Does everything that can be done without waiting.
    pub fn run(&mut self, engine: &mut impl Engine) -> io::Result<()> {
        self.timer.take_expired();
        self.time(engine);
        for (conn, flags) in self.ready()? {
            match conn {
                TIMER => {}
                LISTENER => self.accept(engine),
                conn => self.serve(ConnId(conn), flags, engine),
            }
        }
        for conn in std::mem::take(&mut self.again) {
            self.receive(conn, engine);
        }
        self.settle(engine);
        Ok(())
    }

    /// Does what the engine wants, sends, and sets the timer.
    pub fn settle(&mut self, engine: &mut impl Engine) {
        self.act(engine);
        for conn in std::mem::take(&mut self.unsent) {
            self.flush(conn, engine);
        }
        for conn in std::mem::take(&mut self.paused) {
            if self.may_receive(conn, engine) {
                self.again.insert(conn);
            } else {
                self.paused.insert(conn);
            }
            self.interest(conn);
        }
        self.act(engine);
        let now = self.now();
        let closing = self.streams.values().filter_map(|(stream, _)| match stream.state {
            State::Closing(until) => Some(until),
            _ => None,
        });
        let next = closing.chain(engine.deadline()).chain(self.listen_again).min();
        let delay =
            if self.again.is_empty() { next.map(|at| at.saturating_sub(now)) } else { Some(Duration::ZERO) };
        self.timer.set(delay);
    }

    fn time(&mut self, engine: &mut impl Engine) {
        let now = self.now();
        engine.tick(now);
        let late = |stream: &Stream| matches!(stream.state, State::Closing(until) if now >= until);
        self.streams.retain(|_, (stream, _)| !late(stream));
        if self.listen_again.is_some_and(|at| now >= at)
            && let Some(listener) = &self.listener
        {
            self.listen_again = None;
            if let Err(error) = epoll::add(&self.poll, listener, EventData::new_u64(LISTENER), EventFlags::IN)
            {
                tracing::error!(%error, "Failed to watch for new connections");
            }
        }
    }

    fn ready(&self) -> io::Result<Vec<(u64, EventFlags)>> {
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&Timespec::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(events.iter().map(|event| (event.data.u64(), event.flags)).collect())
    }

    fn accept(&mut self, engine: &mut impl Engine) {
        for _ in 0..TURN {
            let Some(listener) = &self.listener else { return };
            let accepted = listener.accept().and_then(|(socket, _)| Stream::accepted(socket));
            match accepted {
                Ok(stream) => {
                    let conn = ConnId(self.next_accepted);
                    self.next_accepted += 1;
                    if self.add(conn, stream, EventFlags::IN).is_ok() {
                        engine.accepted(conn, self.now());
                        self.act(engine);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    device_model::guest_warn!(%error, "Cannot accept a connection");
                    // Level-triggered: it would wake us all the time.
                    let _ = epoll::delete(&self.poll, listener);
                    self.listen_again = Some(self.now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn add(&mut self, conn: ConnId, stream: Stream, flags: EventFlags) -> io::Result<()> {
        epoll::add(&self.poll, &stream, EventData::new_u64(conn.0), flags)?;
        self.streams.insert(conn, (stream, flags));
        Ok(())
    }

    fn serve(&mut self, conn: ConnId, flags: EventFlags, engine: &mut impl Engine) {
        let Some((stream, _)) = self.streams.get_mut(&conn) else { return };
        match stream.state {
            State::Connecting => match stream.connected() {
                Ok(()) => {
                    engine.connected(conn, self.now());
                    self.act(engine);
                    self.interest(conn);
                }
                Err(error) => self.lose(conn, &error, engine),
            },
            State::Open => {
                if flags.intersects(EventFlags::OUT) {
                    self.unsent.insert(conn);
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.receive(conn, engine);
                }
            }
            State::Closing(_) if flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                self.streams.remove(&conn);
            }
            State::Closing(_) => {
                self.unsent.insert(conn);
            }
        }
    }

    fn may_receive(&self, conn: ConnId, engine: &impl Engine) -> bool {
        let Some((stream, _)) = self.streams.get(&conn) else { return true };
        stream.queued() < MAX_QUEUED && engine.has_room(conn)
    }

    /// Takes what has arrived on a connection, as long as it is its turn.
    fn receive(&mut self, conn: ConnId, engine: &mut impl Engine) {
        for _ in 0..TURN {
            if !self.may_receive(conn, engine) {
                self.paused.insert(conn);
                return self.interest(conn);
            }
            let now = self.now();
            let Some((stream, _)) = self.streams.get_mut(&conn) else { return };
            if stream.state != State::Open {
                return;
            }
            match stream.receive(|header| engine.body_bytes(conn, header)) {
                Ok(received) => engine.message(conn, received.message, received.intact, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.lose(conn, &error, engine),
            }
            self.act(engine);
        }
        if self.streams.get(&conn).is_some_and(|(stream, _)| stream.has_read_ahead()) {
            self.again.insert(conn);
        }
    }

    fn lose(&mut self, conn: ConnId, why: &io::Error, engine: &mut impl Engine) {
        self.streams.remove(&conn);
        engine.lost(conn, why, self.now());
        self.act(engine);
    }

    /// Does what the engine wants.
    fn act(&mut self, engine: &mut impl Engine) {
        while let Some(action) = engine.action() {
            match action {
                Action::Open(conn, to) => self.open(conn, to, engine),
                Action::Send(conn, message) => {
                    if let Some((stream, _)) = self.streams.get_mut(&conn) {
                        stream.send(message);
                        self.unsent.insert(conn);
                    }
                }
                Action::Framed(conn, framing) => {
                    if let Some((stream, _)) = self.streams.get_mut(&conn) {
                        stream.frame(framing);
                    }
                }
                Action::Close(conn) => self.close(conn),
            }
        }
    }

    fn open(&mut self, conn: ConnId, to: Option<Redirect>, engine: &mut impl Engine) {
        let unknown = || io::Error::new(io::ErrorKind::InvalidInput, "the target's address is not one");
        let stream = engine.address(to).ok_or_else(unknown).and_then(Stream::connect);
        if let Err(error) = stream.and_then(|stream| self.add(conn, stream, EventFlags::OUT)) {
            engine.lost(conn, &error, self.now());
        }
    }

    fn close(&mut self, conn: ConnId) {
        let until = self.now() + CLOSING_TIME;
        let Some((stream, _)) = self.streams.get_mut(&conn) else { return };
        if stream.flush().is_ok() && stream.queued() > 0 {
            stream.state = State::Closing(until);
            self.interest(conn);
        } else {
            self.streams.remove(&conn);
        }
    }

    fn flush(&mut self, conn: ConnId, engine: &mut impl Engine) {
        let Some((stream, _)) = self.streams.get_mut(&conn) else { return };
        let closing = matches!(stream.state, State::Closing(_));
        match stream.flush() {
            Ok(()) if closing && stream.queued() == 0 => {
                self.streams.remove(&conn);
            }
            Ok(()) => self.interest(conn),
            Err(_) if closing => {
                self.streams.remove(&conn);
            }
            Err(error) => self.lose(conn, &error, engine),
        }
    }

    /// Asks to be woken for what the connection waits for.
    fn interest(&mut self, conn: ConnId) {
        let Some((stream, flags)) = self.streams.get_mut(&conn) else { return };
        let reads = stream.state == State::Open && !self.paused.contains(&conn);
        let writes = stream.state == State::Connecting || stream.queued() > 0;
        let wanted = [(reads, EventFlags::IN), (writes, EventFlags::OUT)]
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .fold(EventFlags::empty(), |all, (_, flag)| all | flag);
        if wanted != *flags && epoll::modify(&self.poll, &*stream, EventData::new_u64(conn.0), wanted).is_ok()
        {
            *flags = wanted;
        }
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}
