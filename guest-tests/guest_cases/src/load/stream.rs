//! One connection of a load: rounds of this side, and checks of the other's.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use guest_pattern::{Origin, fill, first_difference, is_part};
use pvrdma_driver::{Qp, QpSizes, Recv, SendWork};
use pvrdma_spec::queue::{AtomicOperands, Cqe, RdmaOperands, WrOpcode};

use super::layout::{Parts, RECEIVES, SEND_HEADER, WINDOW, book_offset, bulk_length, send_length};
use crate::Machine;
use crate::node::{Node, VA};

const SIGNALED: u32 = 2;

/// Content of WRITEs and SENDs of a round: twice its number, and one more.
const fn content(stream: u32, round: u32, send: bool) -> u64 {
    (stream as u64 + 1) << 40 | (round as u64) << 1 | send as u64
}

/// What a work request is, as it stands in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Receive = 0,
    Write = 1,
    Send = 2,
    Read = 3,
    Atomic = 4,
    Grant = 5,
}

/// Name of a work request: connection, kind and round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    pub stream: u8,
    kind: Kind,
    round: u32,
}

impl WorkId {
    const fn value(self) -> u64 {
        (self.stream as u64) << 40 | (self.kind as u64) << 32 | self.round as u64
    }

    pub const fn from_value(value: u64) -> Option<Self> {
        let kind = match value >> 32 & 0xff {
            0 => Kind::Receive,
            1 => Kind::Write,
            2 => Kind::Send,
            3 => Kind::Read,
            4 => Kind::Atomic,
            5 => Kind::Grant,
            _ => return None,
        };
        let id = Self { stream: (value >> 40) as u8, kind, round: value as u32 };
        if id.value() == value { Some(id) } else { None }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub mac: [u8; 6],
    pub qpn: u32,
    pub rkey: u32,
}

/// What a completion has brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Bytes that were compared.
    pub bytes: u64,
    /// It was the other side's last round.
    pub last: bool,
}

/// A connection.
#[derive(Debug)]
pub struct Stream {
    index: u32,
    qp: Qp,
    parts: Parts,
    own: Origin,
    theirs: Origin,
    rkey: u32,
    /// Posted and not complete, in this order.
    posted: VecDeque<WorkId>,
    /// Rounds of this side: posted, complete.
    started: u32,
    finished: u32,
    last_started: bool,
    /// Rounds of the other side that were checked, and as many as it was told of.
    received: u32,
    granted: u32,
    granting: bool,
    last_received: bool,
}

impl Stream {
    /// Makes connection `index` of a side whose bytes and whose peer's are of these origins.
    pub fn new<M: Machine>(
        node: &Node<'_, M>,
        index: u32,
        [own, theirs]: [Origin; 2],
    ) -> Result<Self, String> {
        let sizes = QpSizes { send_wr: 32, recv_wr: 8, send_sge: 1, recv_sge: 1 };
        Ok(Self {
            index,
            qp: node.create(sizes)?,
            parts: Parts::new(index),
            own,
            theirs,
            rkey: 0,
            posted: VecDeque::new(),
            started: 0,
            finished: 0,
            last_started: false,
            received: 0,
            granted: 0,
            granting: false,
            last_received: false,
        })
    }

    /// Its number on the wire.
    pub const fn qpn(&self) -> u32 {
        self.qp.qpn
    }

    /// Rounds of this side that are complete.
    pub const fn sent(&self) -> u64 {
        self.finished as u64
    }

    /// Rounds of the other side that were checked.
    pub const fn received(&self) -> u64 {
        self.received as u64
    }

    /// Connects it and posts its receives.
    pub fn connect<M: Machine>(&mut self, node: &Node<'_, M>, peer: Peer) -> Result<(), String> {
        self.rkey = peer.rkey;
        node.connect(&self.qp, peer.mac, peer.qpn)?;
        (0..RECEIVES).try_for_each(|round| self.post_recv(node, round))
    }

    /// Starts what may be started.
    pub fn step<M: Machine>(&mut self, node: &Node<'_, M>, stopping: bool) -> Result<(), String> {
        let credit = node.load(self.parts.credit());
        while !self.last_started
            && self.started.wrapping_sub(credit) < WINDOW
            && self.started - self.finished < WINDOW
        {
            self.start(node, stopping)?;
        }
        if self.received != self.granted && !self.granting {
            self.grant(node)?;
        }
        Ok(())
    }

    /// Whether both sides have sent their last round and know that the other has checked it.
    pub fn is_finished(&self) -> bool {
        self.last_started && self.last_received && self.posted.is_empty() && self.granted == self.received
    }

    /// Whether the counter that the other side's atomics change is where it must be at the end.
    pub fn is_settled<M: Machine>(&self, node: &Node<'_, M>) -> Result<bool, String> {
        let (wanted, found) = (sum_of(self.received), word(&node.read(self.parts.counter(), 8)));
        // The other side's last atomic is behind its last SEND and may still come.
        if found == wanted || found == sum_of(self.received.saturating_sub(1)) {
            return Ok(found == wanted);
        }
        Err(self.wrong(format!("counter is {found} after {} rounds that add up to {wanted}", self.received)))
    }

    /// Takes a completion.
    pub fn complete<M: Machine>(
        &mut self,
        node: &Node<'_, M>,
        id: WorkId,
        cqe: &Cqe,
    ) -> Result<Done, String> {
        if cqe.status != 0 {
            return Err(self.wrong(format!("{:?} {} ended with status {}", id.kind, id.round, cqe.status)));
        }
        if id.kind == Kind::Receive {
            return self.check_receive(node, id.round, cqe.byte_len);
        }
        let expected = self.posted.pop_front();
        if expected != Some(id) {
            return Err(self.wrong(format!("{id:?} completed, and {expected:?} was next")));
        }
        match id.kind {
            Kind::Read => self.check_read(node, id.round),
            Kind::Atomic => self.check_atomic(node, id.round),
            Kind::Grant => {
                self.granting = false;
                Ok(Done::default())
            }
            Kind::Write | Kind::Send | Kind::Receive => Ok(Done::default()),
        }
    }

    /// Starts a round.
    fn start<M: Machine>(&mut self, node: &Node<'_, M>, last: bool) -> Result<(), String> {
        let round = self.started;
        let (bulk, length) = (bulk_length(round), send_length(round));
        let mut bytes = vec![0; bulk as usize];
        fill(self.own, content(self.index, round, false), &mut bytes);
        node.write(self.parts.source(round), &bytes);
        let mut message = vec![0; length as usize];
        fill(self.own, content(self.index, round, true), &mut message);
        message[..4].copy_from_slice(&round.to_le_bytes());
        message[4..SEND_HEADER as usize].copy_from_slice(&u32::from(last).to_le_bytes());
        node.write(self.parts.outgoing(round), &message);

        let remote = |offset| RdmaOperands { remote_addr: VA + offset, rkey: self.rkey, reserved: 0 };
        let write = self.work(node, Kind::Write, round, WrOpcode::RdmaWrite, self.parts.source(round), bulk);
        let write = write.operands(&remote(self.parts.slot(round)));
        let send = self.work(node, Kind::Send, round, WrOpcode::Send, self.parts.outgoing(round), length);
        let read = self.work(node, Kind::Read, round, WrOpcode::RdmaRead, self.parts.fetched(round), bulk);
        let read = read.operands(&remote(self.read_from(round)));
        let atomic = self.atomic(node, round);
        for (kind, work) in
            [(Kind::Write, write), (Kind::Send, send), (Kind::Read, read), (Kind::Atomic, atomic)]
        {
            self.post(node, kind, round, &work)?;
        }
        self.started += 1;
        self.last_started = last;
        Ok(())
    }

    /// An atomic that adds the number of the round, counted from 1: every other one by comparing and swapping.
    fn atomic<M: Machine>(&self, node: &Node<'_, M>, round: u32) -> SendWork {
        let (opcode, compare_add) = match round % 2 {
            0 => (WrOpcode::FetchAdd, u64::from(round) + 1),
            _ => (WrOpcode::CompareSwap, sum_of(round)),
        };
        let operands = AtomicOperands {
            remote_addr: VA + self.parts.counter(),
            compare_add,
            swap: sum_of(round + 1),
            rkey: self.rkey,
            reserved: 0,
        };
        self.work(node, Kind::Atomic, round, opcode, self.parts.answer(round), 8).operands(&operands)
    }

    /// Tells the other side how many of its rounds were checked.
    fn grant<M: Machine>(&mut self, node: &Node<'_, M>) -> Result<(), String> {
        node.write(self.parts.grant(), &self.received.to_le_bytes());
        let operands = RdmaOperands { remote_addr: VA + self.parts.credit(), rkey: self.rkey, reserved: 0 };
        let round = self.received;
        let work = self.work(node, Kind::Grant, round, WrOpcode::RdmaWrite, self.parts.grant(), 4);
        self.post(node, Kind::Grant, round, &work.operands(&operands))?;
        (self.granted, self.granting) = (round, true);
        Ok(())
    }

    fn work<M: Machine>(
        &self,
        node: &Node<'_, M>,
        kind: Kind,
        round: u32,
        opcode: WrOpcode,
        offset: u64,
        length: u32,
    ) -> SendWork {
        SendWork::new(self.id(kind, round).value(), opcode, SIGNALED, &[node.sge(offset, length)])
    }

    fn post<M: Machine>(
        &mut self,
        node: &Node<'_, M>,
        kind: Kind,
        round: u32,
        work: &SendWork,
    ) -> Result<(), String> {
        self.posted.push_back(self.id(kind, round));
        if node.driver.post_send(&self.qp, work) { Ok(()) } else { Err(self.wrong("send queue is full")) }
    }

    fn post_recv<M: Machine>(&self, node: &Node<'_, M>, round: u32) -> Result<(), String> {
        let room = node.sge(self.parts.incoming(round), super::layout::MAX_SEND);
        let work = Recv::new(self.id(Kind::Receive, round).value(), &[room]);
        if node.driver.post_recv(&self.qp, &work) { Ok(()) } else { Err(self.wrong("receive queue is full")) }
    }

    /// Where the READ of a round reads: what the round has just written, or the book.
    fn read_from(&self, round: u32) -> u64 {
        if round.is_multiple_of(2) { self.parts.slot(round) } else { book_offset(round) }
    }

    fn check_receive<M: Machine>(
        &mut self,
        node: &Node<'_, M>,
        round: u32,
        length: u32,
    ) -> Result<Done, String> {
        if round != self.received || length != send_length(round) {
            return Err(self.wrong(format!(
                "receive {round} completed with {length} bytes, and receive {} with {} was next",
                self.received,
                send_length(self.received)
            )));
        }
        let message = node.read(self.parts.incoming(round), length as usize);
        let (header, _) = message.split_at(SEND_HEADER as usize);
        let last = header[4] == 1;
        let mut wanted = vec![0; length as usize];
        fill(self.theirs, content(self.index, round, true), &mut wanted);
        wanted[..4].copy_from_slice(&round.to_le_bytes());
        wanted[4..SEND_HEADER as usize].copy_from_slice(&u32::from(last).to_le_bytes());
        if message != wanted {
            return Err(self.wrong(format!("SEND {round} has wrong bytes")));
        }
        let bulk = bulk_length(round);
        let slot = node.read(self.parts.slot(round), bulk as usize);
        if let Some(at) = first_difference(self.theirs, content(self.index, round, false), &slot) {
            return Err(self.wrong(format!("WRITE {round} of {bulk} bytes is wrong from byte {at}")));
        }
        self.received += 1;
        self.last_received = last;
        self.post_recv(node, round + RECEIVES)?;
        Ok(Done { bytes: u64::from(length + bulk), last })
    }

    fn check_read<M: Machine>(&self, node: &Node<'_, M>, round: u32) -> Result<Done, String> {
        let length = bulk_length(round) as usize;
        let found = node.read(self.parts.fetched(round), length);
        let right = if round.is_multiple_of(2) {
            first_difference(self.own, content(self.index, round, false), &found).is_none()
        } else {
            is_part(self.theirs, 0, book_offset(round) / 8, &found)
        };
        if right {
            return Ok(Done { bytes: length as u64, last: false });
        }
        Err(self.wrong(format!("READ {round} of {length} bytes has wrong bytes")))
    }

    fn check_atomic<M: Machine>(&mut self, node: &Node<'_, M>, round: u32) -> Result<Done, String> {
        let before = sum_of(round);
        let found = word(&node.read(self.parts.answer(round), 8));
        if found != before {
            return Err(self.wrong(format!("atomic {round} found {found}, and {before} was there")));
        }
        self.finished += 1;
        Ok(Done { bytes: 8, last: false })
    }

    const fn id(&self, kind: Kind, round: u32) -> WorkId {
        WorkId { stream: self.index as u8, kind, round }
    }

    fn wrong(&self, what: impl AsRef<str>) -> String {
        format!("Connection {}: {}", self.index, what.as_ref())
    }
}

/// What the atomics of the first `rounds` rounds add up to: each adds its number, counted from 1.
const fn sum_of(rounds: u32) -> u64 {
    rounds as u64 * (rounds as u64 + 1) / 2
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
