//! A provider, a connection manager and neighbours, for a host with one address.

mod gsi;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use device_model::net::{Link, MAX_FRAME, MacAddr};
use device_model::time::Instant;
use rdma_cm::wire::{IpHeader, Reason, Reply, Request};
use rdma_cm::{Agent, CmId, LocalEnd, Peer, tcp_port, tcp_service};
use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqId, CqInit, Error, Gid, GidEntry, Keys, MrId, MrInit,
    MrKind, Mtu, Owner, PageList, PdId, Provider, ProviderEvent, QpAttr, QpAttrMask, QpCap, QpId, QpInit,
    QpState, QpType, Qpn, RecvWr, SendWr, Sge,
};

use crate::arena::{Arena, Buffer, PAGE};
use crate::neighbours::{Lookup, Neighbours};
use gsi::{Gsi, source_of};

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
/// The region by which the process itself reaches its arena.
const OWN_MEMORY: MrId = MrId(0);
/// Frames that are taken before other work has its turn.
const FRAMES: usize = 256;
/// Acknowledge time-out code: 4.096 µs · 2^14, 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// RNR timer code: 0.64 ms.
const RNR_TIMER: u8 = 12;
/// Transport and RNR retries; the latter without end.
const RETRIES: u8 = 7;
const HOP_LIMIT: u8 = 64;

/// Names a connection, and its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Who the endpoint is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Ethernet address.
    pub mac: MacAddr,
    /// The address that peers connect to.
    pub ip: IpAddr,
    /// Time-outs of the connection manager.
    pub cm: rdma_cm::Config,
}

impl Config {
    /// With the connection manager's defaults.
    pub fn new(mac: MacAddr, ip: IpAddr) -> Self {
        let random = RandomState::new().hash_one(mac.0) as u32;
        let ca_guid = u64::from_be_bytes(mac.eui64());
        Self { mac, ip, cm: rdma_cm::Config { ca_guid, first_id: random, ..rdma_cm::Config::default() } }
    }
}

/// Work requests of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// Send work requests.
    pub sends: u32,
    /// Receive work requests.
    pub receives: u32,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No Ethernet address for the IP address.
    #[error("nobody has that address")]
    NoNeighbour,
    /// No answer.
    #[error("its connection manager does not answer")]
    Silent,
    /// Nobody listens.
    #[error("nobody listens at that port")]
    NoService,
    /// The other side says no; its private data.
    #[error("the connection is refused (reason {0})")]
    Refused(u16, Vec<u8>),
    /// The provider says no.
    #[error("the queue pair cannot be used: {0}")]
    Provider(#[from] Error),
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody connects to a port: [`Endpoint::accept`] or [`Endpoint::close`] answers.
    Request {
        /// The connection.
        conn: ConnId,
        /// Who.
        from: IpAddr,
        /// To which port.
        port: u16,
        /// Private data.
        private: Vec<u8>,
    },
    /// The connection is there. Private data of the other side's answer, if it was this side that connected.
    Connected(ConnId, Vec<u8>),
    /// There will be no connection. It is forgotten.
    Failed(ConnId, Failure),
    /// The other side has ended the connection, or its queue pair has failed. [`Endpoint::close`] forgets it.
    Closed(ConnId),
    /// A work request has ended; those of sends that were not signalled do not say so unless they fail.
    Done(ConnId, Completion),
    /// The oldest send work request of a connection has ended, and its memory is free.
    SendRetired(ConnId),
}

/// Memory that peers reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    mr: MrId,
    /// What peers name it by.
    pub key: u32,
    /// Its first byte, as peers name it.
    pub addr: u64,
}

#[derive(Debug)]
enum State {
    /// The neighbour is asked for.
    Resolving {
        port: u16,
        private: Vec<u8>,
    },
    /// The connection manager has asked.
    Asked(CmId),
    /// The other side has asked.
    Offered(CmId, Box<Request>),
    /// This side has accepted.
    Accepted(CmId),
    Up(CmId),
    Over,
}

#[derive(Debug)]
struct Connection {
    state: State,
    peer: IpAddr,
    /// The queue pair is there, with this number and the PSN that it expects first.
    qp: Option<(Qpn, u32)>,
}

/// The endpoint.
pub struct Endpoint {
    config: Config,
    provider: Box<dyn Provider>,
    arena: Arena,
    link: Arc<dyn Link>,
    neighbours: Neighbours,
    agent: Agent,
    gsi: Gsi,
    own_keys: Keys,
    connections: BTreeMap<ConnId, Connection>,
    by_cm: BTreeMap<CmId, ConnId>,
    next_conn: u32,
    next_mr: u32,
    random: RandomState,
    frame: Box<[u8]>,
    now: Instant,
    events: VecDeque<Event>,
}

impl Endpoint {
    /// An endpoint without connections. The provider's memory is the arena's.
    ///
    /// # Errors
    ///
    /// When the provider or the arena has no room for queue pair 1.
    pub fn new(
        config: Config,
        mut provider: Box<dyn Provider>,
        mut arena: Arena,
        link: Arc<dyn Link>,
    ) -> io::Result<Self> {
        let own_keys = basics(&mut *provider, &config).map_err(io::Error::other)?;
        let gsi = Gsi::new(&mut *provider, &mut arena, own_keys.lkey).map_err(io::Error::other)?;
        Ok(Self {
            neighbours: Neighbours::new(config.mac, config.ip),
            agent: Agent::new(config.cm),
            config,
            provider,
            arena,
            link,
            gsi,
            own_keys,
            connections: BTreeMap::new(),
            by_cm: BTreeMap::new(),
            next_conn: 1,
            next_mr: 1,
            random: RandomState::new(),
            frame: vec![0; MAX_FRAME].into(),
            now: Instant::ZERO,
            events: VecDeque::new(),
        })
    }

    /// Tells the time, which the calls that follow use.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// The next thing that has happened.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The memory for buffers.
    pub fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// What the provider has counted.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.provider.counters()
    }

    /// Takes connections to a port from now on.
    pub fn listen(&mut self, port: u16) {
        self.agent.listen(tcp_service(port));
    }

    /// Refuses connections to a port from now on.
    pub fn stop_listening(&mut self, port: u16) {
        self.agent.stop_listening(tcp_service(port));
    }

    /// Begins to connect; receives may be posted at once.
    ///
    /// # Errors
    ///
    /// When the provider has no room for another queue pair.
    pub fn connect(
        &mut self,
        to: IpAddr,
        port: u16,
        queues: Queues,
        private: &[u8],
    ) -> Result<ConnId, Error> {
        let conn = self.new_conn();
        let qp = self.create_qp(conn, queues)?;
        let state = State::Resolving { port, private: private.to_vec() };
        self.connections.insert(conn, Connection { state, peer: to, qp: Some(qp) });
        Ok(conn)
    }

    /// Accepts a connection; receives may be posted right after.
    ///
    /// # Errors
    ///
    /// When there is none to accept, or the provider cannot make its queue pair; it is then refused.
    pub fn accept(&mut self, conn: ConnId, queues: Queues, private: &[u8]) -> Result<(), Error> {
        let accepted = self.try_accept(conn, queues, private);
        if accepted.is_err() {
            self.close(conn, &[]);
        }
        accepted
    }

    fn try_accept(&mut self, conn: ConnId, queues: Queues, private: &[u8]) -> Result<(), Error> {
        let connection = self.connections.get(&conn).ok_or(Error::NotFound)?;
        let State::Offered(cm, request) = &connection.state else { return Err(Error::Transition) };
        let (cm, request, peer) = (*cm, request.clone(), connection.peer);
        let qp = self.create_qp(conn, queues)?;
        let remote = Remote::of_request(&request);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.qp = Some(qp);
            connection.state = State::Accepted(cm);
        }
        self.bring_up(conn, peer, &remote)?;
        let end = self.local_end(qp, &remote);
        self.agent.accept(self.now, cm, end, private);
        Ok(())
    }

    /// Refuses or ends a connection and forgets it: its work requests are gone, and no byte of their memory is touched any
    /// more. `private` is for a refusal.
    pub fn close(&mut self, conn: ConnId, private: &[u8]) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        match connection.state {
            State::Asked(cm) | State::Offered(cm, _) | State::Accepted(cm) | State::Up(cm) => {
                self.by_cm.remove(&cm);
                self.agent.end(self.now, cm, private);
            }
            State::Resolving { .. } | State::Over => {}
        }
        if connection.qp.is_some()
            && let Err(error) = self.provider.destroy_qp(QpId(conn.0))
        {
            tracing::error!(%error, "A queue pair cannot be destroyed");
        }
    }

    /// Registers a buffer for peers.
    ///
    /// # Errors
    ///
    /// When the provider has no room for another region.
    pub fn register(&mut self, buffer: Buffer, access: Access) -> Result<Registered, Error> {
        let pages: Vec<u64> = (buffer.at..buffer.at + u64::from(buffer.len)).step_by(PAGE as usize).collect();
        let kind = MrKind::Pages(
            PageList::new(PAGE.trailing_zeros() as u8, &pages).map_err(|_| Error::Invalid("buffer"))?,
        );
        let init = MrInit { pd: PD, iova: buffer.at, length: buffer.len.into(), access, kind };
        loop {
            let mr = MrId(self.next_mr);
            self.next_mr = self.next_mr.wrapping_add(1).max(1) % self.provider.limits().max_mr.max(2);
            self.next_mr = self.next_mr.max(1);
            match self.provider.register_mr(mr, init.clone()) {
                Ok(keys) => return Ok(Registered { mr, key: keys.rkey, addr: buffer.at }),
                Err(Error::Exists) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a registration: on return no peer reaches the memory.
    pub fn revoke(&mut self, registered: Registered) {
        if let Err(error) = self.provider.deregister_mr(registered.mr) {
            tracing::error!(%error, "A region cannot be deregistered");
        }
    }

    /// A part of a buffer, for work requests.
    pub fn sge(&self, buffer: Buffer, offset: u32, length: u32) -> Sge {
        Sge { addr: buffer.at + u64::from(offset), length, lkey: self.own_keys.lkey }
    }

    /// See [`Provider::post_send`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn post_send(&mut self, conn: ConnId, wr: SendWr) -> Result<(), Error> {
        self.provider.post_send(QpId(conn.0), wr)
    }

    /// See [`Provider::post_recv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn post_recv(&mut self, conn: ConnId, wr: RecvWr) -> Result<(), Error> {
        self.provider.post_recv(QpId(conn.0), wr)
    }

    /// Does a bounded amount of work. Returns whether there may be more.
    pub fn work(&mut self) -> bool {
        let mut more = self.receive();
        self.neighbours.tick(self.now);
        self.agent.tick(self.now);
        self.resolve();
        self.manage();
        more |= self.provider.advance(self.now);
        while let Some(event) = self.provider.poll_event() {
            self.provider_event(event);
        }
        more |= self.manage();
        while let Some(frame) = self.neighbours.poll() {
            // A link without room loses it, and it is sent again.
            let _ = self.link.send(&[io::IoSlice::new(&frame)]);
        }
        more
    }

    /// About to wait; see [`Provider::rest`].
    pub fn rest(&mut self) -> bool {
        self.provider.rest()
    }

    /// When [`Endpoint::work`] has something to do if nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        let all = [self.provider.next_deadline(), self.agent.deadline(), self.neighbours.deadline()];
        all.into_iter().flatten().min()
    }

    fn new_conn(&mut self) -> ConnId {
        loop {
            let conn = ConnId(self.next_conn);
            self.next_conn = (self.next_conn + 1) % self.provider.limits().max_qp.max(2);
            self.next_conn = self.next_conn.max(1);
            if !self.connections.contains_key(&conn) {
                return conn;
            }
        }
    }

    fn create_qp(&mut self, conn: ConnId, queues: Queues) -> Result<(Qpn, u32), Error> {
        let cap = QpCap {
            max_send_wr: queues.sends,
            max_recv_wr: queues.receives,
            max_send_sge: 2,
            max_recv_sge: 1,
        };
        let init = qp_init(QpType::Rc, cap);
        let qp = QpId(conn.0);
        let qpn = self.provider.create_qp(qp, init)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let attr = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
        if let Err(error) = self.provider.modify_qp(self.now, qp, &attr, QpAttrMask::RC_INIT) {
            let _ = self.provider.destroy_qp(qp);
            return Err(error);
        }
        let psn = self.random.hash_one((conn.0, self.now.as_nanos())) as u32 & 0xff_ffff;
        Ok((qpn, psn))
    }

    /// What this side brings into a connection.
    fn local_end(&self, (qpn, psn): (Qpn, u32), remote: &Remote) -> LocalEnd {
        let limits = self.provider.limits();
        LocalEnd {
            qpn,
            psn,
            responder_resources: limits.max_dest_rd_atomic.min(remote.initiator_depth),
            initiator_depth: limits.max_rd_atomic.min(remote.responder_resources),
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ack_timeout: ACK_TIMEOUT,
            mtu: limits.active_mtu,
        }
    }

    /// Makes a queue pair ready to receive and to send.
    fn bring_up(&mut self, conn: ConnId, peer: IpAddr, remote: &Remote) -> Result<(), Error> {
        let Lookup::Known(dmac) = self.neighbours.look_up(self.now, peer) else {
            return Err(Error::Invalid("neighbour"));
        };
        let psn = self.connections.get(&conn).and_then(|connection| connection.qp).map_or(0, |(_, psn)| psn);
        let limits = self.provider.limits();
        let av = AddressVector { dgid: gid(peer), dmac, hop_limit: HOP_LIMIT, ..AddressVector::default() };
        let attr = QpAttr {
            av,
            path_mtu: remote.mtu.min(limits.active_mtu),
            dest_qpn: remote.qpn,
            rq_psn: psn,
            sq_psn: remote.psn,
            max_dest_rd_atomic: limits.max_dest_rd_atomic,
            max_rd_atomic: limits.max_rd_atomic.min(remote.responder_resources),
            min_rnr_timer: RNR_TIMER,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            ..QpAttr::default()
        };
        for (state, mask) in [(QpState::Rtr, QpAttrMask::RC_RTR), (QpState::Rts, QpAttrMask::RC_RTS)] {
            self.provider.modify_qp(self.now, QpId(conn.0), &QpAttr { state, ..attr }, mask)?;
        }
        Ok(())
    }

    /// Takes frames. Returns whether there may be more.
    fn receive(&mut self) -> bool {
        for _ in 0..FRAMES {
            let len = match self.link.recv(&mut self.frame) {
                Ok(Some(len)) => len,
                Ok(None) => return false,
                Err(error) => {
                    device_model::guest_warn!(%error, "Failed to receive from a link");
                    return false;
                }
            };
            let Some(frame) = self.frame.get(..len) else { continue };
            if self.provider.claims(frame) {
                if let Some((address, mac)) = source_of(frame) {
                    self.neighbours.hint(self.now, address, mac);
                }
                self.provider.receive(self.now, frame);
            } else {
                self.neighbours.receive(self.now, frame);
            }
        }
        true
    }

    /// Asks for connections whose neighbours are known now.
    fn resolve(&mut self) {
        let waiting = self.connections.iter().filter(|(_, it)| matches!(it.state, State::Resolving { .. }));
        let waiting: Vec<(ConnId, IpAddr)> = waiting.map(|(conn, it)| (*conn, it.peer)).collect();
        for (conn, peer) in waiting {
            match self.neighbours.look_up(self.now, peer) {
                Lookup::Asked => {}
                Lookup::Absent => self.fail(conn, Failure::NoNeighbour),
                Lookup::Known(_) => self.ask(conn),
            }
        }
    }

    fn ask(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let (State::Resolving { port, private }, Some(qp)) = (&connection.state, connection.qp) else {
            return;
        };
        let header = IpHeader { port: conn.0 as u16, src: self.config.ip, dst: connection.peer };
        let peer = Peer { own: gid(self.config.ip), gid: gid(connection.peer) };
        let end = self.local_end(qp, &Remote::unknown());
        let (service, private) = (tcp_service(*port), header.emit(private));
        match self.agent.connect(self.now, peer, service, end, private) {
            Some(cm) => {
                self.by_cm.insert(cm, conn);
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.state = State::Asked(cm);
                }
            }
            None => self.fail(conn, Failure::Provider(Error::Exhausted)),
        }
    }

    fn fail(&mut self, conn: ConnId, failure: Failure) {
        self.close(conn, &[]);
        self.events.push_back(Event::Failed(conn, failure));
    }

    /// Does what the connection manager wants. Returns whether there was anything.
    fn manage(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.agent.poll() {
            any = true;
            match output {
                rdma_cm::Output::Send(peer, mad) => {
                    if let Lookup::Known(mac) = self.neighbours.look_up(self.now, address(peer.gid)) {
                        self.gsi.send(&mut *self.provider, &self.arena, peer, mac, &mad);
                    }
                }
                rdma_cm::Output::Event(cm, peer, event) => self.cm_event(cm, address(peer.gid), event),
            }
        }
        any
    }

    fn cm_event(&mut self, cm: CmId, peer: IpAddr, event: rdma_cm::Event) {
        if let rdma_cm::Event::Requested(request) = event {
            return self.requested(cm, peer, request);
        }
        let Some(conn) = self.by_cm.get(&cm).copied() else { return };
        match event {
            rdma_cm::Event::Requested(_) => {}
            rdma_cm::Event::Replied(reply) => match self.bring_up(conn, peer, &Remote::of_reply(&reply)) {
                Ok(()) => {
                    self.agent.ready(self.now, cm);
                    self.up(conn, cm, reply.private.to_vec());
                }
                Err(error) => self.fail(conn, error.into()),
            },
            rdma_cm::Event::Established => self.up(conn, cm, Vec::new()),
            rdma_cm::Event::Refused(reject) if reject.reason == Reason::INVALID_SERVICE => {
                self.fail(conn, Failure::NoService);
            }
            rdma_cm::Event::Refused(reject) => {
                self.fail(conn, Failure::Refused(reject.reason.0, reject.private.to_vec()));
            }
            rdma_cm::Event::Unreachable => self.fail(conn, Failure::Silent),
            rdma_cm::Event::Closed => self.over(conn),
        }
    }

    /// Somebody wants to connect.
    fn requested(&mut self, cm: CmId, peer: IpAddr, request: Box<Request>) {
        let header = IpHeader::parse(&request.private);
        let Some(((_, private), port)) = header.zip(tcp_port(request.service_id)) else {
            return self.agent.end(self.now, cm, &[]);
        };
        let private = private.to_vec();
        let conn = self.new_conn();
        self.by_cm.insert(cm, conn);
        self.connections.insert(conn, Connection { state: State::Offered(cm, request), peer, qp: None });
        self.events.push_back(Event::Request { conn, from: peer, port, private });
    }

    fn up(&mut self, conn: ConnId, cm: CmId, private: Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && matches!(connection.state, State::Asked(_) | State::Accepted(_))
        {
            connection.state = State::Up(cm);
            self.events.push_back(Event::Connected(conn, private));
        }
    }

    /// The other side has ended a connection, or it has failed.
    fn over(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        match std::mem::replace(&mut connection.state, State::Over) {
            State::Over => return,
            State::Asked(cm) | State::Offered(cm, _) | State::Accepted(cm) | State::Up(cm) => {
                self.by_cm.remove(&cm);
                self.agent.end(self.now, cm, &[]);
            }
            State::Resolving { .. } => {}
        }
        self.events.push_back(Event::Closed(conn));
    }

    fn provider_event(&mut self, event: ProviderEvent) {
        match event {
            ProviderEvent::Completion(completion) if completion.qp == gsi::QP => {
                let mad = self.gsi.completed(&mut *self.provider, &self.arena, &completion);
                if let Some((peer, mad)) = mad.filter(|(peer, _)| peer.own == gid(self.config.ip)) {
                    self.agent.receive(self.now, peer, &mad);
                }
            }
            ProviderEvent::Completion(completion) => {
                let conn = ConnId(completion.qp.0);
                // What has come says that the other side is ready.
                if let Some(State::Accepted(cm)) = self.connections.get(&conn).map(|it| &it.state) {
                    let cm = *cm;
                    self.agent.data(self.now, cm);
                    self.up(conn, cm, Vec::new());
                }
                self.events.push_back(Event::Done(conn, completion));
            }
            ProviderEvent::SendRetired(qp) if qp != gsi::QP => {
                self.events.push_back(Event::SendRetired(ConnId(qp.0)));
            }
            ProviderEvent::Async(
                AsyncEvent::QpFatal(qp) | AsyncEvent::QpReqErr(qp) | AsyncEvent::QpAccessErr(qp),
            ) => self.over(ConnId(qp.0)),
            ProviderEvent::Async(AsyncEvent::DeviceFatal) => {
                let all: Vec<ConnId> = self.connections.keys().copied().collect();
                all.into_iter().for_each(|conn| self.over(conn));
            }
            _ => {}
        }
    }
}

/// What the other side brings into a connection.
#[derive(Clone, Copy, Debug)]
struct Remote {
    qpn: Qpn,
    /// The PSN that it expects first.
    psn: u32,
    mtu: Mtu,
    responder_resources: u8,
    initiator_depth: u8,
}

impl Remote {
    const fn unknown() -> Self {
        Self { qpn: Qpn(0), psn: 0, mtu: Mtu::B4096, responder_resources: u8::MAX, initiator_depth: u8::MAX }
    }

    const fn of_request(request: &Request) -> Self {
        Self {
            qpn: request.qpn,
            psn: request.psn,
            mtu: request.mtu,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
        }
    }

    /// The path MTU is what was asked for.
    const fn of_reply(reply: &Reply) -> Self {
        Self {
            qpn: reply.qpn,
            psn: reply.psn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            ..Self::unknown()
        }
    }
}

/// What every endpoint has: a protection domain, a completion queue, its address and its own memory.
fn basics(provider: &mut dyn Provider, config: &Config) -> Result<Keys, Error> {
    let depth = provider.limits().max_cqe;
    provider.create_pd(PD, Owner::Kernel)?;
    provider.create_cq(CQ, CqInit { owner: Owner::Kernel, depth })?;
    provider.set_gid(GidEntry { index: 0, gid: gid(config.ip) })?;
    let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::LOCAL_WRITE, kind: MrKind::Dma };
    provider.register_mr(OWN_MEMORY, init)
}

fn qp_init(qp_type: QpType, cap: QpCap) -> QpInit {
    QpInit {
        qp_type,
        owner: Owner::Kernel,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        srq: None,
        cap,
        access: Access::empty(),
        qpn: None,
    }
}

fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

fn address(gid: Gid) -> IpAddr {
    gid.ipv4().map_or_else(|| IpAddr::V6(gid.ipv6()), IpAddr::V4)
}
