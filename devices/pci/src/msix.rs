//! MSI-X of one function: table, pending bit array and the decision to fire, latch or drop.
//!
//! [`Msix::signal`](Interrupts::signal) takes no lock. It and the guest's unmasking meet in two atomics, each side
//! writing one before it reads the other, so whichever comes second sees the first and no interrupt is lost; the pending
//! bit is taken by an atomic exchange, so none is fired twice.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use device_model::irq::Interrupts;

use crate::device::{MsiMessage, MsiRouter, MsixSpec};
use crate::lock;
use crate::save::VectorState;

/// Most vectors a function can have.
pub const MAX_VECTORS: u16 = 2048;

/// Bytes of a table entry: message address (8), message data (4), vector control (4).
const ENTRY_BYTES: u64 = 16;
/// Byte offsets of the words of an entry.
const ADDRESS_LOW: u64 = 0;
const ADDRESS_HIGH: u64 = 4;
const DATA: u64 = 8;
const VECTOR_CONTROL: u64 = 12;
/// Mask bit of vector control; the only one that is not reserved.
const MASK: u32 = 1;

/// MSI-X enable of message control.
const ENABLED: u8 = 1 << 0;
/// Function mask of message control, inverted.
const UNMASKED: u8 = 1 << 1;
/// Bus master enable of the command register: a message is a memory write.
const BUS_MASTER: u8 = 1 << 2;
/// The gate through which an unmasked vector fires at once.
const OPEN: u8 = ENABLED | UNMASKED | BUS_MASTER;

/// One table entry.
#[derive(Clone, Copy)]
struct Entry {
    message: MsiMessage,
    /// What the router last heard.
    routed: Option<MsiMessage>,
}

/// MSI-X of one function.
pub struct Msix {
    spec: MsixSpec,
    router: Arc<dyn MsiRouter>,
    gate: AtomicU8,
    masked: Bits,
    pending: Bits,
    /// Entries; the lock also orders all changes of `gate` and `masked`.
    table: Mutex<Vec<Entry>>,
}

impl Msix {
    /// All vectors masked, MSI-X disabled. Vectors beyond [`MAX_VECTORS`] are left out (the function refuses them).
    pub fn new(spec: MsixSpec, router: Arc<dyn MsiRouter>) -> Self {
        let vectors = usize::from(spec.vectors.min(MAX_VECTORS));
        let entry = Entry { message: MsiMessage::default(), routed: None };
        let this = Self {
            spec,
            router,
            gate: AtomicU8::new(UNMASKED),
            masked: Bits::new(vectors),
            pending: Bits::new(vectors),
            table: Mutex::new(vec![entry; vectors]),
        };
        this.masked.set_all();
        this
    }

    /// The layout it was made for.
    pub const fn spec(&self) -> &MsixSpec {
        &self.spec
    }

    /// Whether an access that starts here belongs to the table or the pending bit array.
    pub(crate) fn contains(&self, bar: u8, offset: u64) -> bool {
        bar == self.spec.bar && (self.in_table(offset).is_some() || self.in_pba(offset).is_some())
    }

    /// Serves a guest read of the table or the pending bit array; bytes beyond either are zeros.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        let table = lock(&self.table);
        for (at, byte) in (offset..).zip(data) {
            *byte = if let Some(at) = self.in_table(at) {
                byte_of(u64::from(self.table_word(&table, at)), at % 4)
            } else if let Some(at) = self.in_pba(at) {
                byte_of(self.pending.word(at / 8), at % 8)
            } else {
                0
            };
        }
    }

    /// Serves a guest write. The specification has aligned writes of 4 and 8 bytes to the table; others do nothing.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        let length = data.len() as u64;
        let Some(at) = self.in_table(offset) else { return };
        if !matches!(length, 4 | 8) || !at.is_multiple_of(length) {
            return;
        }
        let mut table = lock(&self.table);
        for (at, word) in (at..).step_by(4).zip(data.as_chunks().0) {
            self.write_word(&mut table, at, u32::from_le_bytes(*word));
        }
    }

    /// Follows message control in config space.
    pub(crate) fn set_control(&self, enabled: bool, function_masked: bool) {
        let table = lock(&self.table);
        if enabled != (self.gate.load(SeqCst) & ENABLED != 0) {
            // What was latched belongs to the previous user of the function.
            self.pending.clear_all();
        }
        self.set_gate(ENABLED, enabled);
        self.set_gate(UNMASKED, !function_masked);
        self.deliver_latched(table.len());
    }

    /// Follows bus master enable in config space.
    pub(crate) fn set_bus_master(&self, enabled: bool) {
        let table = lock(&self.table);
        self.set_gate(BUS_MASTER, enabled);
        self.deliver_latched(table.len());
    }

    /// Back to the power-on state.
    pub(crate) fn reset(&self) {
        let mut table = lock(&self.table);
        self.gate.store(UNMASKED, SeqCst);
        self.masked.set_all();
        self.pending.clear_all();
        for entry in table.iter_mut() {
            entry.message = MsiMessage::default();
        }
    }

    /// What is saved of the vectors.
    pub(crate) fn state(&self) -> Vec<VectorState> {
        let table = lock(&self.table);
        let vector = |(vector, entry): (u16, &Entry)| VectorState {
            message: entry.message,
            masked: self.masked.get(vector),
            pending: self.pending.get(vector),
        };
        (0..).zip(table.iter()).map(vector).collect()
    }

    /// Takes over saved vectors; `false` when they are not as many. Message control must have been restored before.
    #[must_use]
    pub(crate) fn restore(&self, saved: &[VectorState]) -> bool {
        let mut table = lock(&self.table);
        if saved.len() != table.len() {
            return false;
        }
        for ((vector, entry), saved) in (0..).zip(table.iter_mut()).zip(saved) {
            entry.message = saved.message;
            if saved.pending {
                self.pending.set(vector);
            }
            if !saved.masked {
                self.route(vector, entry);
                self.masked.take(vector);
            }
        }
        true
    }

    /// Signals every vector that is not masked.
    pub(crate) fn signal_unmasked(&self) {
        let vectors = lock(&self.table).len();
        for vector in 0..u16::try_from(vectors).unwrap_or(MAX_VECTORS) {
            if self.is_open(vector) {
                self.pending.take(vector);
                self.signal(vector);
            }
        }
    }

    fn in_table(&self, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(u64::from(self.spec.table_offset))?;
        (at < self.spec.table_bytes()).then_some(at)
    }

    fn in_pba(&self, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(u64::from(self.spec.pba_offset))?;
        (at < self.spec.pba_bytes()).then_some(at)
    }

    fn table_word(&self, table: &[Entry], at: u64) -> u32 {
        let vector = vector_at(at);
        let Some(Entry { message, .. }) = table.get(usize::from(vector)) else { return 0 };
        match (at % ENTRY_BYTES) & !3 {
            ADDRESS_LOW => low(message.address),
            ADDRESS_HIGH => low(message.address >> 32),
            DATA => message.data,
            _ => u32::from(self.masked.get(vector)) * MASK,
        }
    }

    fn write_word(&self, table: &mut [Entry], at: u64, word: u32) {
        let vector = vector_at(at);
        let Some(entry) = table.get_mut(usize::from(vector)) else { return };
        let MsiMessage { address, data } = &mut entry.message;
        match at % ENTRY_BYTES {
            ADDRESS_LOW => *address = *address >> 32 << 32 | u64::from(word),
            ADDRESS_HIGH => *address = u64::from(word) << 32 | u64::from(low(*address)),
            DATA => *data = word,
            VECTOR_CONTROL if word & MASK != 0 => self.masked.set(vector),
            VECTOR_CONTROL => {
                self.route(vector, entry);
                self.masked.take(vector);
                self.deliver(vector);
            }
            _ => {}
        }
        if !self.masked.get(vector) {
            self.route(vector, entry);
        }
    }

    /// Tells the router only of changes that may fire: guests write an entry word by word while it is masked, and a
    /// route is costly to set.
    fn route(&self, vector: u16, entry: &mut Entry) {
        if entry.routed != Some(entry.message) {
            self.router.set(vector, entry.message);
            entry.routed = Some(entry.message);
        }
    }

    fn set_gate(&self, bit: u8, open: bool) {
        if open {
            self.gate.fetch_or(bit, SeqCst);
        } else {
            self.gate.fetch_and(!bit, SeqCst);
        }
    }

    fn is_open(&self, vector: u16) -> bool {
        self.gate.load(SeqCst) == OPEN && !self.masked.get(vector)
    }

    fn deliver_latched(&self, vectors: usize) {
        for vector in 0..u16::try_from(vectors).unwrap_or(MAX_VECTORS) {
            self.deliver(vector);
        }
    }

    /// Fires `vector` if it is latched and nothing masks it.
    fn deliver(&self, vector: u16) {
        if self.is_open(vector) && self.pending.take(vector) {
            self.router.fire(vector);
        }
    }
}

impl Interrupts for Msix {
    fn signal(&self, vector: u16) {
        if vector >= self.spec.vectors.min(MAX_VECTORS) || self.gate.load(SeqCst) & ENABLED == 0 {
            return;
        }
        if self.is_open(vector) {
            self.router.fire(vector);
        } else {
            self.pending.set(vector);
            self.deliver(vector);
        }
    }
}

impl MsixSpec {
    /// Bytes of the table.
    pub const fn table_bytes(&self) -> u64 {
        self.vectors as u64 * ENTRY_BYTES
    }

    /// Bytes of the pending bit array.
    pub const fn pba_bytes(&self) -> u64 {
        (self.vectors as u64).div_ceil(64) * 8
    }
}

/// The vector whose entry holds byte `at` of the table; out of range for none.
fn vector_at(at: u64) -> u16 {
    u16::try_from(at / ENTRY_BYTES).unwrap_or(u16::MAX)
}

const fn low(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

const fn byte_of(word: u64, index: u64) -> u8 {
    (word >> (index * 8)) as u8
}

/// A fixed set of bits shared between threads; bits beyond the end read as zero.
struct Bits {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Bits {
    fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), len }
    }

    fn at(&self, bit: u16) -> Option<(&AtomicU64, u64)> {
        let bit = usize::from(bit);
        (bit < self.len).then(|| self.words.get(bit / 64)).flatten().map(|word| (word, 1 << (bit % 64)))
    }

    fn get(&self, bit: u16) -> bool {
        self.at(bit).is_some_and(|(word, mask)| word.load(SeqCst) & mask != 0)
    }

    fn set(&self, bit: u16) {
        if let Some((word, mask)) = self.at(bit) {
            word.fetch_or(mask, SeqCst);
        }
    }

    /// Clears the bit and says whether it was set.
    fn take(&self, bit: u16) -> bool {
        self.at(bit).is_some_and(|(word, mask)| word.fetch_and(!mask, SeqCst) & mask != 0)
    }

    fn word(&self, index: u64) -> u64 {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.words.get(index))
            .map_or(0, |word| word.load(SeqCst))
    }

    fn set_all(&self) {
        for word in &self.words {
            word.store(u64::MAX, SeqCst);
        }
    }

    fn clear_all(&self) {
        for word in &self.words {
            word.store(0, SeqCst);
        }
    }
}

#[cfg(test)]
#[path = "msix_tests.rs"]
mod tests;
