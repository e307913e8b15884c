//! An initiator and a target under virtual time, with connections that break where a test says.
#![allow(dead_code, reason = "Every test uses its own part")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use virtio_fabric::initiator::{self, Filled, Initiator, Token};
use virtio_fabric::target::{self, Done, Job, Target};
use virtio_fabric::wire::{Features, Name, Redirect, Status};
use virtio_fabric::{ConnId, Message};

pub const MS: Duration = Duration::from_millis(1);

pub fn features() -> Features {
    Features::BASE
        | Features::INLINE_OUT
        | Features::TAIL_IN
        | Features::RESUME
        | Features::ABORT_RESET
        | Features::BULK_CONFIG
        | Features::EVENTS
        | Features::DISCOVERY
}

pub fn target_config() -> target::Config {
    target::Config {
        devices: vec![target::Device {
            name: Name::new("disk").unwrap(),
            id: 2,
            vendor: 7,
            features: 1 << 32 | 1 << 2 | 1 << 29,
            config: (0..16).collect(),
            writable: 8..12,
            queue_sizes: vec![4, 4],
            out_split: 4,
        }],
        features: features(),
        max_xfer: 4096,
        max_instances: 8,
        max_pending: 8,
        session_life: Duration::from_secs(30),
        max_keepalive: Duration::from_secs(60),
        max_executing: 1 << 20,
        max_executing_total: 1 << 20,
        replay_limit: 4096,
        rdma: None,
    }
}

pub fn initiator_config() -> initiator::Config {
    initiator::Config {
        initiator: Name::new("host").unwrap(),
        target: Name::new("disk").unwrap(),
        host_id: [9; 16],
        features: features(),
        driver_features: !0,
        queues: 2,
        queue_size: 0,
        backlog: 64,
        receives: 0,
        keepalive: Duration::from_secs(5),
        session_life: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(3),
        control_timeout: Duration::from_secs(5),
        command_timeout: Duration::from_secs(20),
        repeatable: false,
        backoff: 500 * MS,
        loss_timeout: Duration::from_secs(600),
    }
}

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Both sides notice.
    Both,
    /// Only the initiator notices; the target goes on believing.
    Initiator,
    /// Only the target notices; the initiator must find out by itself.
    Target,
    /// All connections, and both sides notice.
    All,
}

/// What carries messages.
#[derive(Debug, Default)]
struct Conn {
    to_target: VecDeque<Message>,
    to_initiator: VecDeque<Message>,
    /// One side still believes in it; nothing that is sent arrives.
    broken: bool,
}

pub struct World {
    pub initiator: Initiator,
    pub target: Target,
    pub now: Duration,
    conns: BTreeMap<ConnId, Conn>,
    /// Messages delivered or lost so far.
    pub messages: usize,
    /// The messages at which the connection breaks.
    pub breaks: Vec<(usize, Break)>,
    jobs: Vec<(Duration, Job, Done)>,
    /// How often each request was executed, by its first four bytes.
    pub executed: BTreeMap<u32, u32>,
    pub completed: BTreeMap<Token, Vec<Result<Filled, Status>>>,
    /// Whatever else came out of the engines.
    pub events: Vec<initiator::Output>,
    pub target_events: Vec<target::Output>,
    /// How long requests take, in turn.
    pub delays: Vec<Duration>,
    /// Whether the device says that reads may be repeated.
    pub repeatable_reads: bool,
    pub redirected: Option<Redirect>,
    sessions: u128,
}

impl World {
    pub fn new(initiator: initiator::Config, target: target::Config) -> Self {
        World {
            initiator: Initiator::new(initiator),
            target: Target::new(target),
            now: Duration::from_secs(1000),
            conns: BTreeMap::new(),
            messages: 0,
            breaks: Vec::new(),
            jobs: Vec::new(),
            executed: BTreeMap::new(),
            completed: BTreeMap::new(),
            events: Vec::new(),
            target_events: Vec::new(),
            delays: vec![Duration::ZERO],
            repeatable_reads: false,
            redirected: None,
            sessions: 0,
        }
    }

    /// What the device answers to a request: the bytes depend on it.
    pub fn answer(out: &[u8], in_length: u32) -> (Bytes, Bytes) {
        let seed = out[0];
        let data: Vec<u8> = (1..in_length).map(|n| (n as u8).wrapping_mul(31) ^ seed).collect();
        let tail = if in_length == 0 { Vec::new() } else { vec![seed ^ 0x55] };
        (data.into(), tail.into())
    }

    /// Does what the engines want; says whether there was anything.
    fn drain_outputs(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.initiator.poll() {
            any = true;
            match output {
                initiator::Output::Open(conn, to) => {
                    self.redirected = to;
                    self.conns.insert(conn, Conn::default());
                    self.sessions += 1;
                    self.target.accepted(conn, self.sessions.to_le_bytes(), self.now);
                    self.initiator.connected(conn, self.now);
                }
                initiator::Output::Send(conn, message) => {
                    if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.broken) {
                        conn.to_target.push_back(message);
                    }
                }
                initiator::Output::Close(conn) => {
                    // What was sent before is still delivered, and then the end.
                    if let Some(mut conn_state) = self.conns.remove(&conn)
                        && !conn_state.broken
                    {
                        for message in conn_state.to_target.drain(..) {
                            self.target.message(conn, message, self.now);
                        }
                        self.target.lost(conn, self.now);
                    }
                }
                initiator::Output::Completed(token, result) => {
                    self.completed.entry(token).or_default().push(result);
                }
                event => self.events.push(event),
            }
        }
        while let Some(output) = self.target.poll() {
            any = true;
            self.target_output(output);
        }
        any
    }

    fn target_output(&mut self, output: target::Output) {
        match output {
            target::Output::Send(conn, message) => {
                if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.broken) {
                    conn.to_initiator.push_back(message);
                }
            }
            target::Output::Close(conn) => {
                if let Some(mut state) = self.conns.remove(&conn)
                    && !state.broken
                {
                    for message in state.to_initiator.drain(..) {
                        self.initiator.message(conn, message, self.now);
                    }
                    self.initiator.lost(conn, self.now);
                }
            }
            target::Output::Execute { job, out, in_length, .. } => {
                let number = u32::from_le_bytes(out[..4].try_into().unwrap());
                *self.executed.entry(number).or_default() += 1;
                let (data, tail) = Self::answer(&out, in_length);
                let repeatable = self.repeatable_reads && in_length > 1;
                let done = Done { status: Status::Success, used: in_length, data, tail, repeatable };
                let delay = self.delays[number as usize % self.delays.len()];
                self.jobs.push((self.now + delay, job, done));
            }
            event => {
                if let target::Output::Cancel(job) = &event
                    && let Some(at) = self.jobs.iter().position(|(_, other, _)| other == job)
                {
                    let (_, job, done) = self.jobs.remove(at);
                    self.target.done(job, Done { status: Status::Aborted, ..done });
                }
                self.target_events.push(event);
            }
        }
    }

    /// Delivers one message, or breaks its connection. Takes turns between connections and directions.
    fn deliver(&mut self) -> bool {
        let ready = |conn: &Conn| !conn.to_target.is_empty() || !conn.to_initiator.is_empty();
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, c)| ready(c)).map(|(id, _)| *id).collect();
        let Some(id) = ids.get(self.messages % ids.len().max(1)).copied() else { return false };
        let number = self.messages;
        self.messages += 1;
        if let Some((_, how)) = self.breaks.iter().find(|(at, _)| *at == number).copied() {
            self.break_connection(id, how);
            return true;
        }
        let conn = self.conns.get_mut(&id).unwrap();
        match conn.to_target.pop_front() {
            Some(message) => {
                assert_eq!(self.target.body_bytes(&message.header), Some(message.body.len() as u64));
                self.target.message(id, message, self.now);
            }
            None => {
                let message = conn.to_initiator.pop_front().unwrap();
                let expected = self.initiator.body_bytes(id, &message.header);
                assert_eq!(expected, Some(message.body.len() as u64));
                self.initiator.message(id, message, self.now);
            }
        }
        true
    }

    fn break_connection(&mut self, id: ConnId, how: Break) {
        let ids = if how == Break::All { self.conns.keys().copied().collect() } else { vec![id] };
        for id in ids {
            if matches!(how, Break::Initiator | Break::Target) {
                let conn = self.conns.get_mut(&id).unwrap();
                *conn = Conn { broken: true, ..Conn::default() };
            } else {
                self.conns.remove(&id);
            }
            if how != Break::Initiator {
                self.target.lost(id, self.now);
            }
            if how != Break::Target {
                self.initiator.lost(id, self.now);
            }
        }
    }

    /// Does all that can be done without time passing.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.drain_outputs() {
                continue;
            }
            let due = self.jobs.iter().position(|(at, ..)| *at <= self.now);
            if let Some(at) = due {
                let (_, job, done) = self.jobs.remove(at);
                self.target.done(job, done);
            } else if !self.deliver() {
                return;
            }
        }
        panic!("The engines never come to rest");
    }

    /// Lets time pass, from deadline to deadline.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            self.settle();
            let jobs = self.jobs.iter().map(|(at, ..)| *at);
            let deadlines = self.initiator.deadline().into_iter().chain(self.target.deadline());
            let next = jobs.chain(deadlines).min().unwrap_or(end);
            if next > end || (next == end && self.now == end) {
                self.now = end;
                return;
            }
            self.now = next.max(self.now);
            self.initiator.tick(self.now);
            self.target.tick(self.now);
        }
        panic!("Deadlines that do not go away");
    }

    /// Submits request `number`.
    pub fn submit(&mut self, vq: u16, number: u32, out_length: usize, in_length: u32) -> Token {
        let mut out = number.to_le_bytes().to_vec();
        out.resize(out_length.max(4), number as u8);
        self.initiator.submit(vq, out.into(), in_length, self.now).unwrap()
    }

    /// A target that knows nothing of its predecessor: it was killed and started again.
    pub fn restart_target(&mut self, config: target::Config) {
        self.target = Target::new(config);
        self.jobs.clear();
        for (conn, _) in std::mem::take(&mut self.conns) {
            self.initiator.lost(conn, self.now);
        }
    }

    pub fn is_ready(&self) -> bool {
        self.events.iter().any(|event| matches!(event, initiator::Output::Ready { .. }))
    }
}
