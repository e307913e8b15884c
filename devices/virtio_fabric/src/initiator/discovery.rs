//! Asking a target what it exports.

use std::collections::VecDeque;
use std::time::Duration;

use super::Output;
use crate::wire::{
    CONNECT_BODY, CONTROL_QUEUE_SIZE, Command, Completion, ConnectBody, ConnectFlags, Discovered, Extension,
    Features, HEADER, NEW_INSTANCE, Name, Opcode, Reply, Request, Status, VERSION,
};
use crate::{ConnId, Message};

/// The one connection there is.
const CONN: ConnId = ConnId(0);

/// Asks a target for its devices; like [`super::Initiator`] without sockets and clock.
#[derive(Debug)]
pub struct Discovery {
    initiator: Name,
    until: Duration,
    /// The command in flight.
    opcode: Opcode,
    found: Vec<Discovered>,
    outcome: Option<Result<(), Status>>,
    outputs: VecDeque<Output>,
}

impl Discovery {
    /// Begins; the answer is there by `until`.
    pub fn new(initiator: Name, until: Duration) -> Self {
        Discovery {
            initiator,
            until,
            opcode: Opcode::Connect,
            found: Vec::new(),
            outcome: None,
            outputs: VecDeque::from([Output::Open(CONN, None)]),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What the target exports, or why it does not say; `None` while that is not known.
    pub fn outcome(&self) -> Option<Result<&[Discovered], Status>> {
        self.outcome.map(|outcome| outcome.map(|()| &self.found[..]))
    }

    /// The connection is there.
    pub fn connected(&mut self, _: ConnId) {
        let extension = Extension {
            ver_min: VERSION,
            ver_max: VERSION,
            flags: ConnectFlags::DISCOVERY_ONLY,
            features: Features::BASE | Features::DISCOVERY,
            ..Extension::default()
        };
        let initiator = self.initiator.clone();
        let body = ConnectBody { initiator, extension: Some(extension), ..ConnectBody::default() }.emit();
        let size = CONTROL_QUEUE_SIZE;
        let request = Request::Connect { instance: NEW_INSTANCE, vq: 0, body: CONNECT_BODY as u32, size };
        self.send(request, &body);
    }

    /// The connection is gone.
    pub fn lost(&mut self, _: ConnId) {
        self.outcome.get_or_insert(Err(Status::NoTarget));
    }

    /// How many bytes follow a header.
    pub fn body_bytes(&self, header: &[u8; HEADER]) -> Option<u64> {
        let completion = Completion::parse(self.opcode, header).ok()?;
        Some(completion.stream_body()).filter(|bytes| *bytes <= super::link::MAX_CONTROL_BODY)
    }

    /// A whole message arrived.
    pub fn message(&mut self, _: ConnId, message: &Message) {
        if self.outcome.is_some() {
            return;
        }
        let outcome = match Completion::parse(self.opcode, &message.header) {
            Ok(Completion { status: Status::Success, reply, .. }) => self.step(reply, &message.body),
            Ok(Completion { status, .. }) => Some(Err(status)),
            Err(_) => Some(Err(Status::Protocol)),
        };
        if let Some(outcome) = outcome {
            self.finish(outcome);
        }
    }

    /// When [`Discovery::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.outcome.is_none().then_some(self.until)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        if now >= self.until && self.outcome.is_none() {
            self.finish(Err(Status::Busy));
        }
    }

    fn finish(&mut self, outcome: Result<(), Status>) {
        self.outcome = Some(outcome);
        self.outputs.push_back(Output::Close(CONN));
    }

    /// What follows a completion; `Some` at the end.
    fn step(&mut self, reply: Reply, body: &[u8]) -> Option<Result<(), Status>> {
        match reply {
            Reply::Connect { version: VERSION, .. } => self.ask(),
            // A target of the base profile has nothing to tell.
            Reply::Connect { .. } => return Some(Err(Status::NoCommand)),
            Reply::Control { val0, .. } => {
                let Ok(page) = Discovered::parse_all(body) else { return Some(Err(Status::Protocol)) };
                let last = page.is_empty();
                self.found.extend(page);
                // However many there are said to be, a page must bring some, and ids of commands end.
                if last || self.found.len() >= val0 as usize || self.found.len() > usize::from(u16::MAX) {
                    return Some(Ok(()));
                }
                self.ask();
            }
            _ => return Some(Err(Status::Protocol)),
        }
        None
    }

    fn ask(&mut self) {
        self.opcode = Opcode::Discover;
        let arg0 = self.found.len() as u32;
        self.send(Request::Control { opcode: Opcode::Discover, body: 0, arg0, arg1: 0 }, &[]);
    }

    fn send(&mut self, request: Request, body: &[u8]) {
        let header = Command { id: 0, request }.emit();
        self.outputs.push_back(Output::Send(CONN, Message { header, body: body.to_vec().into() }));
    }
}
