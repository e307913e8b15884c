//! Where things lie in the memory of a side, and how long they are.
//!
//! The memory starts with the book, which never changes and which the other side reads. Then follow the parts of each
//! connection. Nothing is aligned that need not be.

use pvrdma_spec::PAGE_SIZE;

/// Most connections.
pub const MAX_STREAMS: u32 = 16;
/// Rounds of one direction that may be under way.
pub const WINDOW: u32 = 4;
/// Receives that are posted: as many as rounds under way, and one that shows when there is one too many.
pub const RECEIVES: u32 = WINDOW + 1;

/// Bytes of the book.
pub const BOOK_BYTES: u64 = 256 << 10;
/// Most bytes of a SEND.
pub const MAX_SEND: u32 = 8 << 10;
/// Most bytes of a WRITE or READ.
pub const MAX_BULK: u32 = 32 << 10;

/// Room for a SEND, and a page so that what lies behind it is another's.
const SEND_ROOM: u64 = MAX_SEND as u64 + PAGE_SIZE;
const BULK_ROOM: u64 = MAX_BULK as u64 + PAGE_SIZE;
const STREAM_BYTES: u64 =
    PAGE_SIZE + (WINDOW as u64 + RECEIVES as u64) * SEND_ROOM + 3 * WINDOW as u64 * BULK_ROOM;

/// Bytes of the memory of a side.
pub const fn heap_bytes(streams: u32) -> u64 {
    BOOK_BYTES + streams as u64 * STREAM_BYTES
}

/// The parts of one connection, as offsets in the memory. Both sides have them in the same places.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    base: u64,
}

impl Parts {
    pub const fn new(stream: u32) -> Self {
        Self { base: BOOK_BYTES + stream as u64 * STREAM_BYTES }
    }

    /// The counter that the other side's atomics change.
    pub const fn counter(self) -> u64 {
        self.base
    }

    /// How many of this side's rounds the other has checked; the other writes it.
    pub const fn credit(self) -> u64 {
        self.base + 64
    }

    /// Where the other side's credit is written from.
    pub const fn grant(self) -> u64 {
        self.base + 128
    }

    /// Answer of the atomic of a round.
    pub const fn answer(self, round: u32) -> u64 {
        self.base + 256 + 8 * (round % WINDOW) as u64
    }

    /// SEND of a round.
    pub const fn outgoing(self, round: u32) -> u64 {
        self.base + PAGE_SIZE + (round % WINDOW) as u64 * SEND_ROOM + skew(round % WINDOW)
    }

    /// Buffer that the SEND of a round of the other side arrives in.
    pub const fn incoming(self, round: u32) -> u64 {
        let at = (WINDOW + round % RECEIVES) as u64;
        self.base + PAGE_SIZE + at * SEND_ROOM + skew(round % RECEIVES)
    }

    /// Source of the WRITE of a round.
    pub const fn source(self, round: u32) -> u64 {
        self.bulk(round % WINDOW)
    }

    /// Slot that the WRITE of a round of the other side goes to.
    pub const fn slot(self, round: u32) -> u64 {
        self.bulk(WINDOW + round % WINDOW)
    }

    /// Where the READ of a round arrives.
    pub const fn fetched(self, round: u32) -> u64 {
        self.bulk(2 * WINDOW + round % WINDOW)
    }

    const fn bulk(self, at: u32) -> u64 {
        let sends = (WINDOW + RECEIVES) as u64 * SEND_ROOM;
        self.base + PAGE_SIZE + sends + at as u64 * BULK_ROOM + skew(at)
    }
}

/// An odd distance from where everything would be aligned.
const fn skew(at: u32) -> u64 {
    (at * 37 % 61) as u64
}

/// Bytes of the SEND of a round: its header at least.
pub const fn send_length(round: u32) -> u32 {
    SEND_HEADER + spread(round, 0) % (MAX_SEND - SEND_HEADER)
}

/// Bytes of the WRITE and the READ of a round, none now and then.
pub const fn bulk_length(round: u32) -> u32 {
    if round % 13 == 12 { 0 } else { spread(round, 1) % MAX_BULK }
}

/// Where in the book the READ of a round starts.
pub const fn book_offset(round: u32) -> u64 {
    spread(round, 2) as u64 % (BOOK_BYTES - MAX_BULK as u64) / 8 * 8
}

/// Bytes before the content of a SEND: its round and whether it is the last.
pub const SEND_HEADER: u32 = 8;

/// A number that looks random.
const fn spread(round: u32, salt: u32) -> u32 {
    let value = (round ^ salt.rotate_left(13)).wrapping_mul(0x9e37_79b9);
    (value ^ value >> 15).wrapping_mul(0x85eb_ca6b) >> 7
}
