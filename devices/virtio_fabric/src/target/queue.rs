//! Buffers: new ones, those that are sent again, and their completions.

use std::time::Duration;

use bytes::Bytes;

use super::session::{Kept, Record, State};
use super::{Done, Job, Output, Target};
use crate::ConnId;
use crate::status::DRIVER_OK;
use crate::wire::{Command, Error, Features, Opcode, Reply, Request, Status, VqxLimits, VqxMessage};

/// Longest tail of a completion.
const MAX_TAIL: u16 = 256;

/// A buffer, whichever profile it came by.
struct Buffer {
    id: u16,
    turn: u8,
    in_length: u32,
    out: Bytes,
    /// What is wrong with it alone.
    refused: Option<Status>,
}

impl Target {
    /// What was agreed on for a virtqueue of a device.
    pub(super) fn limits(&self, device: usize) -> VqxLimits {
        let stream = self.stream_limits(device);
        match self.config.rdma {
            Some(rdma) => VqxLimits { out_split: stream.out_split, max_xfer: stream.max_xfer, ..rdma },
            None => stream,
        }
    }

    /// The same for buffers that come with all their readable bytes.
    fn stream_limits(&self, device: usize) -> VqxLimits {
        VqxLimits {
            max_out_inline: self.config.max_xfer,
            max_xfer: self.config.max_xfer,
            max_in_descs: 0,
            max_out_descs: 0,
            data_offset: 0,
            out_split: self.config.devices[device].out_split,
            max_tail: MAX_TAIL,
        }
    }

    /// A message on a virtqueue's connection.
    pub(super) fn buffer(
        &mut self,
        conn: ConnId,
        at: (u16, u16),
        command: Command,
        (body, damage): (Bytes, Option<Status>),
        now: Duration,
    ) {
        let session = &self.sessions[&at.0];
        let features = session.features;
        let extended = features.contains(Features::BASE);
        let buffer = match command.request {
            Request::Plain(Opcode::Disconnect) => {
                self.complete(conn, command.id, Status::Success, Reply::Nothing, Bytes::new());
                return self.close(conn, now);
            }
            Request::Vq { out_length, in_length } if !extended => {
                let long = u64::from(out_length) + u64::from(in_length) > self.config.max_xfer.into();
                let refused = damage.or(long.then_some(Status::OutBuffer));
                Buffer { id: command.id, turn: 0, in_length, out: body, refused }
            }
            Request::Vqx(vqx) if extended => {
                let limits = self.stream_limits(session.device);
                let parsed = match damage {
                    Some(status) => Err(Error::Limit("refused", status)),
                    None => VqxMessage::parse(&vqx, &body, &limits, true),
                };
                let (out, refused) = match parsed {
                    // Head and rest are one on a stream.
                    Ok(_) => (body, None),
                    Err(Error::Limit(_, status)) => (Bytes::new(), Some(status)),
                    Err(_) => return self.refuse(conn, Status::Protocol, now),
                };
                Buffer { id: command.id, turn: vqx.turn, in_length: vqx.in_length, out, refused }
            }
            _ => {
                self.complete(conn, command.id, Status::NoCommand, Reply::Nothing, Bytes::new());
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
            let reply = Reply::Nothing;
            return self.complete(conn, buffer.id, Status::CommandQuota, reply, Bytes::new());
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
        let device = session.device;
        let out_length = buffer.out.len() as u32;
        let record =
            Record { turn: buffer.turn, out_length, in_length: buffer.in_length, asked: true, state };
        let queue = &mut session.queues[usize::from(at.1)];
        queue.executing_bytes += if refused.is_none() { record.bytes() } else { 0 };
        queue.records.insert(buffer.id, record);
        if refused.is_some() {
            return self.answer(at, buffer.id);
        }
        self.jobs.insert(job, (at.0, at.1, buffer.id));
        self.outputs.push_back(Output::Execute {
            job,
            device,
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
        let session = self.sessions.get_mut(&instance).expect("a job's session is there");
        let resetting = session.reset.is_some();
        let resumable = session.features.contains(Features::RESUME);
        let queue = &mut session.queues[usize::from(vq)];
        let record = queue.records.get_mut(&id).expect("a job's record is there");
        queue.executing_bytes -= record.bytes();
        if done.data.len() + done.tail.len() > record.in_length as usize
            || done.tail.len() > MAX_TAIL.into()
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
            done.data = Bytes::new();
            done.tail = Bytes::new();
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
        let extended = self.sessions[&at.0].features.contains(Features::BASE);
        let body = match (done.data.is_empty(), done.tail.is_empty()) {
            (_, true) => done.data.clone(),
            (true, _) if extended => done.tail.clone(),
            (..) if extended => [&done.data[..], &done.tail].concat().into(),
            // The base profile has no tail: the bytes between are zeros.
            (..) => {
                let mut body = done.data.to_vec();
                body.resize(queue.records[&id].in_length as usize - done.tail.len(), 0);
                body.extend_from_slice(&done.tail);
                body.into()
            }
        };
        let (tail, moved) = (done.tail.len() as u16, body.len() as u32);
        let reply = match extended {
            true => Reply::Vqx { window: 0, tail, used: done.used, moved: moved - u32::from(tail) },
            false => Reply::Vq { used: done.used, moved },
        };
        let status = done.status;
        self.complete(conn, id, status, reply, body);
    }
}
