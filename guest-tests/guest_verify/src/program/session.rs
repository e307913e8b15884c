//! One queue pair that is connected to a peer, and the memory the two share.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use guest_pattern::{Origin, fill};
use guest_verify::gid::GidRow;
use guest_verify::peer::{Endpoint, Peer};
use guest_verify::plan::{Plan, mtu_code};
use guest_verify::tally::Tally;

use crate::verbs::{Completion, CompletionQueue, Connection, Context, Domain, Memory, QueuePair, Work};

/// How long the device may be silent while something is under way.
const PATIENCE: Duration = Duration::from_secs(120);
/// Size of the part of the memory that is no message.
const CONTROL: usize = 4096;
/// Where answers of atomics go, from the start of that part; the counter the peer changes is at its start.
const ANSWERS: usize = 1024;
/// Buffer of messages without content, from the start of that part.
const NOTE: usize = 2048;

/// A connected queue pair.
pub struct Session {
    peer: Peer,
    plan: Plan,
    queue: Rc<CompletionQueue>,
    pair: QueuePair,
    memory: Memory,
    theirs: Endpoint,
    listened: bool,
}

/// A part of the memory, the same at both ends.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Slot that this end sends from or reads into.
    Out(u32),
    /// Slot that the peer's messages go to, or that the peer reads.
    In(u32),
    /// Where the answer of an atomic goes.
    Answer(u32),
    /// The counter that the peer's atomics change.
    Counter,
    /// Buffer of messages without content.
    Note,
}

impl Session {
    /// Makes the objects, tells the peer, and connects.
    pub fn connect(mut peer: Peer, plan: Plan, row: &GidRow, listened: bool) -> Result<Self> {
        let context = Context::open(&row.device).with_context(|| format!("Cannot open {}", row.device))?;
        let domain = Domain::new(&context).context("Cannot make a protection domain")?;
        let depth = 4 * plan.slots();
        let queue = CompletionQueue::new(&context, 2 * depth).context("Cannot make a completion queue")?;
        let pair = QueuePair::new(&domain, &queue, depth).context("Cannot make a queue pair")?;
        let memory =
            Memory::new(&domain, messages_size(&plan) + CONTROL).context("Cannot register memory")?;
        let ours = Endpoint {
            qpn: pair.number(),
            // Near the end of the 24 bits, so that every run of some length wraps.
            psn: 0xff_ff00 + u32::from(listened),
            gid: row.gid,
            mtu: domain.context().active_mtu()?.min(plan.mtu),
            responder_resources: domain.context().outstanding_reads()?,
            address: memory.address(0, 1),
            rkey: memory.remote_key(),
        };
        let theirs = peer.exchange(&ours)?;
        pair.connect(&connection(&ours, &theirs, row.index)).context("Cannot connect the queue pair")?;
        Ok(Self { peer, plan, queue, pair, memory, theirs, listened })
    }

    /// What is to be done.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// The side channel.
    pub fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    /// Who makes the content this end sends.
    pub fn our_origin(&self) -> Origin {
        if self.listened { Origin::SERVER } else { Origin::CLIENT }
    }

    /// Who makes the content this end gets.
    pub fn their_origin(&self) -> Origin {
        if self.listened { Origin::CLIENT } else { Origin::SERVER }
    }

    /// Offers a place to the next message.
    pub fn receive(&self, id: u64, place: Place) -> Result<()> {
        self.pair.receive(id, self.buffer(place)).context("Cannot post a receive request")
    }

    /// Posts a request on a place of this end.
    pub fn post(&self, id: u64, work: Work, place: Place) -> Result<()> {
        self.pair.post(id, work, self.buffer(place)).context("Cannot post a request")
    }

    /// Sends a message without content but with a number.
    pub fn note(&self, id: u64, number: u32) -> Result<()> {
        self.post(id, Work::Send { immediate: Some(number) }, Place::Note)
    }

    /// The next completion.
    pub fn complete(&self) -> Result<Completion> {
        self.queue.wait(PATIENCE).context("The device did not complete a request")
    }

    /// Address and key of a place of the peer.
    pub fn remote(&self, place: Place) -> (u64, u32) {
        let (offset, _) = self.locate(place);
        (self.theirs.address + offset as u64, self.theirs.rkey)
    }

    /// Makes the content of message `sequence` of `origin` in a place.
    pub fn make(&self, place: Place, origin: Origin, sequence: u64) {
        let (offset, length) = self.locate(place);
        let mut bytes = vec![0; length];
        fill(origin, sequence, &mut bytes);
        self.memory.write(offset, &bytes);
    }

    /// Makes a place hold nothing that could pass for content.
    pub fn clear(&self, place: Place) {
        let (offset, length) = self.locate(place);
        self.memory.write(offset, &vec![0xee; length]);
    }

    /// Checks that a place holds message `sequence` of `origin`.
    pub fn check(&self, place: Place, origin: Origin, sequence: u64, tally: &mut Tally) {
        let (offset, length) = self.locate(place);
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes);
        tally.check(origin, sequence, &bytes);
    }

    /// The number in a place of eight bytes.
    pub fn number(&self, place: Place) -> u64 {
        let (offset, _) = self.locate(place);
        let mut bytes = [0; 8];
        self.memory.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn buffer(&self, place: Place) -> (u64, u32, u32) {
        let (offset, length) = self.locate(place);
        (self.memory.address(offset, length), length as u32, self.memory.local_key())
    }

    /// Offset and length of a place.
    fn locate(&self, place: Place) -> (usize, usize) {
        let (size, slots) = (self.plan.size as usize, self.plan.slots() as usize);
        let control = messages_size(&self.plan);
        match place {
            Place::Out(slot) => (slot as usize * size, size),
            Place::In(slot) => ((slots + slot as usize) * size, size),
            Place::Counter => (control, 8),
            Place::Answer(slot) => (control + ANSWERS + 8 * slot as usize, 8),
            Place::Note => (control + NOTE, 0),
        }
    }
}

/// The slots of both directions. The rest starts on a multiple of eight, as atomics need.
fn messages_size(plan: &Plan) -> usize {
    (2 * plan.slots() as usize * plan.size as usize).next_multiple_of(64)
}

fn connection(ours: &Endpoint, theirs: &Endpoint, gid_index: u8) -> Connection {
    Connection {
        qpn: theirs.qpn,
        gid: theirs.gid,
        gid_index,
        mtu_code: mtu_code(ours.mtu.min(theirs.mtu)).unwrap_or(1),
        their_psn: theirs.psn,
        our_psn: ours.psn,
        we_answer: ours.responder_resources,
        they_answer: theirs.responder_resources,
    }
}
