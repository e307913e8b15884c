//! Plans: what the engine wants done with guest memory and the wire. It never sees a payload byte itself.
//!
//! A *mover* executes plans. [`Effect`]s come out of [`super::Engine::next_effect`] after a packet was received, and are to be
//! executed in order before anything else is asked of the engine; that is how a completion never overtakes its data.
//! [`Outgoing`] packets come one at a time out of [`super::Engine::transmit`] and are logical: a carrier turns them into
//! frames, or into whatever else takes the message to the peer under the same sequence numbers.
//!
//! That is the seam between carriers. On the wire a packet holds a path MTU of payload and takes one sequence number. Where
//! the receiving side copies the payload itself, a packet may stand for a chunk of many path MTUs, and takes the sequence
//! numbers that these would have taken. All else is the same: queue pairs, their state and all checks. So a queue pair
//! changes carriers by sending again from its oldest unacknowledged packet.

use std::ops::Range;

use verbs::{QpId, Segments};

use crate::psn::Psn;
use crate::wire::{AtomicKind, Packet, Path};

/// Where bytes to be placed come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A range of what was received: of the frame, or of the payload of a message.
    Payload(Range<usize>),
    /// The result of an atomic operation.
    Value([u8; 8]),
}

/// Something to be done with guest memory on behalf of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Copies bytes to guest memory; source and segments have the same length.
    Place {
        /// Queue pair.
        qp: QpId,
        /// Bytes.
        from: Source,
        /// Guest memory, in order.
        to: Segments,
    },
    /// Reads, modifies and writes an aligned 64-bit word of guest memory in one atomic step; the old value goes to
    /// [`super::Engine::rmw_done`].
    Rmw {
        /// Queue pair.
        qp: QpId,
        /// Request it belongs to.
        psn: Psn,
        /// Guest-physical address, 8-aligned.
        gpa: u64,
        /// Operation.
        kind: AtomicKind,
    },
}

/// A packet to send: headers, and the guest memory its payload is gathered from.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Sending queue pair.
    pub qp: QpId,
    /// Way to the receiver.
    pub path: Path,
    /// Transport headers.
    pub packet: Packet,
    /// Payload, in order.
    pub segments: Segments,
    /// Bytes of payload.
    pub len: u32,
}

/// What a turn at sending came to, of a queue pair or of the whole engine.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "returned and used up at once")]
pub enum Transmit {
    /// A packet to send.
    Packet(Outgoing),
    /// Work was done without a packet, and there may be more.
    Again,
    /// Nothing to do until something happens.
    Idle,
}
