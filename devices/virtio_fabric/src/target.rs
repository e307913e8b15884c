//! The target's engine: exported devices, any number of initiators, over streams.
//!
//! No sockets and no clock: connections are numbers, time is an argument, and what is to be done comes out of
//! [`Target::poll`]. A peer is not trusted: before Connect it has one message and [`CONNECT_TIME`]; afterwards it has
//! as many records as its queues are long. Device work is given out as [`Output::Execute`] and comes back by
//! [`Target::done`].
//!
//! Not here yet: memory that is named by keys, immediate completions, slots, windows that change, authentication,
//! state export.

mod config;
mod connect;
mod control;
mod discovery;
mod queue;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::wire::{
    CONNECT_BODY, Command, Completion, Event, Features, HEADER, Opcode, Redirect, Reply, Request, Status,
};
use crate::{ConnId, Framing, GRACE, Message};
pub use config::{Config, Device, FEATURES};
use session::{Queue, Session};

/// How long a connection may take until its Connect has arrived.
pub const CONNECT_TIME: Duration = Duration::from_secs(3);

/// Names a piece of device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub(crate) u64);

/// How a piece of device work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// How.
    pub status: Status,
    /// The used length.
    pub used: u32,
    /// Writable bytes, from the start.
    pub data: Bytes,
    /// Writable bytes, the last.
    pub tail: Bytes,
    /// Whether it does no harm to execute it again.
    pub repeatable: bool,
}

impl Done {
    fn failed(status: Status) -> Self {
        Done { status, used: 0, data: Bytes::new(), tail: Bytes::new(), repeatable: false }
    }
}

/// What the engine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message.
    Send(ConnId, Message),
    /// What is sent and received from now on is in frames.
    Framed(ConnId, Framing),
    /// Close a connection, after what was sent on it. No input about it must follow.
    Close(ConnId),
    /// Execute a request.
    Execute {
        /// Its name.
        job: Job,
        /// For which of the devices.
        device: usize,
        /// For which instance.
        instance: u16,
        /// Of which virtqueue.
        vq: u16,
        /// The readable bytes.
        out: Bytes,
        /// How many bytes are writable.
        in_length: u32,
    },
    /// Cancel a request, if that is possible. It must be reported done in any case, unless its instance is destroyed.
    Cancel(Job),
    /// A driver accepted these features.
    Features(u16, u64),
    /// A driver wrote configuration.
    ConfigWritten(u16),
    /// Nothing of this instance is executing any more, and its initiator detached it in order to go elsewhere.
    Detached(u16),
    /// An instance is gone; its jobs need not be reported.
    Destroyed(u16),
}

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Pending(Duration),
    /// Asks what there is, since then.
    Discovery(Duration),
    Control(u16),
    Queue(u16, u16),
}

/// The engine.
#[derive(Debug)]
pub struct Target {
    config: Config,
    /// One of each device.
    generations: Vec<u32>,
    conns: BTreeMap<ConnId, (Role, [u8; 16])>,
    sessions: BTreeMap<u16, Session>,
    jobs: BTreeMap<Job, (u16, u16, u16)>,
    next_job: u64,
    draining: bool,
    outputs: VecDeque<Output>,
}

impl Target {
    /// A target without connections.
    pub fn new(config: Config) -> Self {
        Target {
            generations: vec![0; config.devices.len()],
            config,
            conns: BTreeMap::new(),
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            draining: false,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// How many bytes follow a header on a stream without frames. `None`: more than any message has, so the connection
    /// is to be ended. A header that cannot be understood has none; [`Target::message`] answers it.
    pub fn body_bytes(&self, header: &[u8; HEADER]) -> Option<u64> {
        let bytes = Command::parse(header).map_or(0, |command| command.request.stream_body());
        let most = u64::from(self.config.max_xfer).max(CONNECT_BODY as u64);
        Some(bytes).filter(|bytes| *bytes <= most)
    }

    /// A connection came in. `session_id` is random and used if it makes a session.
    pub fn accepted(&mut self, conn: ConnId, session_id: [u8; 16], now: Duration) {
        let pending = self.conns.values().filter(|(role, _)| role.deadline().is_some()).count();
        if pending >= self.config.max_pending {
            self.outputs.push_back(Output::Close(conn));
        } else {
            self.conns.insert(conn, (Role::Pending(now), session_id));
        }
    }

    /// A connection is gone.
    pub fn lost(&mut self, conn: ConnId, now: Duration) {
        match self.conns.remove(&conn) {
            Some((Role::Control(instance), _)) => self.detach(instance, now),
            Some((Role::Queue(instance, vq), _)) => {
                if let Some(queue) = self.queue(instance, vq) {
                    queue.unattached();
                }
            }
            _ => {}
        }
    }

    /// A whole message arrived.
    pub fn message(&mut self, conn: ConnId, message: Message, now: Duration) {
        self.received(conn, message, None, now);
    }

    /// A message arrived whose command cannot be carried out, for this reason. Its body means nothing.
    pub fn refused(&mut self, conn: ConnId, message: Message, why: Status, now: Duration) {
        self.received(conn, message, Some(why), now);
    }

    fn received(&mut self, conn: ConnId, message: Message, damage: Option<Status>, now: Duration) {
        let Some((role, session_id)) = self.conns.get(&conn).copied() else { return };
        let Message { header, body } = message;
        let command = match Command::parse(&header) {
            Ok(command) if damage.is_some() || command.request.stream_body() == body.len() as u64 => command,
            Ok(_) => return self.refuse(conn, Status::Protocol, now),
            Err(_) => {
                if !matches!(role, Role::Pending(_)) {
                    self.complete(
                        conn,
                        Command::id_of(&header),
                        Status::NoCommand,
                        Reply::Nothing,
                        Bytes::new(),
                    );
                }
                return self.refuse(conn, Status::Protocol, now);
            }
        };
        if let Role::Control(instance) | Role::Queue(instance, _) = role
            && let Some(session) = self.sessions.get_mut(&instance)
        {
            session.heard = now;
        }
        match role {
            Role::Pending(_) => self.connect(conn, command, &body, session_id, now),
            Role::Discovery(_) => self.discovery(conn, command, now),
            Role::Control(instance) => match damage {
                Some(status) => self.complete(conn, command.id, status, Reply::Nothing, Bytes::new()),
                None => self.control(conn, instance, command, &body, now),
            },
            Role::Queue(instance, vq) => self.buffer(conn, (instance, vq), command, (body, damage), now),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        let is_late = |role: &Role| role.deadline().is_some_and(|at| now >= at);
        let late: Vec<ConnId> =
            self.conns.iter().filter(|(_, (role, _))| is_late(role)).map(|(conn, _)| *conn).collect();
        for conn in late {
            self.close(conn, now);
        }
        let over: Vec<u16> = self
            .sessions
            .values()
            .filter(|s| s.deadline().is_some_and(|at| now >= at))
            .map(|s| s.instance)
            .collect();
        for instance in over {
            match self.sessions[&instance].control {
                Some(conn) => self.close(conn, now),
                None => self.destroy(instance),
            }
        }
    }

    /// When [`Target::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let pending = self.conns.values().filter_map(|(role, _)| role.deadline());
        pending.chain(self.sessions.values().filter_map(Session::deadline)).min()
    }

    /// The configuration of a device is another.
    pub fn set_config(&mut self, device: usize, config: Vec<u8>) {
        self.config.devices[device].config = config;
        self.changed(device);
    }

    /// Whether more messages of a connection may be taken now.
    pub fn has_room(&self, conn: ConnId) -> bool {
        let Some((Role::Queue(instance, vq), _)) = self.conns.get(&conn) else { return true };
        let queue = self.sessions.get(instance).and_then(|session| session.queues.get(usize::from(*vq)));
        let busy = queue.map_or(0, |queue| queue.executing_bytes);
        let queues = self.sessions.values().flat_map(|session| &session.queues);
        let all = || queues.map(|queue| queue.executing_bytes).sum::<u64>();
        busy == 0 || (busy < self.config.max_executing && all() < self.config.max_executing_total)
    }

    /// Whether nothing is executing and all initiators are ready to go elsewhere, or gone.
    pub fn is_drained(&self) -> bool {
        self.jobs.is_empty()
            && self.sessions.values().all(|session| session.left || session.control.is_none())
    }

    /// Tells the driver of an instance that the device needs a reset.
    pub fn needs_reset(&mut self, instance: u16) {
        let Some(session) = self.sessions.get_mut(&instance) else { return };
        session.status |= crate::status::NEEDS_RESET;
        let (device, status) = (session.device, session.status);
        let events = session.features.contains(Features::EVENTS);
        if let (Some(conn), true) = (session.control, events) {
            self.send(conn, Event::DeviceStatus(status).emit(), Bytes::new());
        }
        self.changed(device);
    }

    /// Asks initiators to leave within `time`; new instances are refused from now on.
    pub fn drain(&mut self, time: Duration) {
        self.draining = true;
        let event = Event::Drain(u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        self.announce(&Message::bare(event.emit()));
    }

    /// Sends all initiators elsewhere.
    pub fn redirect(&mut self, to: &Redirect) {
        let body = to.emit();
        let header = Event::Redirect(body.len() as u32).emit();
        self.announce(&Message { header, body: body.into() });
    }

    /// Sends an event to all control queues that know such events.
    fn announce(&mut self, event: &Message) {
        for session in self.sessions.values().filter(|s| s.features.contains(Features::EVENTS)) {
            self.outputs.extend(session.control.map(|conn| Output::Send(conn, event.clone())));
        }
    }

    /// Counts a device's generation on and says so where the last change has been read.
    fn changed(&mut self, device: usize) {
        let generation = self.generations[device].wrapping_add(1);
        self.generations[device] = generation;
        let event = Message::bare(Event::ConfigChange(generation).emit());
        for session in self.sessions.values_mut().filter(|session| session.device == device) {
            if let (Some(conn), false) = (session.control, session.change_unread) {
                session.change_unread = true;
                self.outputs.push_back(Output::Send(conn, event.clone()));
            }
        }
    }

    fn queue(&mut self, instance: u16, vq: u16) -> Option<&mut Queue> {
        self.sessions.get_mut(&instance)?.queues.get_mut(usize::from(vq))
    }

    fn complete(&mut self, conn: ConnId, id: u16, status: Status, reply: Reply, body: Bytes) {
        self.send(conn, Completion { id, status, reply }.emit(), body);
    }

    fn send(&mut self, conn: ConnId, header: [u8; HEADER], body: Bytes) {
        self.outputs.push_back(Output::Send(conn, Message { header, body }));
    }

    /// Ends a connection whose peer broke the protocol.
    fn refuse(&mut self, conn: ConnId, status: Status, now: Duration) {
        if let Some((Role::Control(instance), _)) = self.conns.get(&conn)
            && self.sessions.get(instance).is_some_and(|s| s.features.contains(Features::EVENTS))
        {
            self.send(conn, Event::Terminate(status).emit(), Bytes::new());
        }
        self.close(conn, now);
    }

    /// Ends a connection as if it were lost.
    fn close(&mut self, conn: ConnId, now: Duration) {
        self.outputs.push_back(Output::Close(conn));
        self.lost(conn, now);
    }

    /// Closes the virtqueues' connections of an instance.
    fn close_queues(&mut self, instance: u16) {
        let Some(session) = self.sessions.get_mut(&instance) else { return };
        for conn in session.queues.iter_mut().filter_map(Queue::unattached) {
            self.conns.remove(&conn);
            self.outputs.push_back(Output::Close(conn));
        }
    }

    /// The control connection of an instance is gone, and the others go with it.
    fn detach(&mut self, instance: u16, now: Duration) {
        self.close_queues(instance);
        let Some(session) = self.sessions.get_mut(&instance) else { return };
        session.control = None;
        session.detached = Some(now);
        session.change_unread = false;
        let live = session.status & crate::status::DRIVER_OK != 0 || session.reset.is_some();
        if !(live && session.features.contains(Features::RESUME)) {
            self.destroy(instance);
        }
    }

    fn destroy(&mut self, instance: u16) {
        self.close_queues(instance);
        let Some(session) = self.sessions.remove(&instance) else { return };
        if let Some(conn) = session.control {
            self.conns.remove(&conn);
            self.outputs.push_back(Output::Close(conn));
        }
        let jobs: Vec<Job> =
            self.jobs.iter().filter(|(_, at)| at.0 == instance).map(|(job, _)| *job).collect();
        for job in jobs {
            self.jobs.remove(&job);
            self.outputs.push_back(Output::Cancel(job));
        }
        self.outputs.push_back(Output::Destroyed(instance));
    }
}

impl Role {
    /// When a connection that has no session yet is closed.
    fn deadline(&self) -> Option<Duration> {
        match self {
            Role::Pending(since) => Some(*since + CONNECT_TIME),
            Role::Discovery(since) => Some(*since + GRACE),
            Role::Control(_) | Role::Queue(..) => None,
        }
    }
}

impl Session {
    /// When something happens to the session if nothing is heard.
    fn deadline(&self) -> Option<Duration> {
        match self.detached {
            // What still executes must not come behind what a later session of the same initiator asks for.
            Some(_) if !self.is_idle() => None,
            Some(since) => Some(since + self.life),
            None => (!self.keepalive.is_zero()).then(|| self.heard + self.keepalive + GRACE),
        }
    }
}

/// What a control command is answered with: status, reply, body.
type Answer = (Status, Reply, Vec<u8>);

/// A refusal that needs no more words.
fn refusal(status: Status) -> Answer {
    (status, Reply::Nothing, Vec::new())
}

/// Whether a request may come by a control queue.
fn is_control(request: &Request) -> bool {
    !matches!(request.opcode(), Opcode::Vq | Opcode::Vqx | Opcode::VqKeyedEagerBuf | Opcode::Connect)
}
