//! A target and its connections.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use host_io::file_io::FileIo;

use crate::export::{Export, Work};
use crate::target::{Config, Job, Output, Target};
use crate::transport::{Action, Engine, Listen, Transport};
use crate::wire::{HEADER, Redirect, Status};
use crate::{ConnId, Message, OperationCounts, Purpose};

/// A target, its connections and what it exports.
///
/// Its descriptor is readable when [`Server::run`] has something to do.
#[derive(Debug)]
pub struct Server {
    transport: Transport,
    end: End,
    /// Till when initiators may finish.
    drain_until: Option<Duration>,
}

#[derive(Debug)]
struct End {
    engine: Target,
    exports: Vec<Box<dyn Export>>,
    io: FileIo,
    /// Which export a piece of work is for.
    working: BTreeMap<Job, usize>,
    /// What the driver of an instance has accepted.
    features: BTreeMap<u16, u64>,
}

impl Server {
    /// Serves `exports` to whoever connects. `config` is completed by the exports' devices.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new(config: Config, at: Listen, exports: Vec<Box<dyn Export>>, io: FileIo) -> io::Result<Self> {
        let devices = exports.iter().map(|export| export.device(config.max_xfer)).collect();
        let rdma = matches!(at, Listen::Rdma(..)).then(|| crate::rdma::limits(config.max_xfer));
        let engine = Target::new(Config { devices, rdma, ..config });
        let transport = Transport::listening(at)?;
        transport.watch(&io)?;
        let end = End { engine, exports, io, working: BTreeMap::new(), features: BTreeMap::new() };
        Ok(Server { transport, end, drain_until: None })
    }

    /// Does everything that can be done without waiting.
    ///
    /// # Errors
    ///
    /// When the host's event interface or io_uring fails.
    pub fn run(&mut self) -> io::Result<()> {
        self.transport.run(&mut self.end)?;
        while self.end.collect() {
            self.transport.settle(&mut self.end);
        }
        self.end.io.start()
    }

    /// Looks whether exports have changed, and tells their drivers.
    pub fn refresh(&mut self) {
        for (number, export) in self.end.exports.iter_mut().enumerate() {
            if let Some(config) = export.refresh() {
                self.end.engine.set_config(number, config);
            }
        }
        self.transport.settle(&mut self.end);
    }

    /// Asks all initiators to leave within `time`.
    pub fn drain(&mut self, time: Duration) {
        self.transport.stop_listening();
        self.drain_until = Some(self.transport.now() + time);
        self.end.engine.drain(time);
        self.transport.settle(&mut self.end);
    }

    /// What this side has done by RDMA; none over TCP.
    pub fn counts(&self) -> Option<OperationCounts> {
        self.transport.counts()
    }

    /// How much time initiators still have; zero once nobody has anything to do here. `None` unless it drains.
    pub fn drain_time(&self) -> Option<Duration> {
        let left = self.drain_until?.saturating_sub(self.transport.now());
        let idle = self.end.engine.is_drained() && !self.transport.has_unsent();
        Some(if idle { Duration::ZERO } else { left })
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

impl End {
    /// Takes results of the storage; whether there were any.
    fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(completion) = self.io.completed() {
            any = true;
            let job = Job(completion.cookie);
            let Some(export) = self.working.get(&job) else { continue };
            if let Some(done) = self.exports[*export].stored(job, completion.result, &mut self.io) {
                self.working.remove(&job);
                self.engine.done(job, done);
            }
        }
        any
    }
}

impl Engine for End {
    fn address(&mut self, _: Option<Redirect>) -> Option<SocketAddr> {
        None
    }

    fn accepted(&mut self, conn: ConnId, now: Duration) {
        let mut session_id = [0; 16];
        match getrandom::fill(&mut session_id) {
            Ok(()) => self.engine.accepted(conn, session_id, now),
            // Without random numbers there are no sessions that nobody else could take over.
            Err(error) => tracing::error!(%error, "The host has no random numbers: a connection is ignored"),
        }
    }

    fn connected(&mut self, _: ConnId, _: Duration) {}

    fn lost(&mut self, conn: ConnId, why: &io::Error, now: Duration) {
        tracing::debug!(conn = conn.0, %why, "A connection ended");
        self.engine.lost(conn, now);
    }

    fn body_bytes(&self, _: ConnId, header: &[u8; HEADER]) -> Option<u64> {
        self.engine.body_bytes(header)
    }

    fn message(&mut self, conn: ConnId, message: Message, intact: bool, now: Duration) {
        if intact {
            self.engine.message(conn, message, now);
        } else {
            self.engine.refused(conn, message, Status::Digest, now);
        }
    }

    fn refused(&mut self, conn: ConnId, message: Message, why: Status, now: Duration) {
        self.engine.refused(conn, message, why, now);
    }

    fn purpose(&self, _: ConnId) -> Purpose {
        Purpose::Control
    }

    fn has_room(&self, conn: ConnId) -> bool {
        self.engine.has_room(conn)
    }

    fn action(&mut self) -> Option<Action> {
        loop {
            match self.engine.poll()? {
                Output::Send(conn, message) => return Some(Action::Send(conn, message)),
                Output::Framed(conn, framing) => return Some(Action::Framed(conn, framing)),
                Output::Close(conn) => return Some(Action::Close(conn)),
                Output::Execute { job, device, instance, out, in_length, .. } => {
                    let features = self.features.get(&instance).copied().unwrap_or(0);
                    let work = Work { job, out, in_length, features };
                    match self.exports[device].execute(work, &mut self.io) {
                        Some(done) => self.engine.done(job, done),
                        None => {
                            self.working.insert(job, device);
                        }
                    }
                }
                Output::Features(instance, features) => {
                    self.features.insert(instance, features);
                }
                Output::Destroyed(instance) => {
                    self.features.remove(&instance);
                }
                // What storage has begun it ends, and soon.
                Output::Cancel(_) | Output::ConfigWritten(_) | Output::Detached(_) => {}
            }
        }
    }

    fn tick(&mut self, now: Duration) {
        self.engine.tick(now);
    }

    fn deadline(&self) -> Option<Duration> {
        self.engine.deadline()
    }
}
