//! A ring of records in shared memory, with one writer and one reader.
//!
//! ```text
//! 0     head: bytes written so far          writer's
//! 64    room is waited for                  set by the writer, cleared by the reader
//! 128   tail: bytes taken so far            reader's
//! 192   the reader rests                    set by the reader, cleared by the writer
//! 256   closed                              either's
//! 4096  the ring
//! ```
//!
//! Head and tail only grow; their remainder by the ring's size is a place in it. A record starts at a multiple of `SLOT`
//! with its length; a length of `SKIP` says that the next record is at the start of the ring. Both sides check what the
//! other one wrote, and give a ring up that makes no sense.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use device_model::direct::MAX_RECORD;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use vm_memory::mmap::MmapRegionBuilder;

use vm_memory::{AtomicInteger, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use super::memory::check_seals;

/// Bytes of a ring, without what is before it.
const SIZE: u64 = 1 << 20;
/// Where it starts.
const DATA: usize = 4096;
/// Records start at multiples of this, so that no two share a cache line.
const SLOT: u64 = 64;
/// Bytes before a record.
const PREFIX: usize = 8;
/// Bytes that a reader copies at once if there are so many.
const AHEAD: usize = 4096;
/// Most bytes that it copies at once.
const STAGE: usize = PREFIX + MAX_RECORD;
/// Instead of a length: nothing more until the end of the ring.
const SKIP: u32 = u32::MAX;

const HEAD: usize = 0;
const ROOM_WANTED: usize = 64;
const TAIL: usize = 128;
const RESTING: usize = 192;
const CLOSED: usize = 256;

/// The shared memory.
#[derive(Debug)]
struct Memory(MmapRegion<()>);

impl Memory {
    fn map(file: File) -> io::Result<Self> {
        MmapRegionBuilder::new(DATA + SIZE as usize)
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED)
            .build()
            .map(Self)
            .map_err(io::Error::other)
    }

    fn word<T: AtomicInteger>(&self, at: usize) -> &T {
        self.0.get_atomic_ref(at).unwrap_or_else(|_| unreachable!("words of a ring are aligned and inside"))
    }

    fn head(&self) -> &AtomicU64 {
        self.word(HEAD)
    }

    fn tail(&self) -> &AtomicU64 {
        self.word(TAIL)
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        self.word(at)
    }

    /// Sets a flag, and lets everything that is looked at afterwards be newer than that.
    fn raise(&self, at: usize) {
        self.flag(at).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes a flag that the other side may have raised before it looked at what was written before this call.
    fn lower(&self, at: usize) -> bool {
        fence(Ordering::SeqCst);
        self.flag(at).load(Ordering::Relaxed) != 0 && self.flag(at).swap(0, Ordering::Relaxed) != 0
    }

    fn data(&self, at: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.get_slice(DATA.checked_add(usize::try_from(at).ok()?)?, len).ok()
    }
}

const fn place(index: u64) -> u64 {
    index % SIZE
}

fn slot(len: usize) -> u64 {
    ((len + PREFIX) as u64).next_multiple_of(SLOT)
}

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    memory: Memory,
    head: u64,
    /// As it was read last.
    tail: u64,
    /// Records that are written and not shown.
    hidden: bool,
    /// The latest record found no room.
    full: bool,
    /// The reader wrote nonsense.
    broken: bool,
}

impl Writer {
    /// A ring of its own, and the file by which a reader gets at it.
    ///
    /// # Errors
    ///
    /// When the host has no memory or descriptor left.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create("channel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, DATA as u64 + SIZE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Memory::map(File::from(fd.try_clone()?))?;
        let writer = Self { memory, head: 0, tail: 0, hidden: false, full: false, broken: false };
        Ok((writer, fd))
    }

    /// Writes a record for [`Writer::show`] to show. Returns `false` when there is no room.
    pub fn write(&mut self, record: &[u8]) -> bool {
        let at = place(self.head);
        let slot = slot(record.len());
        let skipped = if at + slot > SIZE { SIZE - at } else { 0 };
        if record.len() > MAX_RECORD || !self.has_room(skipped + slot) {
            self.full = true;
            return false;
        }
        let start = place(self.head + skipped);
        let written = (skipped == 0 || self.put(at, &SKIP.to_le_bytes()))
            && self.put(start, &(record.len() as u32).to_le_bytes())
            && self.put(start + PREFIX as u64, record);
        self.head += skipped + slot;
        self.hidden = true;
        written
    }

    fn put(&self, at: u64, bytes: &[u8]) -> bool {
        self.memory.data(at, bytes.len()).map(|place| place.copy_from(bytes)).is_some()
    }

    fn has_room(&mut self, needed: u64) -> bool {
        if self.head - self.tail + needed > SIZE {
            self.refresh();
        }
        !self.broken && self.head - self.tail + needed <= SIZE
    }

    /// Reads how far the reader is.
    fn refresh(&mut self) {
        let tail = self.memory.tail().load(Ordering::Acquire);
        // It moves forwards, and not past what was written.
        self.broken |= tail < self.tail || tail > self.head;
        if !self.broken {
            self.tail = tail;
        }
    }

    /// Shows the reader all records that were written. Returns whether it rests and has to be woken.
    #[must_use]
    pub fn show(&mut self) -> bool {
        if !std::mem::take(&mut self.hidden) {
            return false;
        }
        self.memory.head().store(self.head, Ordering::Release);
        self.memory.lower(RESTING)
    }

    /// Whether the reader has taken all records.
    pub fn is_empty(&mut self) -> bool {
        self.refresh();
        self.tail == self.head
    }

    /// If a record found no room, asks to be woken when there is. Returns `false` if there is already.
    pub fn rest(&mut self) -> bool {
        if !std::mem::take(&mut self.full) {
            return true;
        }
        self.memory.raise(ROOM_WANTED);
        let before = self.tail;
        self.refresh();
        self.tail == before
    }

    /// Whether the ring can be used.
    pub fn is_up(&self) -> bool {
        !self.broken && self.memory.flag(CLOSED).load(Ordering::Relaxed) == 0
    }

    /// Ends the use of the ring at both ends.
    pub fn close(&self) {
        self.memory.raise(CLOSED);
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    memory: Memory,
    tail: u64,
    /// As it was read last.
    head: u64,
    /// The writer wrote nonsense.
    broken: bool,
    stage: Stage,
}

/// A private copy of a piece of the ring. Lines that the other core wrote are slow to come one after the other and fast to
/// come all at once, so that many short records are copied together.
#[derive(Debug)]
struct Stage {
    bytes: Box<[u8; STAGE]>,
    /// What of the ring it is.
    start: u64,
    end: u64,
}

impl Stage {
    /// The `len` bytes at `at`, if all of them are here.
    fn get(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let end = self.end.checked_sub(self.start).and_then(|len| usize::try_from(len).ok())?;
        self.bytes.get(..end)?.get(from..from.checked_add(len)?)
    }
}

impl Reader {
    /// The reading end of the ring behind a file that a peer sent.
    ///
    /// # Errors
    ///
    /// When the file could be resized, has not a ring's size, or cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        check_seals(&fd)?;
        if fstat(&fd)?.st_size != (DATA as u64 + SIZE) as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a ring of another size"));
        }
        let stage = Stage { bytes: Box::new([0; STAGE]), start: 0, end: 0 };
        Ok(Self { memory: Memory::map(File::from(fd))?, tail: 0, head: 0, broken: false, stage })
    }

    /// Gives the record before back and copies the next one to `buf`; returns its length.
    pub fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        self.memory.tail().store(self.tail, Ordering::Release);
        if self.is_empty() || !self.is_up() {
            return None;
        }
        let next = self.next(buf);
        self.broken |= next.is_none();
        next
    }

    /// Whether nothing waits.
    fn is_empty(&mut self) -> bool {
        if self.tail == self.head {
            let head = self.memory.head().load(Ordering::Acquire);
            self.broken |= head < self.tail || head - self.tail > SIZE || !head.is_multiple_of(SLOT);
            self.head = head;
        }
        self.tail == self.head
    }

    /// Takes the next record; there is one, or the writer wrote nonsense.
    fn next(&mut self, buf: &mut [u8]) -> Option<usize> {
        let mut len = self.len()?;
        if len == SKIP {
            self.tail += SIZE - place(self.tail);
            len = self.len()?;
        }
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_RECORD)?;
        let end = self.tail.checked_add(slot(len)).filter(|end| *end <= self.head)?;
        let record = self.staged(self.tail, PREFIX + len)?.get(PREFIX..)?;
        buf.get_mut(..len)?.copy_from_slice(record);
        self.tail = end;
        Some(len)
    }

    fn len(&mut self) -> Option<u32> {
        let bytes = self.staged(self.tail, size_of::<u32>())?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The `len` bytes at `at` of what the writer has shown; they are in one piece, or the writer wrote nonsense.
    fn staged(&mut self, at: u64, len: usize) -> Option<&[u8]> {
        if self.stage.get(at, len).is_none() {
            self.fill(at, len)?;
        }
        self.stage.get(at, len)
    }

    /// Copies what was shown from `at` on, as much as may be of use and `len` bytes at least.
    fn fill(&mut self, at: u64, len: usize) -> Option<()> {
        let shown = self.head.checked_sub(at)?.min(SIZE - place(at));
        let take = usize::try_from(shown).ok()?.min(len.max(AHEAD));
        // Not valid while it is being filled, nor if that fails.
        (self.stage.start, self.stage.end) = (at, at);
        self.memory.data(place(at), take)?.copy_to(self.stage.bytes.get_mut(..take)?);
        self.stage.end = at.checked_add(take as u64)?;
        Some(())
    }

    /// Whether the writer waits for room and has to be woken, if all has been taken.
    pub fn owes_wake_up(&mut self) -> bool {
        self.tail == self.head && self.memory.lower(ROOM_WANTED)
    }

    /// Asks to be woken by the next record. Returns `false` if there is one already.
    pub fn rest(&mut self) -> bool {
        self.memory.raise(RESTING);
        let empty = self.is_empty();
        if !empty {
            self.memory.flag(RESTING).store(0, Ordering::Relaxed);
        }
        empty
    }

    /// Whether the ring can be used.
    pub fn is_up(&self) -> bool {
        !self.broken && self.memory.flag(CLOSED).load(Ordering::Relaxed) == 0
    }

    /// Ends the use of the ring at both ends.
    pub fn close(&self) {
        self.memory.raise(CLOSED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Writer, Reader) {
        let (writer, fd) = Writer::create().unwrap();
        (writer, Reader::open(fd).unwrap())
    }

    fn read(reader: &mut Reader) -> Option<Vec<u8>> {
        let mut buf = [0; MAX_RECORD];
        reader.read(&mut buf).map(|len| buf[..len].to_vec())
    }

    #[test]
    fn records_come_whole_and_in_order_round_and_round() {
        let (mut writer, mut reader) = ring();
        for round in 0..2000_usize {
            let record = |i: usize| vec![(round + i) as u8; (round * 37 + i * 1013) % MAX_RECORD];
            (0..3).for_each(|i| assert!(writer.write(&record(i))));
            assert_eq!(read(&mut reader), None);
            let _ = writer.show();
            (0..3).for_each(|i| assert_eq!(read(&mut reader), Some(record(i))));
            assert!(!writer.is_empty());
            assert_eq!(read(&mut reader), None);
            assert!(writer.is_empty());
        }
    }

    #[test]
    fn full_ring_refuses_and_its_reader_wakes_the_writer_once() {
        let (mut writer, mut reader) = ring();
        while writer.write(&[1; 1000]) {}
        let _ = writer.show();
        assert!(writer.rest());
        while read(&mut reader).is_some() {}
        assert!(reader.owes_wake_up() && !reader.owes_wake_up());
        assert!(writer.write(&[1; 1000]));
    }

    #[test]
    fn reader_that_rests_is_woken_once() {
        let (mut writer, mut reader) = ring();
        assert!(reader.rest());
        writer.write(&[1]);
        assert!(writer.show());
        writer.write(&[2]);
        assert!(!writer.show());
        assert!(!reader.rest());
        assert_eq!(read(&mut reader), Some(vec![1]));
    }

    #[test]
    fn closed_ring_gives_nothing() {
        let (mut writer, mut reader) = ring();
        writer.write(&[1]);
        let _ = writer.show();
        writer.close();
        assert_eq!(read(&mut reader), None);
        assert!(!reader.is_up());
    }

    #[test]
    fn writer_that_writes_nonsense_breaks_the_ring_and_nothing_else() {
        let heads = [1, SIZE + SLOT, u64::MAX - SLOT + 1, 1 << 40];
        for head in heads {
            let (writer, mut reader) = ring();
            writer.memory.head().store(head, Ordering::Release);
            assert_eq!(read(&mut reader), None);
            assert!(!reader.is_up(), "{head:#x}");
        }
        for len in [MAX_RECORD as u32 + 1, SKIP - 1, 64] {
            let (writer, mut reader) = ring();
            writer.put(0, &len.to_le_bytes());
            writer.memory.head().store(SLOT, Ordering::Release);
            assert_eq!(read(&mut reader), None);
            assert!(!reader.is_up(), "{len:#x}");
        }
        let (writer, mut reader) = ring();
        writer.put(0, &SKIP.to_le_bytes());
        writer.memory.head().store(SIZE, Ordering::Release);
        assert_eq!(read(&mut reader), None);
        assert!(!reader.is_up());
    }

    #[test]
    fn reader_that_writes_nonsense_breaks_the_ring_and_nothing_else() {
        let (mut writer, reader) = ring();
        writer.write(&[1; 100]);
        reader.memory.tail().store(4096, Ordering::Release);
        assert!(!writer.is_empty());
        assert!(!writer.is_up());
    }

    #[test]
    fn file_that_could_shrink_is_refused() {
        let fd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, DATA as u64 + SIZE).unwrap();
        assert!(Reader::open(fd.try_clone().unwrap()).is_err());
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(Reader::open(fd).is_ok());
    }
}
