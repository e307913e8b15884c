//! One connection.

use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use super::codec::{Decoder, Received, encode};
use crate::wire::{FrameType, HEADER};
use crate::{Framing, Message};

/// Bytes read ahead, so that small messages come many at a time.
const READ_AHEAD: usize = 32 << 10;
/// Pieces sent at a time.
const PIECES: usize = 64;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Open,
    /// What is queued is sent, until then, and nothing received any more.
    Closing(Duration),
}

/// A connection and what is queued for it.
#[derive(Debug)]
pub(super) struct Stream {
    socket: BufReader<TcpStream>,
    pub state: State,
    decoder: Decoder,
    framing: Option<Framing>,
    kind: FrameType,
    queue: VecDeque<Bytes>,
    queued: usize,
}

impl Stream {
    /// Begins to connect.
    pub fn connect(to: SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        Self::new(socket.into(), State::Connecting, FrameType::Command)
    }

    /// Takes a connection that came in.
    pub fn accepted(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::new(socket, State::Open, FrameType::Completion)
    }

    fn new(socket: TcpStream, state: State, kind: FrameType) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self {
            socket: BufReader::with_capacity(READ_AHEAD, socket),
            state,
            decoder: Decoder::default(),
            framing: None,
            kind,
            queue: VecDeque::new(),
            queued: 0,
        })
    }

    /// How an attempt to connect has ended.
    pub fn connected(&mut self) -> io::Result<()> {
        match sockopt::socket_error(self.socket.get_ref())? {
            Ok(()) => {
                self.state = State::Open;
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// From now on there are frames.
    pub fn frame(&mut self, framing: Framing) {
        self.framing = Some(framing);
        self.decoder.expect_frames(framing);
    }

    /// Bytes that wait for room in the kernel.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Whether bytes were read ahead, for which the kernel will not wake anyone.
    pub fn has_read_ahead(&self) -> bool {
        !self.socket.buffer().is_empty()
    }

    /// The next message; see [`Decoder::read`].
    pub fn receive(&mut self, body_bytes: impl FnOnce(&[u8; HEADER]) -> Option<u64>) -> io::Result<Received> {
        self.decoder.read(&mut self.socket, body_bytes)
    }

    /// Queues a message; [`Stream::flush`] sends it.
    pub fn send(&mut self, message: Message) {
        let pieces = encode(message, self.framing, self.kind);
        self.queued += pieces.iter().map(Bytes::len).sum::<usize>();
        self.queue.extend(pieces);
    }

    /// Sends what is queued, as far as the kernel takes it.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let slices: Vec<_> = self.queue.iter().take(PIECES).map(|piece| IoSlice::new(piece)).collect();
            match self.socket.get_ref().write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sent(&mut self, mut count: usize) {
        self.queued -= count;
        while count > 0
            && let Some(piece) = self.queue.front_mut()
        {
            let part = count.min(piece.len());
            piece.advance(part);
            count -= part;
            if piece.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}
