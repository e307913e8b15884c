//! Channels between two machines of one host: records in shared memory, and the peer's memory to read from.
//!
//! Whoever sends describes where in its own memory the bytes lie; whoever receives copies them out of a read-only mapping.
//! So no machine ever writes another one's memory. What a record means is up to the devices at both ends.
//!
//! Records arrive in order, once, or not at all because the channel is gone. A record and all it refers to are the peer's:
//! nothing in it is to be believed unchecked.

use std::net::IpAddr;

use crate::net::MacAddr;
use crate::ram::{RamError, RamSlice};

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

    /// Whether the peer has taken all records that were sent, and reads nothing any more of what they refer to.
    fn is_settled(&mut self) -> bool;

    /// Waits a moment for the peer to settle, as often as it is called. Returns `false` when that has taken too long.
    fn wait(&mut self) -> bool;

    /// Asks to be woken by the next record, and by room if there was none. Returns `false` if that has come already.
    fn rest(&mut self) -> bool;

    /// Whether the channel works. One that does not never will again.
    fn is_up(&self) -> bool;
}

/// Makes channels to other machines.
pub trait Exchange: Send {
    /// A channel to the machine with this address would be of use. Cheap to call again and again.
    fn want(&mut self, peer: MacAddr);

    /// The next channel that has come about, and whose machine is at the other end.
    fn poll(&mut self) -> Option<(MacAddr, Box<dyn Channel>)>;
}
