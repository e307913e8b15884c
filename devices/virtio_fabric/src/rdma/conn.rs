//! One connection: its buffers and work requests.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use host_port::{self as port, Buffer, Endpoint};
use verbs::{Completion, Error, RecvWr, SendFlags, SendOp, SendWr, SgeList};

use super::OperationCounts;
use super::initiator::Area;
use super::target::{Asked, Reading};
use crate::Message;
use crate::wire::VqxLimits;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Being made; an engine that is connected to does not know of it.
    Asked,
    /// Being made by this side.
    Opening,
    Open,
    /// What is queued is sent, until then, and nothing received any more.
    Closing(Duration),
}

/// Buffers of the same length to receive into.
#[derive(Clone, Copy, Debug)]
struct Slab {
    area: Buffer,
    length: u32,
    stride: u32,
}

/// A work request that is to be posted, and what it sends from.
pub(super) type Pending = (SendWr, Option<Buffer>);

/// A connection.
pub(super) struct Conn {
    pub at: port::ConnId,
    pub state: State,
    /// Whether it is a virtqueue's.
    pub is_queue: bool,
    pub size: u16,
    /// Whether Connect is completed.
    pub connected: bool,
    /// What a command may be, once Connect is completed on a virtqueue; and whether immediate completions are agreed on.
    pub agreed: Option<(VqxLimits, bool)>,
    /// Largest message that the other side takes.
    pub max_message: u32,
    pub peer_takes_immediates: bool,
    slabs: Vec<Slab>,
    /// What each work request that is under way sends from, in their order.
    under_way: VecDeque<Option<Buffer>>,
    /// Work requests for which there is no room.
    backlog: VecDeque<Pending>,
    most_sends: usize,
    /// Messages that have come, and which receive took them.
    pub inbox: VecDeque<(u64, Vec<u8>)>,
    /// Messages whose readable bytes have been read.
    pub read: VecDeque<Message>,
    /// Messages that wait for memory to be sent from.
    pub held: VecDeque<Message>,
    /// Of an initiator: what commands in flight name.
    pub areas: BTreeMap<u16, Area>,
    /// Of a target: where commands in flight want their data.
    pub asked: BTreeMap<u16, Asked>,
    /// Of a target: commands whose readable bytes are being read.
    pub reading: BTreeMap<u64, Reading>,
    pub next_reading: u64,
}

impl Conn {
    pub fn new(at: port::ConnId, is_queue: bool, size: u16, sends: u32) -> Self {
        Self {
            at,
            state: State::Opening,
            is_queue,
            size,
            connected: false,
            agreed: None,
            max_message: 0,
            peer_takes_immediates: true,
            slabs: Vec::new(),
            under_way: VecDeque::new(),
            backlog: VecDeque::new(),
            most_sends: sends as usize,
            inbox: VecDeque::new(),
            read: VecDeque::new(),
            held: VecDeque::new(),
            areas: BTreeMap::new(),
            asked: BTreeMap::new(),
            reading: BTreeMap::new(),
            next_reading: 0,
        }
    }

    /// Until when what is queued may be sent, if the connection is closed.
    pub fn closing(&self) -> Option<Duration> {
        if let State::Closing(until) = self.state { Some(until) } else { None }
    }

    /// Whether nothing is to be sent.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.backlog.is_empty() && self.held.is_empty()
    }

    /// Whether something has come.
    pub fn has_messages(&self) -> bool {
        !self.inbox.is_empty() || !self.read.is_empty()
    }

    /// Posts more receives, of `length` bytes.
    pub fn add_receives(&mut self, endpoint: &mut Endpoint, count: u32, length: u32) -> Result<(), Error> {
        let stride = length.next_multiple_of(64);
        let area = endpoint.arena().alloc(stride * count).ok_or(Error::Exhausted)?;
        let slab = (self.slabs.len() as u64) << 32;
        self.slabs.push(Slab { area, length, stride });
        (0..u64::from(count)).try_for_each(|slot| self.post_receive(endpoint, slab | slot))
    }

    fn slot(&self, wr_id: u64) -> Option<Buffer> {
        let slab = self.slabs.get((wr_id >> 32) as usize)?;
        let at = slab.area.at + u64::from(wr_id as u32) * u64::from(slab.stride);
        Some(Buffer { at, len: slab.length })
    }

    fn post_receive(&self, endpoint: &mut Endpoint, wr_id: u64) -> Result<(), Error> {
        let slot = self.slot(wr_id).ok_or(Error::NotFound)?;
        let sges = SgeList::from_slice(&[endpoint.sge(slot, 0, slot.len)]);
        endpoint.post_recv(self.at, RecvWr { wr_id, sges, bad: None })
    }

    /// Posts a receive again.
    pub fn repost(&mut self, endpoint: &mut Endpoint, wr_id: u64) {
        if let Err(error) = self.post_receive(endpoint, wr_id) {
            tracing::error!(%error, "A receive cannot be posted");
        }
    }

    /// A message has come.
    pub fn arrived(&mut self, endpoint: &mut Endpoint, completion: &Completion) -> bool {
        let bytes = self
            .slot(completion.wr_id)
            .and_then(|slot| endpoint.arena().read(slot, completion.byte_len).ok());
        bytes.is_some_and(|bytes| {
            self.inbox.push_back((completion.wr_id, bytes));
            true
        })
    }

    /// Sends a message as it is. Returns `false`, and has done nothing, when there is no memory.
    pub fn send_plain(
        &mut self,
        endpoint: &mut Endpoint,
        parts: &[&[u8]],
        counts: &mut OperationCounts,
    ) -> bool {
        let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        let Some(buffer) = filled(endpoint, length, parts) else { return false };
        counts.sends += 1;
        let wr = self.wr(endpoint, SendOp::Send { imm: None }, buffer, 0, length);
        self.post(endpoint, (wr, Some(buffer)));
        true
    }

    /// A send work request that tells nobody when it has succeeded.
    pub fn wr(&self, endpoint: &Endpoint, op: SendOp, from: Buffer, offset: u32, length: u32) -> SendWr {
        let sges = SgeList::from_slice(&[endpoint.sge(from, offset, length)]);
        SendWr { wr_id: 0, op, flags: SendFlags::empty(), sges }
    }

    /// Posts a send work request, or queues it until there is room.
    pub fn post(&mut self, endpoint: &mut Endpoint, pending: Pending) {
        self.backlog.push_back(pending);
        self.pump(endpoint);
    }

    fn pump(&mut self, endpoint: &mut Endpoint) {
        while self.under_way.len() < self.most_sends
            && let Some((wr, buffer)) = self.backlog.pop_front()
        {
            match endpoint.post_send(self.at, wr) {
                Ok(()) => self.under_way.push_back(buffer),
                // The queue pair is gone, which its owner hears by another way.
                Err(_) => buffer.into_iter().for_each(|buffer| endpoint.arena().free(buffer)),
            }
        }
    }

    /// The oldest send work request has ended.
    pub fn retired(&mut self, endpoint: &mut Endpoint) {
        if let Some(buffer) = self.under_way.pop_front().flatten() {
            endpoint.arena().free(buffer);
        }
        self.pump(endpoint);
    }

    /// Takes back what commands have named.
    pub fn revoke_all(&mut self, endpoint: &mut Endpoint) {
        for (_, area) in std::mem::take(&mut self.areas) {
            area.end(endpoint);
        }
        self.held.clear();
    }

    /// Ends the connection and gives back its memory.
    pub fn end(mut self, endpoint: &mut Endpoint) {
        endpoint.close(self.at, &[]);
        self.revoke_all(endpoint);
        let sent = self.under_way.into_iter().flatten();
        let queued = self.backlog.into_iter().filter_map(|(_, buffer)| buffer);
        let read = self.reading.into_values().map(|reading| reading.buffer);
        let receives = self.slabs.into_iter().map(|slab| slab.area);
        for buffer in sent.chain(queued).chain(read).chain(receives) {
            endpoint.arena().free(buffer);
        }
    }
}

/// A buffer with these bytes in it; `None` when there is no memory.
pub(super) fn filled(endpoint: &mut Endpoint, length: u32, parts: &[&[u8]]) -> Option<Buffer> {
    let arena = endpoint.arena();
    let buffer = arena.alloc(length)?;
    let mut at = 0;
    for part in parts {
        if let Err(error) = arena.write(buffer, at, part) {
            tracing::error!(%error, "A buffer of the arena cannot be written");
        }
        at += part.len() as u32;
    }
    Some(buffer)
}

/// What is in the first `len` bytes of a buffer.
pub(super) fn contents(endpoint: &mut Endpoint, buffer: Buffer, len: u32) -> Bytes {
    endpoint.arena().read(buffer, len).unwrap_or_default().into()
}
