//! Messages over RDMA, from a host port.
//!
//! The engines hand over messages with all their data. Here readable bytes go into the SEND, longer ones are read by the target
//! (RDMA READ); what is writable is written by the target into a buffer that the command names, and what is short comes back
//! in the completion. Buffers are in the port's arena: the driver's own memory is never named. Each key is for one
//! command, has one right and covers its bytes only, and is revoked before they are looked at.

mod agreed;
mod conn;
mod initiator;
mod target;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use host_io::event::Timer;
use host_port::{self as port, Failure, HostPort, Queues};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use verbs::{Completion, WcOpcode, WcStatus};

use crate::transport::{Action, Engine};
use crate::wire::{CmFlags, CmReject, CmReply, CmRequest, HEADER, NEW_INSTANCE, Redirect, Status, VERSION};
use crate::{ConnId, Message, Purpose};
pub(crate) use agreed::{COMPLETION, limits};
use agreed::{CONTROL, FIRST_RECEIVES, MAX_COMMAND, MAX_QUEUE, queues, receives};
use conn::{Conn, State};

/// How long a connection that is closed may take to send what is queued.
const CLOSING_TIME: Duration = Duration::from_secs(3);
/// How long what was sent last may take when its owner goes.
const FAREWELL: Duration = Duration::from_millis(200);
/// Connections that others may make at a time.
const MAX_ACCEPTED: usize = 1024;

/// What one side has done by RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// SENDs.
    pub sends: u64,
    /// RDMA WRITEs without immediate data.
    pub writes: u64,
    /// RDMA WRITEs with immediate data.
    pub immediates: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Keys that a peer was told.
    pub keys: u64,
    /// Messages that came, by SEND or with immediate data.
    pub received: u64,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Initiator,
    /// Listening at this port.
    Target(u16),
}

/// All connections of an engine.
pub(crate) struct Rdma {
    port: HostPort,
    /// Readable when the port, the timer or something else that is watched is ready.
    poll: OwnedFd,
    timer: Timer,
    start: Instant,
    side: Side,
    conns: BTreeMap<ConnId, Conn>,
    by_port: BTreeMap<port::ConnId, ConnId>,
    next_accepted: u64,
    counts: OperationCounts,
}

impl Rdma {
    pub(crate) fn connecting(port: HostPort) -> io::Result<Self> {
        Self::new(port, Side::Initiator)
    }

    pub(crate) fn listening(mut port: HostPort, number: u16) -> io::Result<Self> {
        port.endpoint().listen(number);
        Self::new(port, Side::Target(number))
    }

    fn new(port: HostPort, side: Side) -> io::Result<Self> {
        let rdma = Self {
            port,
            poll: epoll::create(CreateFlags::CLOEXEC)?,
            timer: Timer::new()?,
            start: Instant::now(),
            side,
            conns: BTreeMap::new(),
            by_port: BTreeMap::new(),
            next_accepted: 0,
            counts: OperationCounts::default(),
        };
        rdma.watch(&rdma.port)?;
        rdma.watch(&rdma.timer)?;
        Ok(rdma)
    }

    pub(crate) fn stop_listening(&mut self) {
        if let Side::Target(number) = self.side {
            self.port.endpoint().stop_listening(number);
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn counts(&self) -> OperationCounts {
        self.counts
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.conns.values().any(|conn| !conn.is_idle())
    }

    pub(crate) fn watch(&self, other: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.poll, other, EventData::new_u64(0), EventFlags::IN)?)
    }

    pub(crate) fn run(&mut self, engine: &mut impl Engine) {
        self.timer.take_expired();
        engine.tick(self.now());
        self.port.run();
        self.settle(engine);
    }

    pub(crate) fn settle(&mut self, engine: &mut impl Engine) {
        loop {
            self.act(engine);
            self.retry();
            self.process(engine);
            self.act(engine);
            self.port.settle();
            if !self.events(engine) {
                break;
            }
        }
        self.end_late();
        let closing = self.conns.values().filter_map(Conn::closing);
        let next = closing.chain(engine.deadline()).min();
        let now = self.now();
        self.timer.set(next.map(|at| at.saturating_sub(now)));
    }

    /// Does what the engine wants.
    fn act(&mut self, engine: &mut impl Engine) {
        while let Some(action) = engine.action() {
            match action {
                Action::Open(conn, to) => self.open(conn, to, engine),
                Action::Send(conn, message) => self.send(conn, message),
                // There are no frames over RDMA, and none were agreed on.
                Action::Framed(..) => {}
                Action::Close(conn) => self.close(conn),
            }
        }
    }

    fn open(&mut self, id: ConnId, to: Option<Redirect>, engine: &mut impl Engine) {
        let purpose = engine.purpose(id);
        let (instance, vq, size) = match purpose {
            Purpose::Control => (NEW_INSTANCE, u16::MAX, 0),
            Purpose::Queue { instance, vq, size } => (instance, vq, size),
        };
        let is_queue = purpose != Purpose::Control;
        let size = if size == 0 { MAX_QUEUE } else { size.min(MAX_QUEUE) };
        let request = CmRequest {
            ver_min: VERSION,
            ver_max: VERSION,
            vq,
            instance,
            sq_size: size,
            rq_size: receives(is_queue, size) as u16,
            max_in_msg: if is_queue { COMPLETION } else { CONTROL },
            flags: CmFlags::IMM_RX,
        };
        let result = match engine.address(to) {
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the target's address is not one")),
            Some(address) => {
                let endpoint = self.port.endpoint();
                let caps = queues(is_queue, size);
                endpoint
                    .connect(address.ip(), address.port(), caps, &request.emit())
                    .map_err(io::Error::other)
                    .map(|at| (at, caps))
            }
        };
        let result = result.and_then(|(at, caps)| {
            let mut conn = Conn::new(at, is_queue, size, caps.sends);
            let length = if is_queue { COMPLETION } else { CONTROL };
            let posted = conn.add_receives(self.port.endpoint(), FIRST_RECEIVES, length);
            self.by_port.insert(at, id);
            self.conns.insert(id, conn);
            posted.map_err(io::Error::other)
        });
        if let Err(error) = result {
            self.lose(id, &error, engine);
        }
    }

    fn send(&mut self, id: ConnId, message: Message) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.state == State::Open) else { return };
        let endpoint = self.port.endpoint();
        let sent = match self.side {
            Side::Initiator => conn.send_command(endpoint, &message, &mut self.counts),
            Side::Target(_) => conn.send_completion(endpoint, &message, &mut self.counts),
        };
        if !sent {
            conn.held.push_back(message);
        }
    }

    /// Tries again what had to wait for memory.
    fn retry(&mut self) {
        for id in
            self.conns.iter().filter(|(_, conn)| !conn.held.is_empty()).map(|it| *it.0).collect::<Vec<_>>()
        {
            let waiting = self.conns.get_mut(&id).map(|conn| std::mem::take(&mut conn.held));
            waiting.into_iter().flatten().for_each(|message| self.send(id, message));
        }
    }

    /// Ends a connection after what was sent on it. What it names of this side's memory is out of reach at once.
    fn close(&mut self, id: ConnId) {
        let until = self.now() + CLOSING_TIME;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.revoke_all(self.port.endpoint());
        if conn.state == State::Open && !conn.is_idle() {
            conn.state = State::Closing(until);
        } else {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            self.by_port.remove(&conn.at);
            conn.end(self.port.endpoint());
        }
    }

    /// Forgets connections that have taken too long to close, or that have nothing more to send.
    fn end_late(&mut self) {
        let now = self.now();
        let over = |conn: &Conn| conn.closing().is_some_and(|until| conn.is_idle() || now >= until);
        let over: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| over(conn)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.forget(id));
    }

    fn lose(&mut self, id: ConnId, why: &io::Error, engine: &mut impl Engine) {
        let told =
            self.conns.get(&id).is_none_or(|conn| conn.closing().is_none() && conn.state != State::Asked);
        self.forget(id);
        if told {
            engine.lost(id, why, self.now());
        }
    }

    /// Takes what has happened at the port. Returns whether there was anything.
    fn events(&mut self, engine: &mut impl Engine) -> bool {
        let mut any = false;
        while let Some(event) = self.port.endpoint().event() {
            any = true;
            match event {
                port::Event::Request { conn, private, .. } => self.requested(conn, &private),
                port::Event::Connected(at, private) => self.connected(at, &private, engine),
                port::Event::Failed(at, failure) => self.failed(at, &failure, engine),
                port::Event::Closed(at) => self.lost(at, "the other side has ended the connection", engine),
                port::Event::SendRetired(at) => {
                    if let Some(conn) = self.by_port.get(&at).and_then(|id| self.conns.get_mut(id)) {
                        conn.retired(self.port.endpoint());
                    }
                }
                port::Event::Done(at, completion) => self.done(at, &completion, engine),
            }
        }
        any
    }

    fn lost(&mut self, at: port::ConnId, why: &str, engine: &mut impl Engine) {
        match self.by_port.get(&at) {
            Some(id) => {
                self.lose(*id, &io::Error::new(io::ErrorKind::ConnectionReset, why.to_owned()), engine)
            }
            None => self.port.endpoint().close(at, &[]),
        }
    }

    fn failed(&mut self, at: port::ConnId, failure: &Failure, engine: &mut impl Engine) {
        let kind = match failure {
            Failure::NoNeighbour | Failure::Silent => io::ErrorKind::HostUnreachable,
            Failure::NoService | Failure::Refused(..) => io::ErrorKind::ConnectionRefused,
            Failure::Provider(_) => io::ErrorKind::Other,
        };
        if let Some(id) = self.by_port.get(&at) {
            self.lose(*id, &io::Error::new(kind, failure.clone()), engine);
        }
    }

    /// Somebody connects.
    fn requested(&mut self, at: port::ConnId, private: &[u8]) {
        let refusal = |status| CmReject { version: VERSION, status, detail: 0 }.emit();
        let request = CmRequest::parse(private).map_err(|_| Status::Version);
        let request = request.and_then(|request| match () {
            () if !(request.ver_min..=request.ver_max).contains(&VERSION) => Err(Status::Version),
            () if self.side == Side::Initiator => Err(Status::NoTarget),
            () if self.conns.len() >= MAX_ACCEPTED => Err(Status::Busy),
            () => Ok(request),
        });
        let request = match request {
            Ok(request) => request,
            Err(status) => return self.port.endpoint().close(at, &refusal(status)),
        };
        let is_queue = request.vq != u16::MAX;
        let size = request.sq_size.clamp(1, MAX_QUEUE);
        let length = if is_queue { MAX_COMMAND } else { CONTROL };
        let reply = CmReply {
            version: VERSION,
            sq_size: size,
            max_cmd_msg: length,
            flags: request.flags & CmFlags::IMM_RX,
            rq_size: receives(is_queue, size) as u16,
        };
        let caps: Queues = queues(is_queue, size);
        let endpoint = self.port.endpoint();
        if endpoint.accept(at, caps, &reply.emit()).is_err() {
            return;
        }
        let mut conn = Conn::new(at, is_queue, size, caps.sends);
        conn.state = State::Asked;
        conn.peer_takes_immediates = request.flags.contains(CmFlags::IMM_RX);
        conn.max_message = request.max_in_msg;
        if conn.add_receives(endpoint, FIRST_RECEIVES, length).is_err() {
            return conn.end(endpoint);
        }
        let id = ConnId(self.next_accepted);
        self.next_accepted += 1;
        self.by_port.insert(at, id);
        self.conns.insert(id, conn);
    }

    fn connected(&mut self, at: port::ConnId, private: &[u8], engine: &mut impl Engine) {
        let Some((id, conn)) = self.by_port.get(&at).and_then(|id| Some((*id, self.conns.get_mut(id)?)))
        else {
            return;
        };
        conn.state = State::Open;
        let now = self.start.elapsed();
        if self.side != Side::Initiator {
            return engine.accepted(id, now);
        }
        match CmReply::parse(private) {
            Ok(reply) => {
                conn.max_message = reply.max_cmd_msg;
                engine.connected(id, now);
            }
            Err(_) => {
                let why =
                    io::Error::new(io::ErrorKind::InvalidData, "the target does not speak the extension");
                self.lose(id, &why, engine);
            }
        }
    }

    /// A work request has ended.
    fn done(&mut self, at: port::ConnId, completion: &Completion, engine: &mut impl Engine) {
        let Some((id, conn)) = self.by_port.get(&at).and_then(|id| Some((*id, self.conns.get_mut(id)?)))
        else {
            return;
        };
        if completion.status != WcStatus::Success {
            let why = io::Error::new(io::ErrorKind::ConnectionReset, format!("{:?}", completion.status));
            return self.lose(id, &why, engine);
        }
        let endpoint = self.port.endpoint();
        let ok = match completion.opcode {
            WcOpcode::Recv => {
                self.counts.received += 1;
                conn.arrived(endpoint, completion)
            }
            WcOpcode::RecvRdmaWithImm if self.side == Side::Initiator => {
                self.counts.received += 1;
                conn.repost(endpoint, completion.wr_id);
                let message = conn.immediate(endpoint, completion);
                let now = self.start.elapsed();
                if let (Ok(message), State::Open) = (&message, conn.state) {
                    engine.message(id, message.clone(), true, now);
                }
                message.is_ok()
            }
            WcOpcode::RdmaRead => conn.read_done(endpoint, completion.wr_id),
            WcOpcode::Send | WcOpcode::RdmaWrite => true,
            _ => false,
        };
        if !ok {
            self.lose(id, &rubbish(), engine);
        }
    }

    /// Hands messages that have come to the engine, as far as it has room.
    fn process(&mut self, engine: &mut impl Engine) {
        let ready = |conn: &Conn| conn.state == State::Open && conn.has_messages();
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| ready(conn)).map(|(id, _)| *id).collect();
        for id in ids {
            while engine.has_room(id) {
                match self.next_message(id, engine) {
                    Ok(true) => self.act(engine),
                    Ok(false) => break,
                    Err(()) => {
                        self.lose(id, &rubbish(), engine);
                        break;
                    }
                }
            }
        }
    }

    /// Hands over the next message of a connection, if there is one. An error ends the connection.
    fn next_message(&mut self, id: ConnId, engine: &mut impl Engine) -> Result<bool, ()> {
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.state == State::Open) else {
            return Ok(false);
        };
        let endpoint = self.port.endpoint();
        if let Some(message) = conn.read.pop_front() {
            engine.message(id, message, true, now);
            return Ok(true);
        }
        let Some((slot, bytes)) = conn.inbox.pop_front() else { return Ok(false) };
        let (header, body) = bytes.split_first_chunk::<HEADER>().ok_or(())?;
        let message = Message { header: *header, body: Bytes::copy_from_slice(body) };
        let taken = match self.side {
            Side::Initiator => conn.completion(endpoint, message).map(Taken::Message)?,
            Side::Target(_) => conn.command(endpoint, message, &mut self.counts)?,
        };
        match taken {
            Taken::Message(message) => engine.message(id, message, true, now),
            Taken::Refused(message, status) => engine.refused(id, message, status, now),
            Taken::Reading => {}
            Taken::NoRoom => {
                conn.inbox.push_front((slot, bytes));
                return Ok(false);
            }
        }
        conn.repost(endpoint, slot);
        Ok(true)
    }
}

/// What becomes of a message that has come.
enum Taken {
    Message(Message),
    /// Its command cannot be carried out.
    Refused(Message, Status),
    /// Its readable bytes are being read.
    Reading,
    /// There is no memory to read them into.
    NoRoom,
}

fn rubbish() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other side sends what is no message")
}

impl AsFd for Rdma {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl Drop for Rdma {
    /// What was sent last is to arrive, and peers are to know that this side is gone.
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.has_unsent() && Instant::now() < until {
            self.port.run();
            while let Some(event) = self.port.endpoint().event() {
                if let port::Event::SendRetired(at) = event
                    && let Some(conn) = self.by_port.get(&at).and_then(|id| self.conns.get_mut(id))
                {
                    conn.retired(self.port.endpoint());
                }
            }
        }
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(id));
        self.port.settle();
    }
}
