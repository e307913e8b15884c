//! Reading the shared area: everything the driver says about its queues, copied once and checked.

use device_model::ram::{GuestRam, RamError};
use serde::{Deserialize, Serialize};

use crate::ring::{Cursor, RingArea};
use crate::rx::{MAX_PACKET_BUFFERS, RxQueue};
use crate::spec::desc::DESC_SIZE;
use crate::spec::shared::{DriverShared, MiscConf, QUEUE_DESC_SIZE, RxQueueDesc, TxQueueDesc};
use crate::spec::{
    MAX_VECTORS, QUEUE_DESC_ALIGN, RING_ALIGN, RING_SIZE_MULTIPLE, RX_COMPLETION_RING_MAX, RX_RING_MAX,
    SHARED_MAGIC, TX_RING_MAX,
};
use crate::tx::TxQueue;

/// Queues a device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) tx_queues: u8,
    pub(crate) rx_queues: u8,
}

/// A checked shared area.
#[derive(Debug)]
pub(crate) struct Activation {
    /// The copy everything else was taken from.
    pub(crate) shared: DriverShared,
    pub(crate) tx: Vec<TxQueue>,
    pub(crate) rx: Vec<RxQueue>,
}

/// Why a device cannot be activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActivationError {
    #[error("Bus mastering is off")]
    NoBusMaster,
    #[error("Shared area or queue descriptor table at {0:#x} is not aligned")]
    Alignment(u64),
    #[error(transparent)]
    Memory(#[from] RamError),
    #[error("Shared area starts with {0:#x} in place of its magic")]
    Magic(u32),
    #[error("{tx} transmit and {rx} receive queues were asked for, 1 to {} and 1 to {} are on offer", .limits.tx_queues, .limits.rx_queues)]
    Queues { tx: u8, rx: u8, limits: Limits },
    #[error("Ring of {size} descriptors; a multiple of {RING_SIZE_MULTIPLE} up to {max} is needed")]
    RingSize { size: u32, max: u32 },
    #[error("Ring at {0:#x} is not aligned to {RING_ALIGN} bytes")]
    RingAlignment(u64),
    #[error("Interrupt vector {vector} of {count}")]
    Vector { vector: u8, count: u8 },
}

impl Activation {
    /// Reads the shared area at `address`.
    pub(crate) fn read(ram: &dyn GuestRam, address: u64, limits: Limits) -> Result<Self, ActivationError> {
        if !address.is_multiple_of(align_of::<u64>() as u64) {
            return Err(ActivationError::Alignment(address));
        }
        let shared: DriverShared = ram.read_obj(address)?;
        if shared.magic.get() != SHARED_MAGIC {
            return Err(ActivationError::Magic(shared.magic.get()));
        }
        let vectors = Vectors { count: shared.interrupts.vectors.min(MAX_VECTORS) };
        vectors.check(shared.interrupts.event_vector)?;
        let table = QueueTable::new(&shared.misc, limits)?;
        let tx = (0..table.tx)
            .map(|queue| tx_queue(ram, &ram.read_obj(table.tx_desc(queue))?, vectors))
            .collect::<Result<_, ActivationError>>()?;
        let rx = (0..table.rx)
            .map(|queue| {
                let desc = ram.read_obj(table.rx_desc(queue))?;
                let ids = [queue, queue + table.rx].map(u16::from);
                rx_queue(ram, &desc, vectors, ids, shared.misc.max_rx_buffers.get())
            })
            .collect::<Result<_, ActivationError>>()?;
        Ok(Self { shared, tx, rx })
    }
}

/// Where the queue descriptors are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct QueueTable {
    base: u64,
    pub(crate) tx: u8,
    pub(crate) rx: u8,
}

impl QueueTable {
    fn new(misc: &MiscConf, limits: Limits) -> Result<Self, ActivationError> {
        let (base, tx, rx) = (misc.queue_descs.get(), misc.tx_queues, misc.rx_queues);
        if !(1..=limits.tx_queues).contains(&tx) || !(1..=limits.rx_queues).contains(&rx) {
            return Err(ActivationError::Queues { tx, rx, limits });
        }
        if !base.is_multiple_of(QUEUE_DESC_ALIGN) {
            return Err(ActivationError::Alignment(base));
        }
        Ok(Self { base, tx, rx })
    }

    /// Whether the table could have been read from a shared area.
    pub(crate) fn is_valid(&self, limits: Limits) -> bool {
        (1..=limits.tx_queues).contains(&self.tx)
            && (1..=limits.rx_queues).contains(&self.rx)
            && self.base.is_multiple_of(QUEUE_DESC_ALIGN)
    }

    /// The table of a shared area that was activated before.
    pub(crate) fn of(activation: &Activation) -> Self {
        let misc = &activation.shared.misc;
        Self { base: misc.queue_descs.get(), tx: misc.tx_queues, rx: misc.rx_queues }
    }

    pub(crate) fn tx_desc(&self, queue: u8) -> u64 {
        self.base.saturating_add(u64::from(queue) * QUEUE_DESC_SIZE)
    }

    pub(crate) fn rx_desc(&self, queue: u8) -> u64 {
        self.base.saturating_add((u64::from(self.tx) + u64::from(queue)) * QUEUE_DESC_SIZE)
    }
}

/// Vectors the driver has.
#[derive(Clone, Copy, Debug)]
struct Vectors {
    count: u8,
}

impl Vectors {
    fn check(self, vector: u8) -> Result<u8, ActivationError> {
        if vector < self.count {
            Ok(vector)
        } else {
            Err(ActivationError::Vector { vector, count: self.count })
        }
    }
}

fn tx_queue(ram: &dyn GuestRam, desc: &TxQueueDesc, vectors: Vectors) -> Result<TxQueue, ActivationError> {
    let packets = ring(ram, desc.ring.get(), desc.ring_size.get(), TX_RING_MAX)?;
    let completions = ring(ram, desc.completion_ring.get(), desc.completion_ring_size.get(), TX_RING_MAX)?;
    Ok(TxQueue::new(packets, completions, vectors.check(desc.vector)?))
}

fn rx_queue(
    ram: &dyn GuestRam,
    desc: &RxQueueDesc,
    vectors: Vectors,
    ring_ids: [u16; 2],
    max_buffers: u16,
) -> Result<RxQueue, ActivationError> {
    let ([heads, bodies], [head_size, body_size]) = (desc.rings, desc.ring_sizes);
    let heads = ring(ram, heads.get(), head_size.get(), RX_RING_MAX)?;
    let bodies = match body_size.get() {
        0 => None,
        size => Some(ring(ram, bodies.get(), size, RX_RING_MAX)?),
    };
    let completions =
        ring(ram, desc.completion_ring.get(), desc.completion_ring_size.get(), RX_COMPLETION_RING_MAX)?;
    Ok(RxQueue {
        rings: [Some(heads), bodies],
        completions,
        vector: vectors.check(desc.vector)?,
        ring_ids,
        max_buffers: match usize::from(max_buffers) {
            0 => MAX_PACKET_BUFFERS,
            limit => limit.min(MAX_PACKET_BUFFERS),
        },
        next: [Cursor::START; 2],
        next_completion: Cursor::START,
        stopped: None,
    })
}

/// Checks a ring's size, alignment, and that all of it is RAM.
fn ring(ram: &dyn GuestRam, base: u64, size: u32, max: u32) -> Result<RingArea, ActivationError> {
    if size == 0 || size > max || !size.is_multiple_of(RING_SIZE_MULTIPLE) {
        return Err(ActivationError::RingSize { size, max });
    }
    if !base.is_multiple_of(RING_ALIGN) {
        return Err(ActivationError::RingAlignment(base));
    }
    let len = usize::try_from(u64::from(size) * DESC_SIZE).unwrap_or(usize::MAX);
    ram.slice(base, len)?;
    Ok(RingArea { base, size })
}

/// Whether a ring, and a place in it, could have come of an activation.
fn is_place(ram: &dyn GuestRam, area: RingArea, cursor: Cursor, max: u32) -> bool {
    cursor.index < area.size && ring(ram, area.base, area.size, max).is_ok()
}

impl TxQueue {
    /// Whether it could have come of an activation.
    pub(crate) fn is_valid(&self, ram: &dyn GuestRam) -> bool {
        is_place(ram, self.ring, self.next, TX_RING_MAX)
            && is_place(ram, self.completions, self.next_completion, TX_RING_MAX)
            && self.vector < MAX_VECTORS
    }
}

impl RxQueue {
    /// Whether it could have come of an activation.
    pub(crate) fn is_valid(&self, ram: &dyn GuestRam) -> bool {
        let mut rings = self.rings.iter().zip(self.next);
        rings.all(|(area, next)| area.is_none_or(|area| is_place(ram, area, next, RX_RING_MAX)))
            && self.rings[0].is_some()
            && is_place(ram, self.completions, self.next_completion, RX_COMPLETION_RING_MAX)
            && self.vector < MAX_VECTORS
            && (1..=MAX_PACKET_BUFFERS).contains(&self.max_buffers)
    }
}
