//! All connections of a port.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use device_model::time::Instant;
use verbs::{Gid, Mtu, Qpn};

use crate::state::{Answer, Input, Notice, State, step};
use crate::wire::{Ids, MAD, Message, MoreTime, Reason, Reject, Reply, Request};

/// How long a connection that is over is remembered.
const TIME_WAIT: Duration = Duration::from_secs(4);
/// Time-out code within which this side answers: 4.096 µs · 2^18, one second.
const RESPONSE_TIMEOUT: u8 = 18;
/// Time-out code of how much longer a consumer may take: four seconds.
const PATIENCE: u8 = 20;
/// Longest time that a peer can ask to wait.
const MAX_PATIENCE: Duration = Duration::from_secs(60);
/// Hop limit of paths.
const HOP_LIMIT: u8 = 64;

/// Names a connection: this side's communication identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub u32);

/// Where a datagram goes or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// This side's address.
    pub own: Gid,
    /// The other side's.
    pub gid: Gid,
}

/// What this side brings into a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// Queue pair.
    pub qpn: Qpn,
    /// The first PSN that it expects.
    pub psn: u32,
    /// Reads and atomics that it serves at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it has outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Acknowledge time-out code.
    pub ack_timeout: u8,
    /// Path MTU.
    pub mtu: Mtu,
}

/// What an agent is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The device's globally unique identifier.
    pub ca_guid: u64,
    /// Where identifiers start.
    pub first_id: u32,
    /// How long an answer may take before a message is repeated.
    pub response_time: Duration,
    /// How often it is repeated.
    pub retries: u8,
    /// Most connections, those that are over included.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ca_guid: 1,
            first_id: 1,
            response_time: Duration::from_millis(400),
            retries: 10,
            max_connections: 2048,
        }
    }
}

/// What has happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants to connect: [`Agent::accept`] or [`Agent::end`] answers.
    Requested(Box<Request>),
    /// The other side accepts: [`Agent::ready`] once the queue pair is up.
    Replied(Box<Reply>),
    /// The other side is ready.
    Established,
    /// The other side refuses. The connection is forgotten.
    Refused(Box<Reject>),
    /// The other side does not answer. The connection is forgotten.
    Unreachable,
    /// The connection is over.
    Closed,
}

/// What the agent wants done, and what has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram from queue pair 1 to queue pair 1.
    Send(Peer, Box<[u8; MAD]>),
    /// Something happened to a connection, whose peer this is.
    Event(CmId, Peer, Event),
}

#[derive(Debug)]
struct Connection {
    state: State,
    peer: Peer,
    remote_id: u32,
    remote_qpn: Qpn,
    own_qpn: Qpn,
    /// What was sent last.
    last: Option<(u64, Message)>,
    tid: u64,
    deadline: Option<Instant>,
    tries: u8,
}

/// The agent.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    services: BTreeSet<u64>,
    connections: BTreeMap<CmId, Connection>,
    next_id: u32,
    next_tid: u64,
    outputs: VecDeque<Output>,
}

impl Agent {
    /// An agent without connections.
    pub fn new(config: Config) -> Self {
        let (next_id, next_tid) = (config.first_id.max(1), u64::from(config.first_id) << 32);
        Self {
            config,
            services: BTreeSet::new(),
            connections: BTreeMap::new(),
            next_id,
            next_tid,
            outputs: VecDeque::new(),
        }
    }

    /// Takes requests for a service from now on.
    pub fn listen(&mut self, service: u64) {
        self.services.insert(service);
    }

    /// Refuses requests for a service from now on.
    pub fn stop_listening(&mut self, service: u64) {
        self.services.remove(&service);
    }

    /// The next thing to do, or that has happened.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// How many connections there are, those that are over included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Asks for a connection. `None`: there are too many.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: Peer,
        service_id: u64,
        local: LocalEnd,
        private: [u8; 92],
    ) -> Option<CmId> {
        let id = self.new_id()?;
        let request = Request {
            comm_id: id.0,
            service_id,
            ca_guid: self.config.ca_guid,
            qpn: local.qpn,
            responder_resources: local.responder_resources,
            initiator_depth: local.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            psn: local.psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: local.retry_count,
            rnr_retry_count: local.rnr_retry_count,
            mtu: local.mtu,
            max_cm_retries: self.config.retries.min(15),
            srq: false,
            local_gid: peer.own,
            remote_gid: peer.gid,
            hop_limit: HOP_LIMIT,
            ack_timeout: local.ack_timeout,
            private,
        };
        let tid = self.new_tid();
        self.connections.insert(id, Connection::new(State::ReqSent, peer, local.qpn, tid));
        self.send(now, id, Message::Request(request));
        Some(id)
    }

    /// Accepts a request.
    pub fn accept(&mut self, now: Instant, id: CmId, local: LocalEnd, private: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut bytes = [0; 196];
        let len = private.len().min(bytes.len());
        bytes[..len].copy_from_slice(&private[..len]);
        connection.own_qpn = local.qpn;
        let reply = Reply {
            ids: Ids { local: id.0, remote: connection.remote_id },
            qpn: local.qpn,
            psn: local.psn,
            responder_resources: local.responder_resources,
            initiator_depth: local.initiator_depth,
            ack_delay: 0,
            rnr_retry_count: local.rnr_retry_count,
            srq: false,
            ca_guid: self.config.ca_guid,
            private: bytes,
        };
        self.advance(now, id, Input::Accept, Some(Message::Reply(reply)));
    }

    /// The queue pair is up, after [`Event::Replied`].
    pub fn ready(&mut self, now: Instant, id: CmId) {
        self.advance(now, id, Input::Ready, None);
    }

    /// Data came on the connection, perhaps before RTU.
    pub fn data(&mut self, now: Instant, id: CmId) {
        self.advance(now, id, Input::Data, None);
    }

    /// Refuses a request, gives up an attempt or disconnects; `private` is for a refusal. Nothing more is told of it.
    pub fn end(&mut self, now: Instant, id: CmId, private: &[u8]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let of_reply = connection.state == State::RepReceived;
        let reject = connection.refusal(id, of_reply, Reason::CONSUMER, private);
        self.advance(now, id, Input::End, Some(Message::Reject(reject)));
    }

    /// A datagram has come to queue pair 1.
    pub fn receive(&mut self, now: Instant, from: Peer, mad: &[u8]) {
        let Ok((tid, message)) = Message::parse(mad) else { return };
        match message {
            Message::Request(request) => self.request(now, from, tid, request),
            message => self.message(now, from, tid, message),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        let due: Vec<CmId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.deadline.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.state.repeats() && connection.tries > 0 {
                connection.tries -= 1;
                self.again(now, id);
                continue;
            }
            let of_reply = connection.state == State::RepSent;
            let reject = connection.refusal(id, of_reply, Reason::TIMEOUT, &[]);
            self.advance(now, id, Input::Expired, Some(Message::Reject(reject)));
        }
    }

    /// When [`Agent::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(|connection| connection.deadline).min()
    }

    fn new_id(&mut self) -> Option<CmId> {
        if self.connections.len() >= self.config.max_connections {
            return None;
        }
        loop {
            let id = CmId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1).max(1);
            if !self.connections.contains_key(&id) {
                return Some(id);
            }
        }
    }

    fn new_tid(&mut self) -> u64 {
        self.next_tid = self.next_tid.wrapping_add(1);
        self.next_tid
    }

    /// REQ: a new connection, or an old one's again.
    fn request(&mut self, now: Instant, from: Peer, tid: u64, request: Request) {
        let of_peer = |connection: &Connection| connection.peer.gid == from.gid;
        let same = |connection: &Connection| connection.remote_id == request.comm_id && of_peer(connection);
        if let Some((id, _)) = self.connections.iter().find(|(_, connection)| same(connection)) {
            let id = *id;
            return self.advance(now, id, Input::Req, None);
        }
        // The peer has started again and forgotten the connection that its queue pair had.
        let stale = |connection: &Connection| {
            connection.remote_qpn == request.qpn && of_peer(connection) && connection.state != State::TimeWait
        };
        if let Some((id, connection)) = self.connections.iter().find(|(_, connection)| stale(connection)) {
            let (id, peer) = (*id, connection.peer);
            self.connections.remove(&id);
            self.outputs.push_back(Output::Event(id, peer, Event::Closed));
        }
        let refused = if !self.services.contains(&request.service_id) {
            Some(Reason::INVALID_SERVICE)
        } else if self.connections.len() >= self.config.max_connections {
            Some(Reason::NO_QP)
        } else {
            None
        };
        if let Some(reason) = refused {
            let ids = Ids { local: 0, remote: request.comm_id };
            let reject = Message::Reject(Reject { ids, of_reply: false, reason, private: [0; 148] });
            return self.outputs.push_back(Output::Send(from, Box::new(reject.emit(tid))));
        }
        let Some(id) = self.new_id() else { return };
        let mut connection = Connection::new(State::ReqReceived, from, Qpn(0), tid);
        (connection.remote_id, connection.remote_qpn) = (request.comm_id, request.qpn);
        self.connections.insert(id, connection);
        self.outputs.push_back(Output::Event(id, from, Event::Requested(Box::new(request))));
    }

    /// A message that names a connection.
    fn message(&mut self, now: Instant, from: Peer, tid: u64, message: Message) {
        let Ids { local: remote_id, remote: id } = message.ids();
        let id = CmId(id);
        let known = self.connections.get_mut(&id).filter(|connection| {
            // Before the first answer its sender's identifier is not known, and a refusal may have none.
            let unknown = connection.state == State::ReqSent;
            connection.peer.gid == from.gid && (unknown || connection.remote_id == remote_id)
        });
        let Some(connection) = known else {
            if let Message::Disconnect(ids, _) = message {
                // So that a peer whose connection is forgotten here need not wait.
                let ids = Ids { local: ids.remote, remote: ids.local };
                let answer = Message::Disconnected(ids).emit(tid);
                self.outputs.push_back(Output::Send(from, Box::new(answer)));
            }
            return;
        };
        let input = match &message {
            Message::Reply(reply) => {
                connection.remote_id = remote_id;
                connection.remote_qpn = reply.qpn;
                Input::Rep
            }
            Message::MoreTime(more) => {
                let patience = Duration::from_nanos(4096 << more.service_timeout).min(MAX_PATIENCE);
                if connection.state.repeats() {
                    connection.deadline = Some(now + patience + self.config.response_time);
                }
                Input::Mra
            }
            Message::Reject(_) => Input::Rej,
            Message::ReadyToUse(_) => Input::Rtu,
            Message::Disconnect(_, qpn) if *qpn != connection.own_qpn => return,
            Message::Disconnect(..) => {
                connection.tid = tid;
                Input::Dreq
            }
            Message::Disconnected(_) => Input::Drep,
            Message::Request(_) => return,
        };
        self.advance(now, id, input, Some(message));
    }

    /// Carries out a line of the table. `message` is what came, or what the consumer wants sent.
    fn advance(&mut self, now: Instant, id: CmId, input: Input, message: Option<Message>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(step) = step(connection.state, input) else { return };
        let (peer, ids) = (connection.peer, Ids { local: id.0, remote: connection.remote_id });
        let changed = step.next != Some(connection.state);
        if let Some(next) = step.next.filter(|_| changed) {
            connection.state = next;
            connection.deadline = (next == State::TimeWait).then(|| now + TIME_WAIT);
        }
        let disconnect = Message::Disconnect(ids, connection.remote_qpn);
        match step.answer {
            Answer::Nothing => {}
            Answer::Again => self.again(now, id),
            Answer::Patience => {
                let more = MoreTime { ids, of_reply: false, service_timeout: PATIENCE };
                self.send(now, id, Message::MoreTime(more));
            }
            Answer::Reply | Answer::Refusal | Answer::TimedOut => {
                if let Some(message) = message {
                    self.send(now, id, message);
                }
            }
            Answer::ReadyToUse => self.send(now, id, Message::ReadyToUse(ids)),
            Answer::Disconnect => {
                let tid = self.new_tid();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.tid = tid;
                }
                self.send(now, id, disconnect);
            }
            Answer::Disconnected => self.send(now, id, Message::Disconnected(ids)),
        }
        if step.next.is_none() {
            self.connections.remove(&id);
        }
        let event = match (step.notice, message) {
            (Notice::Replied, Some(Message::Reply(reply))) => Event::Replied(Box::new(reply)),
            (Notice::Refused, Some(Message::Reject(reject))) => Event::Refused(Box::new(reject)),
            (Notice::Established, _) => Event::Established,
            (Notice::Unreachable, _) => Event::Unreachable,
            (Notice::Closed, _) => Event::Closed,
            _ => return,
        };
        self.outputs.push_back(Output::Event(id, peer, event));
    }

    /// Sends a message of a connection, and expects an answer if its state does.
    fn send(&mut self, now: Instant, id: CmId, message: Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.last = Some((connection.tid, message));
        connection.tries = self.config.retries;
        self.again(now, id);
    }

    fn again(&mut self, now: Instant, id: CmId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some((tid, message)) = &connection.last else { return };
        if connection.state.repeats() {
            connection.deadline = Some(now + self.config.response_time);
        }
        self.outputs.push_back(Output::Send(connection.peer, Box::new(message.emit(*tid))));
    }
}

impl Connection {
    fn new(state: State, peer: Peer, own_qpn: Qpn, tid: u64) -> Self {
        Self {
            state,
            peer,
            remote_id: 0,
            remote_qpn: Qpn(0),
            own_qpn,
            last: None,
            tid,
            deadline: None,
            tries: 0,
        }
    }

    fn refusal(&self, id: CmId, of_reply: bool, reason: Reason, private: &[u8]) -> Reject {
        let mut bytes = [0; 148];
        let len = private.len().min(bytes.len());
        bytes[..len].copy_from_slice(&private[..len]);
        Reject { ids: Ids { local: id.0, remote: self.remote_id }, of_reply, reason, private: bytes }
    }
}
