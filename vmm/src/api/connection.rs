//! One client.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use event_manager::EventSet;
use vmm_api::{ApiError, ErrorKind, MAX_REQUEST, Reply, parse_request};

use super::Service;

/// Bytes taken from a client in a turn.
const CHUNK: usize = 16 << 10;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The connection ends.
    Over,
    /// It goes on.
    Idle,
    /// It goes on, and a request was carried out.
    Served,
}

/// A connection. It holds at most one request that is too long, and one reply.
pub(super) struct Connection {
    stream: UnixStream,
    /// Requests that were not served yet.
    input: Vec<u8>,
    /// What the client has not taken yet.
    output: Vec<u8>,
    /// Nothing more is read from the client.
    ended: bool,
}

impl Connection {
    /// A connection over a non-blocking stream.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, input: Vec::new(), output: Vec::new(), ended: false }
    }

    /// What to wait for until the next turn.
    pub(super) fn interest(&self) -> EventSet {
        // A request that waits is served as soon as the client has room for the reply; so others have their turn first.
        if self.output.is_empty() && self.next_line().is_none() && !self.ended {
            EventSet::IN
        } else {
            EventSet::OUT
        }
    }

    /// Does what can be done without waiting: sends, or reads and serves one request.
    pub(super) fn turn(&mut self, service: &dyn Service) -> Turn {
        if self.flush().is_err() {
            return Turn::Over;
        }
        if !self.output.is_empty() {
            return Turn::Idle;
        }
        if self.next_line().is_none() && !self.ended && self.read().is_err() {
            return Turn::Over;
        }
        let served = self.serve(service);
        if self.flush().is_err() || self.is_over() {
            return Turn::Over;
        }
        if served { Turn::Served } else { Turn::Idle }
    }

    fn is_over(&self) -> bool {
        self.ended && self.output.is_empty() && self.next_line().is_none()
    }

    fn next_line(&self) -> Option<usize> {
        self.input.iter().position(|byte| *byte == b'\n')
    }

    fn serve(&mut self, service: &dyn Service) -> bool {
        let reply = match self.next_line() {
            Some(end) if end <= MAX_REQUEST => {
                let (id, request) = parse_request(&self.input[..end]);
                self.input.drain(..=end);
                Reply::new(id, request.and_then(|request| service.serve(&request)))
            }
            None if self.input.len() <= MAX_REQUEST => return false,
            _ => {
                self.input = Vec::new();
                self.ended = true;
                let message = format!("A request may have {MAX_REQUEST} bytes; this connection ends");
                Reply::new(0, Err(ApiError::new(ErrorKind::LineTooLong, message)))
            }
        };
        self.output = reply.encode().into_bytes();
        true
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(length) => self.input.extend_from_slice(&chunk[..length]),
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.output.len() {
            match self.stream.write(&self.output[sent..]) {
                Ok(length) => sent += length,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..sent);
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted)
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
