//! Sizes: what is posted, and what messages may be.

use host_port::Queues;

use crate::wire::{CONTROL_QUEUE_SIZE, HEADER, VqxLimits};

/// Largest completion of a virtqueue.
pub(crate) const COMPLETION: u32 = 512;
/// Largest message of a control queue.
pub(super) const CONTROL: u32 = 4352;
/// Most readable bytes in a command: 16 KiB and a header of the device type. What is longer is read by the target.
const INLINE: u32 = (16 << 10) + 256;
/// Descriptors of each kind that a command may have.
const DESCS: u16 = 4;
/// Longest tail.
const TAIL: u16 = 256;
/// Largest command of a virtqueue.
pub(super) const MAX_COMMAND: u32 = HEADER as u32 + 2 * DESCS as u32 * 16 + INLINE;
/// Largest virtqueue.
pub(super) const MAX_QUEUE: u16 = 1024;
/// Receives until Connect is completed.
pub(super) const FIRST_RECEIVES: u32 = 2;
/// Receives for what is no answer: events.
const SPARE: u32 = 8;

/// What a target takes as a command.
pub(crate) const fn limits(max_xfer: u32) -> VqxLimits {
    VqxLimits {
        max_out_inline: INLINE,
        max_xfer,
        max_in_descs: DESCS,
        max_out_descs: DESCS,
        data_offset: 0,
        out_split: 0,
        max_tail: TAIL,
    }
}

/// Receives that are posted once a queue of this size is connected.
pub(super) const fn receives(is_queue: bool, size: u16) -> u32 {
    let commands = if is_queue { size } else { CONTROL_QUEUE_SIZE };
    commands as u32 + SPARE
}

/// Work requests of a connection. A command may need a READ or a WRITE for each descriptor, and a SEND.
pub(super) const fn queues(is_queue: bool, size: u16) -> Queues {
    let receives = receives(is_queue, size) + FIRST_RECEIVES;
    Queues { sends: receives * 2 + 16, receives }
}
