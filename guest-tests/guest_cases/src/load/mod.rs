//! A checked load between two machines: every byte, every answer and every order is looked at.
//!
//! Both sides run the same program. They find each other by their Ethernet addresses: each sends the other a card with
//! its keys and queue pair numbers through the management queue pairs ([`introduction`]). Then every connection
//! carries rounds in both directions at once ([`stream`]):
//!
//! | in round *n* | what the other side, or this one, checks |
//! |---|---|
//! | WRITE to slot *n* mod [`layout::WINDOW`] | the slot's content, when the SEND behind it has arrived |
//! | SEND | order, length and content: message *n* and no other |
//! | READ of that slot, or of a book that never changes | what comes back |
//! | atomic on the other side's counter | the value before, in this order; the sum at the end |
//!
//! Nothing may be lost, doubled, misplaced or damaged, whatever happens to the wire or to either machine on the way.

mod introduction;
mod layout;
mod stream;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use guest_pattern::{Origin, fill};
use pvrdma_driver::Driver;
use pvrdma_spec::queue::Cqe;

use crate::Machine;
use crate::node::Node;
use introduction::{Card, Introduction};
use layout::{BOOK_BYTES, MAX_STREAMS};
use stream::{Peer, Stream, WorkId};

/// Offset in a side's memory of the counter that the other side's atomics change, of the first connection.
pub const COUNTER: u64 = BOOK_BYTES;

/// Completions taken at one time, so that no stream waits long for another.
const BATCH: usize = 64;

/// What two sides do to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ethernet address of the other side.
    pub peer: [u8; 6],
    /// Connections, 1 to 16. Both sides say the same.
    pub streams: u32,
    /// How long a connection waits for an answer before it sends again: 4.096 µs · 2^`timeout`, seven times.
    pub timeout: u8,
}

/// What one side has done and checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rounds of this side that are complete, over all connections.
    pub sent: u64,
    /// Rounds of the other side that were checked.
    pub received: u64,
    /// Bytes that were compared.
    pub bytes: u64,
}

/// Whether anything happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Completions were taken; there may be more.
    Busy,
    /// Nothing: the caller rests before it asks again.
    Idle,
    /// Both sides have sent their last round and all is checked.
    Finished,
}

/// One side of a load.
#[derive(Debug)]
pub struct Load<'a, M> {
    node: Node<'a, M>,
    introduction: Introduction<'a, M>,
    streams: Vec<Stream>,
    running: bool,
    stopping: bool,
    bytes: u64,
}

impl<'a, M: Machine> Load<'a, M> {
    /// Makes all objects and waits for the other side.
    ///
    /// # Errors
    ///
    /// In words, when the device refuses something or the plan is none.
    pub fn new(driver: &'a Driver<M>, plan: Plan) -> Result<Self, String> {
        if !(1..=MAX_STREAMS).contains(&plan.streams) {
            return Err(format!("A load has 1 to {MAX_STREAMS} connections, not {}", plan.streams));
        }
        let node = Node::with(driver, layout::heap_bytes(plan.streams), 1024, plan.timeout)?;
        let own = origin(driver.platform().mac());
        let mut book = alloc::vec![0; BOOK_BYTES as usize];
        fill(own, 0, &mut book);
        node.write(0, &book);
        let streams = (0..plan.streams)
            .map(|index| Stream::new(&node, index, [own, origin(plan.peer)]))
            .collect::<Result<Vec<_>, _>>()?;
        let card = Card::new(node.mr.rkey, streams.iter().map(Stream::qpn));
        let introduction = Introduction::new(driver, plan.peer, card)?;
        Ok(Self { node, introduction, streams, running: false, stopping: false, bytes: 0 })
    }

    /// Ends the load after one more round of each connection, on both sides.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Does what can be done now.
    ///
    /// # Errors
    ///
    /// In words, what was not as it should be.
    pub fn step(&mut self) -> Result<Progress, String> {
        if !self.running && !self.meet()? {
            return Ok(Progress::Idle);
        }
        // A card of a side that has not heard everything yet is answered for as long as this lasts.
        self.introduction.step()?;
        let mut taken = 0;
        while taken < BATCH
            && let Some(cqe) = self.node.driver.poll(&self.node.cq)
        {
            self.complete(&cqe)?;
            taken += 1;
        }
        for stream in &mut self.streams {
            stream.step(&self.node, self.stopping)?;
        }
        if self.is_finished()? {
            return Ok(Progress::Finished);
        }
        Ok(if taken > 0 { Progress::Busy } else { Progress::Idle })
    }

    /// Adds one to a byte of this side's memory, for tests that plant a fault.
    pub fn damage(&self, offset: u64) {
        let found = self.node.read(offset, 1);
        self.node.write(offset, &[found[0].wrapping_add(1)]);
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        let sum = |f: fn(&Stream) -> u64| self.streams.iter().map(f).sum();
        Report { sent: sum(Stream::sent), received: sum(Stream::received), bytes: self.bytes }
    }

    fn is_finished(&self) -> Result<bool, String> {
        for stream in &self.streams {
            if !stream.is_finished() || !stream.is_settled(&self.node)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Exchanges cards and connects. Gives whether both sides are ready.
    fn meet(&mut self) -> Result<bool, String> {
        self.introduction.step()?;
        if let Some((mac, card)) = self.introduction.news() {
            let peer = |qpn| Peer { mac, qpn, rkey: card.rkey };
            for (stream, qpn) in self.streams.iter_mut().zip(card.qpns) {
                stream.connect(&self.node, peer(qpn))?;
            }
            self.introduction.connected();
        }
        self.running = self.introduction.peer_is_connected();
        Ok(self.running)
    }

    fn complete(&mut self, cqe: &Cqe) -> Result<(), String> {
        let id = WorkId::from_value(cqe.wr_id);
        let stream = id.and_then(|id| self.streams.get_mut(usize::from(id.stream)));
        let (Some(id), Some(stream)) = (id, stream) else {
            return Err(format!("A completion of nothing: wr_id {:#x}", cqe.wr_id));
        };
        let done = stream.complete(&self.node, id, cqe)?;
        self.bytes += done.bytes;
        // The other side was told to end.
        self.stopping |= done.last;
        Ok(())
    }
}

/// Whose bytes they are.
fn origin([a, b, c, d, e, f]: [u8; 6]) -> Origin {
    Origin::of(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
}
