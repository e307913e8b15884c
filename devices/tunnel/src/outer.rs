//! One queue pair of the host device, connected to that of another host.

use std::io;

use device_model::direct::{MAX_RECORD, Piece};

/// Records one side may have sent that the other is not done with.
pub const CREDITS: usize = 64;
/// Messages beside them: counts of records that are done with, and questions for them. At most one count for each quarter
/// of the credits, one in answer to a question, and one question are on their way.
pub const CONTROL: usize = 8;
/// Buffers for messages, of each direction.
pub const SLOTS: usize = CREDITS + CONTROL;
/// Bytes of a message before its record.
pub const HEAD: usize = 8;
/// Bytes of a buffer.
pub const SLOT: usize = HEAD + MAX_RECORD;

/// A buffer, by its number below [`SLOTS`].
pub type Slot = u16;

/// What a queue pair has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The message in this buffer was sent.
    Sent(Slot),
    /// A message has come into this buffer.
    Received(Slot, usize),
    /// The oldest list of READs.
    Fetched,
    /// It has failed, as everything after it will.
    Failed,
}

/// A queue pair, its completions, and [`SLOTS`] buffers for each direction, those to receive with the device from the start.
///
/// When it is dropped, nothing is written to memory any more.
pub trait Outer: Send {
    /// READs that may be on their way, at least [`device_model::direct::MAX_PIECES`].
    fn room(&self) -> usize;

    /// Sends `head` and `body`, together at most [`SLOT`] bytes, by a buffer that is not in use.
    ///
    /// # Errors
    ///
    /// When the queue pair has failed.
    fn send(&mut self, slot: Slot, head: &[u8; HEAD], body: &[u8]) -> io::Result<()>;

    /// The head of a message in a buffer for receiving, and of what follows as much in `buf` as there is and fits. `None`
    /// when the message is shorter than a head or longer than a buffer.
    fn received(&self, slot: Slot, len: usize, buf: &mut [u8]) -> Option<[u8; HEAD]>;

    /// Gives a buffer for receiving back to the device.
    ///
    /// # Errors
    ///
    /// When the queue pair has failed.
    fn repost(&mut self, slot: Slot) -> io::Result<()>;

    /// READs all of a list, and reports its end once.
    ///
    /// # Errors
    ///
    /// When the queue pair has failed.
    fn fetch(&mut self, pieces: &[Piece]) -> io::Result<()>;

    /// The next thing that was finished.
    fn poll(&mut self) -> Option<Done>;

    /// Asks for a wake-up at the next thing that is finished.
    fn arm(&mut self);

    /// Lets the device work for a moment. Returns `false` when nothing will come of it.
    fn pause(&mut self) -> bool;
}
