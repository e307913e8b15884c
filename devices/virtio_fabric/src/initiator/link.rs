//! Connections: opening, losing and opening again.

use std::time::Duration;

use super::control::{Current, Op};
use super::queue::Link;
use super::{Initiator, Output, Phase};
use crate::wire::{Command, Completion, Event, Features, HEADER, NEW_INSTANCE, Opcode, Request, Status};
use crate::{ConnId, Message, Purpose};

/// Most bytes of a body on a control queue.
pub(super) const MAX_CONTROL_BODY: u64 = 4096;
/// Longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

impl Initiator {
    /// A connection that was to be opened is there.
    pub fn connected(&mut self, conn: ConnId, now: Duration) {
        if self.control == Some(conn) {
            self.connect_control(now);
        } else if let Some(vq) = self.queue_of(conn) {
            self.connect_queue(vq, now);
        }
    }

    /// A connection is gone, or could not be opened.
    pub fn lost(&mut self, conn: ConnId, now: Duration) {
        if self.control == Some(conn) {
            self.control = None;
            self.lose_all(now);
        } else if let Some(vq) = self.queue_of(conn) {
            self.queues[usize::from(vq)].link = Link::Down(now);
            self.lose_queue(vq, now);
        }
    }

    /// A whole message arrived.
    pub fn message(&mut self, conn: ConnId, message: Message, now: Duration) {
        let result = if self.control == Some(conn) {
            self.heard = now;
            self.control_message(&message, now).map_err(|()| None)
        } else if let Some(vq) = self.queue_of(conn) {
            self.queue_message(vq, &message, now).map_err(|()| Some(vq))
        } else {
            Ok(())
        };
        if let Err(vq) = result {
            self.give_up(vq, now);
        }
    }

    /// A message arrived that is not what was sent.
    pub fn damaged(&mut self, conn: ConnId, now: Duration) {
        let vq = self.queue_of(conn);
        if vq.is_some() || self.control == Some(conn) {
            self.give_up(vq, now);
        }
    }

    /// Ends the connection of a virtqueue, or the control connection and with it all.
    fn give_up(&mut self, vq: Option<u16>, now: Duration) {
        match vq {
            Some(vq) => self.lose_queue(vq, now),
            None => self.lose_all(now),
        }
    }

    /// How many bytes follow a header on a stream without frames. `None`: more than any message has that belongs here,
    /// so the connection is to be ended.
    pub fn body_bytes(&self, conn: ConnId, header: &[u8; HEADER]) -> Option<u64> {
        let (opcode, most) = if self.control == Some(conn) {
            if let Ok(event) = Event::parse(header) {
                return Some(event.stream_body()).filter(|bytes| *bytes <= MAX_CONTROL_BODY);
            }
            (self.current.as_ref()?.op.request(0).opcode(), MAX_CONTROL_BODY)
        } else {
            let queue = &self.queues[usize::from(self.queue_of(conn)?)];
            let most = queue.longest_answer();
            match queue.link {
                Link::Up(_) if self.granted?.reply.is_some() => (Opcode::Vqx, most),
                Link::Up(_) => (Opcode::Vq, most),
                _ => (Opcode::Connect, MAX_CONTROL_BODY),
            }
        };
        let completion = Completion::parse(opcode, header).ok()?;
        Some(completion.stream_body()).filter(|bytes| *bytes <= most)
    }

    /// What a connection is for.
    pub fn purpose(&self, conn: ConnId) -> Purpose {
        match self.queue_of(conn) {
            Some(vq) => Purpose::Queue {
                instance: self.granted.map_or(NEW_INSTANCE, |granted| granted.instance),
                vq,
                size: self.config.queue_size,
            },
            None => Purpose::Control,
        }
    }

    fn queue_of(&self, conn: ConnId) -> Option<u16> {
        self.queues.iter().position(|queue| queue.link.conn() == Some(conn)).map(|vq| vq as u16)
    }

    fn open(&mut self) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        self.outputs.push_back(Output::Open(conn, self.address.clone()));
        conn
    }

    /// Opens the control connection. Every attempt has its own epoch: whether the target saw the last one is not known.
    pub(super) fn open_control(&mut self, now: Duration) {
        self.epoch += 1;
        self.phase = Phase::Setup;
        self.heard = now;
        self.control = Some(self.open());
        self.current = Some(Current { id: 0, op: Op::Connect, since: now });
    }

    /// Opens the connection of a virtqueue.
    pub(super) fn open_queue(&mut self, vq: u16, now: Duration) {
        let conn = self.open();
        self.queues[usize::from(vq)].link = Link::Opening(conn, now);
    }

    /// The connection of a virtqueue is of no use any more. Several losses without a success between them are the
    /// session's.
    pub(super) fn lose_queue(&mut self, vq: u16, now: Duration) {
        let resumable = self.features().contains(Features::RESUME);
        let queue = &mut self.queues[usize::from(vq)];
        if let Some(conn) = queue.link.conn() {
            self.outputs.push_back(Output::Close(conn));
        }
        if self.phase == Phase::Resetting {
            // A target closes them before it completes the reset.
            queue.link = Link::Idle;
            return;
        }
        queue.failures += 1;
        queue.link = Link::Down(now + self.config.backoff);
        if !resumable || !self.established || queue.failures >= 3 {
            self.lose_all(now);
        }
    }

    /// All connections are of no use any more.
    pub(super) fn lose_all(&mut self, now: Duration) {
        self.outputs.extend(self.control.take().map(Output::Close));
        self.close_queues();
        match self.current.take().map(|current| current.op) {
            Some(op @ Op::WriteConfig { .. }) => self.ops.push_front(op),
            Some(Op::Disconnect) => return self.die(Status::Success),
            _ => {}
        }
        self.ops.retain(|op| matches!(op, Op::WriteConfig { .. }));
        self.config_lost();
        if matches!(self.phase, Phase::Dead) {
            return;
        }
        if self.established && !self.features().contains(Features::RESUME) {
            if !self.config.repeatable {
                return self.die(Status::Stale);
            }
            self.start_over();
        }
        self.draining = false;
        if self.lost_since.is_none() {
            self.lost_since = Some(now);
            self.outputs.push_back(Output::Lost);
        }
        self.resume_as = match self.phase {
            phase @ (Phase::Resetting | Phase::Closing) => phase,
            _ => self.resume_as,
        };
        self.phase = Phase::Waiting(Some(now + self.backoff));
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
    }

    pub(super) fn close_queues(&mut self) {
        for queue in &mut self.queues {
            self.outputs.extend(queue.link.conn().map(Output::Close));
            queue.link = Link::Idle;
            queue.failures = 0;
        }
    }

    /// Everything is done: disconnects.
    pub(super) fn close_when_idle(&mut self, now: Duration) {
        if self.phase != Phase::Closing || !self.is_idle() {
            return;
        }
        let goodbye = Command { id: u16::MAX, request: Request::Plain(Opcode::Disconnect) }.emit();
        let goodbye = Message::bare(goodbye);
        for queue in &mut self.queues {
            if let Link::Up(conn) = queue.link {
                self.outputs.push_back(Output::Send(conn, goodbye.clone()));
            }
        }
        self.close_queues();
        self.ops.push_back(Op::Disconnect);
        self.next_op(now);
    }

    /// Whether no buffer is in flight or waiting.
    fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty() && queue.in_flight() == 0)
    }

    /// The end.
    pub(super) fn die(&mut self, status: Status) {
        if self.phase == Phase::Dead {
            return;
        }
        self.phase = Phase::Dead;
        self.lost_since = None;
        self.outputs.extend(self.control.take().map(Output::Close));
        self.close_queues();
        let why = if status == Status::Success { Status::Aborted } else { status };
        self.fail_in_flight(why);
        self.fail_waiting(why);
        let current = self.current.take().map(|current| current.op);
        for op in current.into_iter().chain(std::mem::take(&mut self.ops)) {
            if let Op::WriteConfig { token, .. } = op {
                self.outputs.push_back(Output::ConfigWritten(token, Err(Status::State)));
            }
        }
        self.outputs.push_back(Output::Closed(status));
    }

    /// Completes what is in flight without success.
    pub(super) fn fail_in_flight(&mut self, status: Status) {
        for queue in &mut self.queues {
            let failed = queue.take_in_flight().map(|it| Output::Completed(it.token, Err(status)));
            self.outputs.extend(failed);
        }
    }

    /// Completes what waits without success.
    pub(super) fn fail_waiting(&mut self, status: Status) {
        for queue in &mut self.queues {
            let failed = queue.waiting.drain(..).map(|it| Output::Completed(it.token, Err(status)));
            self.outputs.extend(failed);
        }
    }
}
