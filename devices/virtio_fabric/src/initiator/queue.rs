//! Virtqueues: windows, buffers in flight, completions.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::control::Op;
use super::{Config, Filled, Initiator, Output, Phase, Token};
use crate::wire::{
    Command, Completion, ConnectFlags, ConnectReply, Features, Opcode, Reply, Request, Status, VERSION,
    VqxCommand, VqxFlags, VqxLimits,
};
use crate::{ConnId, Message};

/// The connection of a virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    /// Not wanted at present.
    #[default]
    Idle,
    /// To be opened then.
    Down(Duration),
    Opening(ConnId, Duration),
    /// Connect is sent.
    Connecting(ConnId, Duration),
    Up(ConnId),
}

impl Link {
    pub fn conn(self) -> Option<ConnId> {
        match self {
            Link::Idle | Link::Down(_) => None,
            Link::Opening(conn, _) | Link::Connecting(conn, _) | Link::Up(conn) => Some(conn),
        }
    }
}

/// A buffer of the driver.
#[derive(Debug)]
pub(super) struct Buffer {
    pub token: Token,
    pub out: Bytes,
    pub in_length: u32,
    pub since: Duration,
    pub aborted: bool,
}

/// A command id.
#[derive(Debug, Default)]
struct Slot {
    /// Which use of the id this is, or the next will be.
    turn: u8,
    buffer: Option<Buffer>,
}

/// A virtqueue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub link: Link,
    pub failures: u32,
    pub limits: Option<VqxLimits>,
    pub waiting: VecDeque<Buffer>,
    /// As many as the granted size.
    slots: Vec<Slot>,
    free: VecDeque<u16>,
}

impl Queue {
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn size(&self) -> u16 {
        self.slots.len() as u16
    }

    /// What is in flight waits again, before what waits already, for a session without a past.
    pub fn wait_again(&mut self) {
        let mut again: Vec<Buffer> = self.take_in_flight().collect();
        again.sort_by_key(|buffer| buffer.token);
        for buffer in again.into_iter().rev() {
            self.waiting.push_front(Buffer { aborted: false, ..buffer });
        }
    }

    /// Most writable bytes that a buffer in flight has.
    pub fn longest_answer(&self) -> u64 {
        let buffers = self.slots.iter().filter_map(|slot| slot.buffer.as_ref());
        buffers.map(|buffer| buffer.in_length.into()).max().unwrap_or(0)
    }

    pub fn id_of(&self, token: Token) -> Option<u16> {
        let is_it = |slot: &Slot| slot.buffer.as_ref().is_some_and(|buffer| buffer.token == token);
        self.slots.iter().position(is_it).map(|id| id as u16)
    }

    /// Gives the next waiting buffer an id, if there are both.
    fn place(&mut self, now: Duration) -> Option<u16> {
        let id = *self.free.front()?;
        let buffer = self.waiting.pop_front()?;
        self.free.pop_front();
        self.slots[usize::from(id)].buffer = Some(Buffer { since: now, ..buffer });
        Some(id)
    }

    /// Forgets what is in flight, and all turns.
    pub fn take_in_flight(&mut self) -> impl Iterator<Item = Buffer> {
        self.free.clear();
        std::mem::take(&mut self.slots).into_iter().filter_map(|slot| slot.buffer)
    }

    /// When something happens to the queue if nothing arrives.
    pub fn deadline(&self, config: &Config) -> Option<Duration> {
        match self.link {
            Link::Idle => None,
            Link::Down(at) => Some(at),
            Link::Opening(_, since) | Link::Connecting(_, since) => Some(since + config.connect_timeout),
            Link::Up(_) => {
                let buffers = self.slots.iter().filter_map(|slot| slot.buffer.as_ref());
                buffers.map(|buffer| buffer.since + config.command_timeout).min()
            }
        }
    }
}

impl Initiator {
    /// The virtqueue's connection is open: Connect.
    pub(super) fn connect_queue(&mut self, vq: u16, now: Duration) {
        let queue = &mut self.queues[usize::from(vq)];
        let Link::Opening(conn, _) = queue.link else { return };
        queue.link = Link::Connecting(conn, now);
        // The records that the target has are of the size there was.
        let size = match queue.slots.len() {
            0 => self.config.queue_size,
            size => size as u16,
        };
        let again = self.established && self.features().contains(Features::RESUME);
        let body = self.connect_body(if again { ConnectFlags::RESUME } else { ConnectFlags::empty() });
        let instance = self.granted.expect("virtqueues are attached to an instance").instance;
        let request = Request::Connect { instance, vq, body: body.len() as u32, size };
        let header = Command { id: 0, request }.emit();
        self.outputs.push_back(Output::Send(conn, Message { header, body: Bytes::copy_from_slice(&body) }));
    }

    /// Time has passed for a virtqueue.
    pub(super) fn tick_queue(&mut self, vq: u16, now: Duration) {
        let queue = &mut self.queues[usize::from(vq)];
        if queue.deadline(&self.config).is_none_or(|at| now < at) {
            return;
        }
        match queue.link {
            Link::Idle => {}
            Link::Down(_) => self.open_queue(vq, now),
            Link::Opening(..) | Link::Connecting(..) => self.lose_queue(vq, now),
            Link::Up(_) => self.time_out(vq, now),
        }
    }

    /// Buffers that take too long are aborted, and if that does not help, their connection is given up.
    fn time_out(&mut self, vq: u16, now: Duration) {
        let limit = self.config.command_timeout;
        let mut aborts = Vec::new();
        let mut hopeless = false;
        for (id, slot) in self.queues[usize::from(vq)].slots.iter_mut().enumerate() {
            if let Some(buffer) = slot.buffer.as_mut().filter(|buffer| now >= buffer.since + limit) {
                hopeless |= buffer.aborted;
                buffer.aborted = true;
                buffer.since = now;
                aborts.push(id as u16);
            }
        }
        if hopeless {
            return self.lose_queue(vq, now);
        }
        for id in aborts {
            self.request_abort(vq, id, now);
        }
    }

    pub(super) fn request_abort(&mut self, vq: u16, id: u16, now: Duration) {
        if self.features().contains(Features::ABORT_RESET) {
            self.ops.push_back(Op::Abort { vq, id });
            self.next_op(now);
        }
    }

    /// Sends what waits, as far as the window allows.
    pub(super) fn pump(&mut self, vq: u16, now: Duration) {
        let ready = matches!(self.phase, Phase::Live | Phase::Closing) && !self.draining;
        if !ready || !matches!(self.queues[usize::from(vq)].link, Link::Up(_)) {
            return;
        }
        while let Some(id) = self.queues[usize::from(vq)].place(now) {
            let message = self.buffer_message(vq, id);
            self.outputs.extend(message);
        }
    }

    /// The message of the buffer in a slot.
    fn buffer_message(&self, vq: u16, id: u16) -> Option<Output> {
        let features = self.features();
        let queue = &self.queues[usize::from(vq)];
        let slot = &queue.slots[usize::from(id)];
        let (Link::Up(conn), Some(buffer)) = (queue.link, &slot.buffer) else { return None };
        let (out_length, in_length) = (buffer.out.len() as u32, buffer.in_length);
        let request = match queue.limits {
            Some(_) => {
                let turn = if features.contains(Features::RESUME) { slot.turn } else { 0 };
                let flags = VqxFlags::TAIL_OK;
                Request::Vqx(VqxCommand { flags, in_descs: 0, out_descs: 0, turn, out_length, in_length })
            }
            None => Request::Vq { out_length, in_length },
        };
        let header = Command { id, request }.emit();
        Some(Output::Send(conn, Message { header, body: buffer.out.clone() }))
    }

    /// A message on a virtqueue's connection. An error ends the connection.
    pub(super) fn queue_message(&mut self, vq: u16, message: &Message, now: Duration) -> Result<(), ()> {
        let queue = &mut self.queues[usize::from(vq)];
        let extended = self.granted.is_some_and(|granted| granted.reply.is_some());
        let opcode = match queue.link {
            Link::Connecting(..) => Opcode::Connect,
            Link::Up(_) if extended => Opcode::Vqx,
            Link::Up(_) => Opcode::Vq,
            _ => return Err(()),
        };
        let Message { header, body } = message;
        let completion = Completion::parse(opcode, header).map_err(|_| ())?;
        if completion.stream_body() != body.len() as u64 {
            return Err(());
        }
        match (queue.link, completion.reply) {
            (Link::Connecting(conn, _), Reply::Connect { size, .. }) => {
                self.attached(vq, conn, completion.status, size, body, now)
            }
            (_, Reply::Vqx { window: 0, tail, used, .. }) => {
                let mut data = body.clone();
                let tail = data.split_off(body.len() - usize::from(tail));
                self.completed(vq, &completion, used, (data, tail), now)
            }
            (_, Reply::Vq { used, .. }) => {
                self.completed(vq, &completion, used, (body.clone(), Bytes::new()), now)
            }
            _ => Err(()),
        }
    }

    /// Connect is completed: what is in flight is sent again.
    fn attached(
        &mut self,
        vq: u16,
        conn: ConnId,
        status: Status,
        size: u16,
        body: &[u8],
        now: Duration,
    ) -> Result<(), ()> {
        if status != Status::Success {
            return Err(());
        }
        let extended = self.granted.is_some_and(|granted| granted.reply.is_some());
        let (limits, size) = if extended {
            let reply = ConnectReply::parse(body).map_err(|_| ())?;
            if reply.version != VERSION {
                return Err(());
            }
            (Some(reply.limits), size)
        } else {
            (None, if self.config.queue_size == 0 { 1 } else { self.config.queue_size })
        };
        let queue = &mut self.queues[usize::from(vq)];
        if size == 0 || size > 1024 || (!queue.slots.is_empty() && queue.slots.len() != usize::from(size)) {
            return Err(());
        }
        if queue.slots.is_empty() {
            queue.slots.resize_with(size.into(), Slot::default);
            queue.free = (0..size).collect();
        }
        queue.limits = limits;
        queue.link = Link::Up(conn);
        self.framed(Some(conn));
        let queue = &mut self.queues[usize::from(vq)];
        for slot in &mut queue.slots {
            if let Some(buffer) = &mut slot.buffer {
                buffer.since = now;
            }
        }
        for id in 0..size {
            let message = self.buffer_message(vq, id);
            self.outputs.extend(message);
        }
        self.queue_up(now);
        self.pump(vq, now);
        Ok(())
    }

    /// A buffer is completed.
    fn completed(
        &mut self,
        vq: u16,
        completion: &Completion,
        used: u32,
        (data, tail): (Bytes, Bytes),
        now: Duration,
    ) -> Result<(), ()> {
        let queue = &mut self.queues[usize::from(vq)];
        let slot = queue.slots.get_mut(usize::from(completion.id)).ok_or(())?;
        let in_length = slot.buffer.as_ref().ok_or(())?.in_length;
        let delivered = data.len() + tail.len();
        let failed = completion.status != Status::Success;
        if used > in_length || delivered > in_length as usize || (failed && (delivered > 0 || used > 0)) {
            return Err(());
        }
        let buffer = slot.buffer.take().ok_or(())?;
        slot.turn = slot.turn.wrapping_add(1);
        queue.free.push_back(completion.id);
        queue.failures = 0;
        let result = match completion.status {
            Status::Success => Ok(Filled { used, data, tail }),
            status => Err(status),
        };
        self.outputs.push_back(Output::Completed(buffer.token, result));
        self.pump(vq, now);
        self.close_when_idle(now);
        self.detach_when_idle(now);
        Ok(())
    }
}
