//! Buffers: new ones, those that are sent again, and their completions.

use std::time::Duration;

use super::session::{Kept, Record, State};
use super::{Done, Job, Output, Target};
use crate::ConnId;
use crate::status::DRIVER_OK;
use crate::wire::{Command, Error, Features, Opcode, Reply, Request, Status, VqxLimits, VqxMessage};

/// A buffer, whichever profile it came by.
struct Buffer {
    id: u16,
    turn: u8,
    in_length: u32,
    out: Vec<u8>,
    /// What is wrong with it alone.
    refused: Option<Status>,
}

impl Target {
    /// What was agreed on for a virtqueue.
    pub(super) fn limits(&self) -> VqxLimits {
        VqxLimits {
            max_out_inline: self.config.max_xfer,
            max_xfer: self.config.max_xfer,
            max_in_descs: 0,
            max_out_descs: 0,
            data_offset: 0,
            out_split: self.config.device.out_split,
            max_tail: 256,
        }
    }

    /// A message on a virtqueue's connection.
    pub(super) fn buffer(
        &mut self,
        conn: ConnId,
        at: (u16, u16),
        command: Command,
        body: &[u8],
        now: Duration,
    ) {
        let features = self.sessions[&at.0].features;
        let extended = features.contains(Features::BASE);
        let buffer = match command.request {
            Request::Plain(Opcode::Disconnect) => {
                self.complete(conn, command.id, Status::Success, Reply::Nothing, &[]);
                return self.close(conn, now);
            }
            Request::Vq { out_length, in_length } if !extended => {
                let long = u64::from(out_length) + u64::from(in_length) > self.config.max_xfer.into();
                let refused = long.then_some(Status::OutBuffer);
                Buffer { id: command.id, turn: 0, in_length, out: body.to_vec(), refused }
            }
            Request::Vqx(vqx) if extended => {
                let (out, refused) = match VqxMessage::parse(&vqx, body, &self.limits(), true) {
                    Ok(message) => ([message.out_head, message.out_rest].concat(), None),
                    Err(Error::Limit(_, status)) => (Vec::new(), Some(status)),
                    Err(_) => return self.refuse(conn, Status::Protocol, now),
                };
                Buffer { id: command.id, turn: vqx.turn, in_length: vqx.in_length, out, refused }
            }
            _ => {
                self.complete(conn, command.id, Status::NoCommand, Reply::Nothing, &[]);
                return self.refuse(conn, Status::Protocol, now);
            }
        };
        if features.contains(Features::RESUME) {
            self.numbered(conn, at, buffer, now);
        } else {
            self.unnumbered(conn, at, buffer, now);
        }
    }

    /// A buffer of a session that ends with its connection.
    fn unnumbered(&mut self, conn: ConnId, at: (u16, u16), buffer: Buffer, now: Duration) {
        let queue = self.queue(at.0, at.1).expect("the connection's role names a queue of a session");
        let executing = |record: &Record| matches!(record.state, State::Executing(_));
        match queue.records.get(&buffer.id) {
            Some(record) if executing(record) => return self.refuse(conn, Status::Protocol, now),
            _ => {}
        }
        queue.records.retain(|_, record| executing(record));
        if queue.records.len() >= queue.size.into() {
            let reply = self.buffer_reply(at.0, &Done::failed(Status::CommandQuota));
            return self.complete(conn, buffer.id, Status::CommandQuota, reply, &[]);
        }
        self.start(at, buffer);
    }

    /// A buffer of a session that outlives its connections: new, or sent again.
    fn numbered(&mut self, conn: ConnId, at: (u16, u16), buffer: Buffer, now: Duration) {
        let queue = self.queue(at.0, at.1).expect("the connection's role names a queue of a session");
        if buffer.id >= queue.size {
            return self.refuse(conn, Status::CommandQuota, now);
        }
        let Some(record) = queue.records.get_mut(&buffer.id) else {
            return if buffer.turn == 0 {
                self.start(at, buffer)
            } else {
                self.refuse(conn, Status::Protocol, now)
            };
        };
        let done = matches!(record.state, State::Done(..));
        if buffer.turn == record.turn.wrapping_add(1) && done {
            return self.start(at, buffer);
        }
        if buffer.turn != record.turn || record.asked || buffer.in_length != record.in_length {
            return self.refuse(conn, Status::Protocol, now);
        }
        record.asked = true;
        match &mut record.state {
            State::Executing(_) => {}
            State::Done(_, Kept::Yes) => self.answer(at, buffer.id),
            State::Done(done, Kept::No) if done.repeatable => self.start(at, buffer),
            State::Done(done, Kept::No) => {
                *done = Done::failed(Status::Lost);
                self.answer(at, buffer.id);
            }
        }
    }

    /// Gives a buffer to the device, or refuses it.
    fn start(&mut self, at: (u16, u16), buffer: Buffer) {
        let job = Job(self.next_job);
        self.next_job += 1;
        let session = self.sessions.get_mut(&at.0).expect("the connection's role names a session");
        let extended = session.features.contains(Features::BASE);
        let not_now = match (session.reset.is_some(), session.status & DRIVER_OK != 0) {
            (true, _) if extended => Some(Status::Reset),
            (false, true) => None,
            _ if extended => Some(Status::State),
            _ => Some(Status::NoCommand),
        };
        let refused = not_now.or(buffer.refused);
        let state = match refused {
            Some(status) => State::Done(Done::failed(status), Kept::Yes),
            None => State::Executing(job),
        };
        let record = Record { turn: buffer.turn, in_length: buffer.in_length, asked: true, state };
        session.queues[usize::from(at.1)].records.insert(buffer.id, record);
        if refused.is_some() {
            return self.answer(at, buffer.id);
        }
        self.jobs.insert(job, (at.0, at.1, buffer.id));
        self.outputs.push_back(Output::Execute {
            job,
            instance: at.0,
            vq: at.1,
            out: buffer.out,
            in_length: buffer.in_length,
        });
    }

    /// A piece of device work ended. Jobs of destroyed instances are ignored.
    pub fn done(&mut self, job: Job, mut done: Done) {
        let Some((instance, vq, id)) = self.jobs.remove(&job) else { return };
        let limit = self.config.replay_limit;
        let max_tail = usize::from(self.limits().max_tail);
        let session = self.sessions.get_mut(&instance).expect("a job's session is there");
        let resetting = session.reset.is_some();
        let resumable = session.features.contains(Features::RESUME);
        let queue = &mut session.queues[usize::from(vq)];
        let record = queue.records.get_mut(&id).expect("a job's record is there");
        if done.data.len() + done.tail.len() > record.in_length as usize
            || done.tail.len() > max_tail
            || done.used > record.in_length
        {
            done = Done::failed(Status::Internal);
        }
        if resetting {
            done = Done::failed(Status::Reset);
        }
        if done.status != Status::Success {
            done = Done { repeatable: done.repeatable, ..Done::failed(done.status) };
        }
        let bytes = done.data.len() + done.tail.len();
        let kept = if resumable && bytes <= limit { Kept::Yes } else { Kept::No };
        let asked = record.asked;
        record.state = State::Done(done, kept);
        if asked {
            self.answer((instance, vq), id);
        }
        self.forget((instance, vq), id);
        if resetting {
            self.finish_reset(instance);
        }
        self.finish_detach(instance);
    }

    /// Drops data that are not to be kept, once they are sent.
    fn forget(&mut self, at: (u16, u16), id: u16) {
        if let Some(queue) = self.queue(at.0, at.1)
            && let Some(Record { state: State::Done(done, Kept::No), .. }) = queue.records.get_mut(&id)
        {
            done.data = Vec::new();
            done.tail = Vec::new();
        }
    }

    /// Sends the completion of a command that is done.
    fn answer(&mut self, at: (u16, u16), id: u16) {
        let queue = &self.sessions[&at.0].queues[usize::from(at.1)];
        let (Some(conn), Some(Record { state: State::Done(done, _), .. })) =
            (queue.conn, queue.records.get(&id))
        else {
            return;
        };
        let mut body = [&done.data[..], &done.tail].concat();
        if !self.sessions[&at.0].features.contains(Features::BASE) && !done.tail.is_empty() {
            // The base profile has no tail: the bytes between are zeros.
            let in_length = queue.records[&id].in_length as usize;
            body.truncate(done.data.len());
            body.resize(in_length - done.tail.len(), 0);
            body.extend_from_slice(&done.tail);
        }
        let (status, reply) =
            (done.status, self.buffer_reply(at.0, &Done { data: body.clone(), ..done.clone() }));
        self.complete(conn, id, status, reply, &body);
    }

    /// The reply in the format of the instance's profile; in the base profile `done.data` is all there is.
    fn buffer_reply(&self, instance: u16, done: &Done) -> Reply {
        if self.sessions[&instance].features.contains(Features::BASE) {
            let moved = (done.data.len() - done.tail.len()) as u32;
            Reply::Vqx { window: 0, tail: done.tail.len() as u16, used: done.used, moved }
        } else {
            Reply::Vq { used: done.used, moved: done.data.len() as u32 }
        }
    }
}
