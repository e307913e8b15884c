//! An initiator and its connections.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::initiator::{Config, Discovery, Initiator, Output, SubmitError, Token};
use crate::transport::{Action, Engine, Transport, Via};
use crate::wire::{Discovered, HEADER, Name, Redirect, Status};
use crate::{ConnId, Message, OperationCounts, Purpose};

/// An initiator and its connections.
///
/// Its descriptor is readable when [`Client::run`] has something to do; what has happened comes out of
/// [`Client::event`].
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    end: End<Initiator>,
}

/// An engine of the initiator's side, and where its target is.
#[derive(Debug)]
struct End<E> {
    engine: E,
    /// Addresses of the target, of which one is tried after the other.
    addresses: Vec<SocketAddr>,
    current: usize,
    events: VecDeque<Output>,
    /// Why the last connection was lost.
    trouble: Option<String>,
}

impl<E> End<E> {
    fn new(engine: E, addresses: Vec<SocketAddr>) -> Self {
        End { engine, addresses, current: 0, events: VecDeque::new(), trouble: None }
    }

    fn address(&mut self, to: Option<Redirect>) -> Option<SocketAddr> {
        match to {
            // An address of a target's choice is an address and no name, so that nobody waits for a name server.
            Some(to) => to.address.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, to.port)),
            None => self.addresses.get(self.current % self.addresses.len().max(1)).copied(),
        }
    }

    fn lost(&mut self, why: &io::Error) {
        self.trouble = Some(why.to_string());
        self.current = self.current.wrapping_add(1);
    }

    /// Takes what concerns connections out of what an engine says.
    fn action(&mut self, mut poll: impl FnMut(&mut E) -> Option<Output>) -> Option<Action> {
        loop {
            match poll(&mut self.engine)? {
                Output::Open(conn, to) => return Some(Action::Open(conn, to)),
                Output::Send(conn, message) => return Some(Action::Send(conn, message)),
                Output::Framed(conn, framing) => return Some(Action::Framed(conn, framing)),
                Output::Close(conn) => return Some(Action::Close(conn)),
                event => self.events.push_back(event),
            }
        }
    }
}

impl Client {
    /// Begins to connect to a target at one of `addresses`.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left. That the target cannot be reached comes out of [`Client::event`].
    pub fn new(config: Config, via: Via, addresses: Vec<SocketAddr>) -> io::Result<Self> {
        let config = match via {
            Via::Tcp => config,
            Via::Rdma(_) => Config { receives: crate::rdma::COMPLETION, ..config },
        };
        let transport = Transport::connecting(via)?;
        let mut client = Client { transport, end: End::new(Initiator::new(config), addresses) };
        client.end.engine.start(client.transport.now());
        client.settle();
        Ok(client)
    }

    /// Does everything that can be done without waiting.
    ///
    /// # Errors
    ///
    /// When the host's event interface fails, which it does not.
    pub fn run(&mut self) -> io::Result<()> {
        self.transport.run(&mut self.end)
    }

    /// Sends what was asked for since the last call.
    pub fn settle(&mut self) {
        self.transport.settle(&mut self.end);
    }

    /// What has happened next.
    pub fn event(&mut self) -> Option<Output> {
        self.end.events.pop_front()
    }

    /// Waits until there is something to do, or as long as `limit`.
    ///
    /// # Errors
    ///
    /// Never for a good reason.
    pub fn wait(&self, limit: Duration) -> io::Result<()> {
        wait(&self.transport, limit)
    }

    /// See [`Initiator::submit`]. [`Client::settle`] sends it.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn submit(&mut self, vq: u16, out: Bytes, in_length: u32) -> Result<Token, SubmitError> {
        self.end.engine.submit(vq, out, in_length, self.transport.now())
    }

    /// See [`Initiator::reset`].
    pub fn reset(&mut self, driver_features: u64) {
        self.end.engine.reset(driver_features, self.transport.now());
        self.settle();
    }

    /// See [`Initiator::shutdown`].
    pub fn shutdown(&mut self) {
        self.end.engine.shutdown(self.transport.now());
        self.settle();
    }

    /// See [`Initiator::queue_sizes`].
    pub fn queue_sizes(&self) -> Vec<u16> {
        self.end.engine.queue_sizes()
    }

    /// See [`Initiator::max_xfer`].
    pub fn max_xfer(&self) -> u32 {
        self.end.engine.max_xfer()
    }

    /// What this side has done by RDMA; none over TCP.
    pub fn counts(&self) -> Option<OperationCounts> {
        self.transport.counts()
    }

    /// Why the last connection was lost, in the host's words.
    pub fn trouble(&self) -> Option<&str> {
        self.end.trouble.as_deref()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

fn wait(fd: impl AsFd, limit: Duration) -> io::Result<()> {
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Timespec::try_from(limit).ok().as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Asks the target at one of `addresses` what it exports, and waits for the answer.
///
/// # Errors
///
/// A text that says why there is none.
pub fn discover(
    initiator: Name,
    via: Via,
    addresses: Vec<SocketAddr>,
    limit: Duration,
) -> io::Result<Vec<Discovered>> {
    let mut transport = Transport::connecting(via)?;
    let until = transport.now() + limit;
    let mut end = End::new(Discovery::new(initiator, until), addresses);
    transport.settle(&mut end);
    loop {
        match end.engine.outcome() {
            Some(Ok(found)) => return Ok(found.to_vec()),
            Some(Err(Status::NoTarget)) => {
                let why = end.trouble.unwrap_or_else(|| "the connection was closed".to_owned());
                return Err(io::Error::other(why));
            }
            Some(Err(Status::Busy)) => return Err(io::ErrorKind::TimedOut.into()),
            Some(Err(Status::NoCommand)) => {
                return Err(io::Error::other("the target does not tell what it exports"));
            }
            Some(Err(status)) => return Err(io::Error::other(format!("the target answers {status:?}"))),
            None => {}
        }
        wait(&transport, until.saturating_sub(transport.now()))?;
        transport.run(&mut end)?;
    }
}

impl Engine for End<Initiator> {
    fn address(&mut self, to: Option<Redirect>) -> Option<SocketAddr> {
        self.address(to)
    }

    fn accepted(&mut self, _: ConnId, _: Duration) {}

    fn connected(&mut self, conn: ConnId, now: Duration) {
        self.engine.connected(conn, now);
    }

    fn lost(&mut self, conn: ConnId, why: &io::Error, now: Duration) {
        self.lost(why);
        self.engine.lost(conn, now);
    }

    fn body_bytes(&self, conn: ConnId, header: &[u8; HEADER]) -> Option<u64> {
        self.engine.body_bytes(conn, header)
    }

    fn message(&mut self, conn: ConnId, message: Message, intact: bool, now: Duration) {
        if intact {
            self.engine.message(conn, message, now);
        } else {
            self.engine.damaged(conn, now);
        }
    }

    fn refused(&mut self, conn: ConnId, _: Message, _: Status, now: Duration) {
        self.engine.damaged(conn, now);
    }

    fn purpose(&self, conn: ConnId) -> Purpose {
        self.engine.purpose(conn)
    }

    fn has_room(&self, _: ConnId) -> bool {
        true
    }

    fn action(&mut self) -> Option<Action> {
        self.action(Initiator::poll)
    }

    fn tick(&mut self, now: Duration) {
        self.engine.tick(now);
    }

    fn deadline(&self) -> Option<Duration> {
        self.engine.deadline()
    }
}

impl Engine for End<Discovery> {
    fn address(&mut self, to: Option<Redirect>) -> Option<SocketAddr> {
        self.address(to)
    }

    fn accepted(&mut self, _: ConnId, _: Duration) {}

    fn connected(&mut self, conn: ConnId, _: Duration) {
        self.engine.connected(conn);
    }

    fn lost(&mut self, conn: ConnId, why: &io::Error, _: Duration) {
        self.lost(why);
        self.engine.lost(conn);
    }

    fn body_bytes(&self, _: ConnId, header: &[u8; HEADER]) -> Option<u64> {
        self.engine.body_bytes(header)
    }

    fn message(&mut self, conn: ConnId, message: Message, _: bool, _: Duration) {
        self.engine.message(conn, &message);
    }

    fn refused(&mut self, conn: ConnId, _: Message, _: Status, _: Duration) {
        self.engine.lost(conn);
    }

    fn purpose(&self, _: ConnId) -> Purpose {
        Purpose::Control
    }

    fn has_room(&self, _: ConnId) -> bool {
        true
    }

    fn action(&mut self) -> Option<Action> {
        self.action(Discovery::poll)
    }

    fn tick(&mut self, now: Duration) {
        self.engine.tick(now);
    }

    fn deadline(&self) -> Option<Duration> {
        self.engine.deadline()
    }
}
