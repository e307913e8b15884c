//! What carries the messages of an engine: TCP, or RDMA.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use host_port::HostPort;

use crate::rdma::Rdma;
use crate::tcp::Sockets;
use crate::wire::{HEADER, Redirect, Status};
use crate::{ConnId, Framing, Message, OperationCounts, Purpose};

/// How a target is reached.
pub enum Via {
    /// By TCP.
    Tcp,
    /// By RDMA, from this port.
    Rdma(Box<HostPort>),
}

/// Where a target listens.
pub enum Listen {
    /// There.
    Tcp(TcpListener),
    /// At a port of RDMA's.
    Rdma(Box<HostPort>, u16),
}

/// What an engine wants of its connections.
pub(crate) enum Action {
    Open(ConnId, Option<Redirect>),
    Send(ConnId, Message),
    Framed(ConnId, Framing),
    Close(ConnId),
}

/// An engine, as its connections see it.
pub(crate) trait Engine {
    /// Where to connect to.
    fn address(&mut self, to: Option<Redirect>) -> Option<SocketAddr>;
    /// A connection came in.
    fn accepted(&mut self, conn: ConnId, now: Duration);
    /// A connection that was to be opened is there.
    fn connected(&mut self, conn: ConnId, now: Duration);
    /// A connection is gone, or could not be opened.
    fn lost(&mut self, conn: ConnId, why: &io::Error, now: Duration);
    /// Bytes behind a header; `None` if it must not be there.
    fn body_bytes(&self, conn: ConnId, header: &[u8; HEADER]) -> Option<u64>;
    /// A message arrived; `intact` is whether its checksum is right.
    fn message(&mut self, conn: ConnId, message: Message, intact: bool, now: Duration);
    /// A message arrived whose command cannot be carried out, for this reason. Its body means nothing.
    fn refused(&mut self, conn: ConnId, message: Message, why: Status, now: Duration);
    /// What a connection is for.
    fn purpose(&self, conn: ConnId) -> Purpose;
    /// Whether it has room for more messages of a connection.
    fn has_room(&self, conn: ConnId) -> bool;
    /// The next thing to do.
    fn action(&mut self) -> Option<Action>;
    /// Time has passed.
    fn tick(&mut self, now: Duration);
    /// When [`Engine::tick`] has something to do.
    fn deadline(&self) -> Option<Duration>;
}

/// All connections of an engine.
pub(crate) enum Transport {
    Tcp(Sockets),
    Rdma(Box<Rdma>),
}

impl Transport {
    /// For an engine that connects.
    pub(crate) fn connecting(via: Via) -> io::Result<Self> {
        Ok(match via {
            Via::Tcp => Self::Tcp(Sockets::new()?),
            Via::Rdma(port) => Self::Rdma(Box::new(Rdma::connecting(*port)?)),
        })
    }

    /// For an engine that is connected to.
    pub(crate) fn listening(at: Listen) -> io::Result<Self> {
        Ok(match at {
            Listen::Tcp(listener) => {
                let mut sockets = Sockets::new()?;
                sockets.listen(listener)?;
                Self::Tcp(sockets)
            }
            Listen::Rdma(port, number) => Self::Rdma(Box::new(Rdma::listening(*port, number)?)),
        })
    }

    /// Accepts no more connections.
    pub(crate) fn stop_listening(&mut self) {
        match self {
            Self::Tcp(sockets) => sockets.stop_listening(),
            Self::Rdma(rdma) => rdma.stop_listening(),
        }
    }

    /// Time since the start, as the engine is told.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Tcp(sockets) => sockets.now(),
            Self::Rdma(rdma) => rdma.now(),
        }
    }

    /// Whether something is still to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Tcp(sockets) => sockets.has_unsent(),
            Self::Rdma(rdma) => rdma.has_unsent(),
        }
    }

    /// Watches something else too, whose readiness only wakes the owner.
    pub(crate) fn watch(&self, other: impl AsFd) -> io::Result<()> {
        match self {
            Self::Tcp(sockets) => sockets.watch(other),
            Self::Rdma(rdma) => rdma.watch(other),
        }
    }

    /// Does everything that can be done without waiting.
    pub(crate) fn run(&mut self, engine: &mut impl Engine) -> io::Result<()> {
        match self {
            Self::Tcp(sockets) => sockets.run(engine),
            Self::Rdma(rdma) => {
                rdma.run(engine);
                Ok(())
            }
        }
    }

    /// Does what the engine wants, and sends.
    pub(crate) fn settle(&mut self, engine: &mut impl Engine) {
        match self {
            Self::Tcp(sockets) => sockets.settle(engine),
            Self::Rdma(rdma) => rdma.settle(engine),
        }
    }

    /// What was done by RDMA; none over TCP.
    pub(crate) fn counts(&self) -> Option<OperationCounts> {
        match self {
            Self::Tcp(_) => None,
            Self::Rdma(rdma) => Some(rdma.counts()),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(sockets) => sockets.as_fd(),
            Self::Rdma(rdma) => rdma.as_fd(),
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp(_) => "Tcp",
            Self::Rdma(_) => "Rdma",
        })
    }
}
