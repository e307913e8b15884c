//! Channels between two machines: records, and the peer's memory to read from.
//!
//! Whoever sends describes where in its own memory the bytes lie; whoever receives gets them from there: on one host as a
//! copy out of a read-only mapping, from another one by what its RDMA device fetches. So no machine ever writes another
//! one's memory. What a record means is up to the devices at both ends.
//!
//! Records arrive in order, once, or not at all because the channel is gone. A record and all it refers to are the peer's:
//! nothing in it is to be believed unchecked.

use std::net::IpAddr;

use crate::net::MacAddr;
use crate::ram::{RamError, RamSlice};
use crate::time::Instant;

/// Longest record in bytes.
pub const MAX_RECORD: usize = 12 << 10;

/// One end of a channel.
pub trait Channel: Send {
    /// Puts a record of at most [`MAX_RECORD`] bytes into the channel, for [`Channel::flush`] to show. Returns `false` when
    /// there is no room; [`Channel::rest`] then asks to be woken when there is.
    fn send(&mut self, record: &[u8]) -> bool;

    /// Shows the peer what was sent, and wakes it if it rests.
    fn flush(&mut self);

    /// Copies the next record into `buf`, which has room for [`MAX_RECORD`] bytes, and returns its length. The call says
    /// too that nothing more will be read of what the record before it refers to.
    fn recv(&mut self, buf: &mut [u8]) -> Option<usize>;

    /// Whether the peer's machine may send from this address.
    fn may_use(&self, source: IpAddr) -> bool;

    /// Whether the peer has memory at all `len` bytes from `gpa` on, which one [`Channel::pull`] can reach.
    fn reaches(&self, gpa: u64, len: u32) -> bool;

    /// Fills `to` with the bytes of the peer's memory at `gpa`.
    ///
    /// # Errors
    ///
    /// [`RamError`] when the peer has no memory there.
    fn pull(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError>;

    /// What fetches payloads where the peer's memory is out of reach for [`Channel::pull`].
    fn fetcher(&mut self) -> Option<&mut dyn Fetcher> {
        None
    }

    /// Whether the peer has taken all records that were sent, and reads nothing any more of what they refer to.
    fn is_settled(&mut self) -> bool;

    /// Waits a moment for the peer to settle or a fetch to end, as often as it is called. Returns `false` when that has
    /// taken too long.
    fn wait(&mut self) -> bool;

    /// Asks to be woken by the next record, and by room if there was none. Returns `false` if that has come already.
    fn rest(&mut self) -> bool;

    /// Whether the channel works. One that does not never will again.
    fn is_up(&self) -> bool;
}

/// A part of a payload: where it lies in the peer's memory, and where it belongs in the own one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest-physical address in the peer's machine.
    pub from: u64,
    /// Guest-physical address in the own machine.
    pub to: u64,
    /// Bytes.
    pub len: u32,
}

/// Most pieces of one payload.
pub const MAX_PIECES: usize = 512;

/// Fetches payloads while the machine does other things.
///
/// Where there is one, a record is done with when [`Fetcher::finish`] says so, and not by the next [`Channel::recv`].
/// When a channel is dropped nothing is written to memory any more.
pub trait Fetcher {
    /// Starts to fill own memory, with at most [`MAX_PIECES`] pieces. Returns `false` when there is no room for that until
    /// another fetch has ended.
    fn fetch(&mut self, pieces: &[Piece]) -> bool;

    /// Whether the oldest fetch has ended, with all bytes in place; if so, it is forgotten. Nothing of that is in the
    /// memory's dirty bitmap.
    fn fetched(&mut self) -> bool;

    /// One more of the records that were received is done with.
    fn finish(&mut self);
}

/// Makes channels to other machines.
pub trait Exchange: Send {
    /// A channel to the machine with this address would be of use. Cheap to call again and again.
    fn want(&mut self, peer: MacAddr);

    /// The next channel that has come about, and whose machine is at the other end.
    fn poll(&mut self) -> Option<(MacAddr, Box<dyn Channel>)>;

    /// Whether a frame that came by the link of the machine is one between exchanges.
    fn claims(&self, _frame: &[u8]) -> bool {
        false
    }

    /// Takes a frame that it claims.
    fn receive(&mut self, _now: Instant, _frame: &[u8]) {}

    /// The next frame to be sent by the link of the machine.
    fn transmit(&mut self, _now: Instant) -> Option<Vec<u8>> {
        None
    }

    /// When [`Exchange::transmit`] must be called next even if nothing else happens.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
