//! A driver that works like the Linux one, whose assertions (`BUG_ON`) are assertions here.

use pci::Device;
use vmxnet3::spec::desc::*;
use vmxnet3::spec::regs::{BAR_CONTROL, BAR_DATA};
use vmxnet3::spec::shared::*;
use vmxnet3::spec::{Features, RxMode, SHARED_MAGIC};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use crate::machine::Machine;

pub const ACTIVATE: u32 = 0xcafe_0000;
pub const QUIESCE: u32 = 0xcafe_0001;
pub const RESET: u32 = 0xcafe_0002;
pub const UPDATE_RX_MODE: u32 = 0xcafe_0003;
pub const UPDATE_MAC_FILTERS: u32 = 0xcafe_0004;
pub const UPDATE_VLAN_FILTERS: u32 = 0xcafe_0005;
pub const UPDATE_FEATURE: u32 = 0xcafe_0009;
pub const GET_QUEUE_STATUS: u32 = 0xf00d_0000;
pub const GET_STATS: u32 = 0xf00d_0001;
pub const GET_LINK: u32 = 0xf00d_0002;

pub const DSAL: u64 = 0x10;
pub const DSAH: u64 = 0x18;
pub const CMD: u64 = 0x20;
pub const MACL: u64 = 0x28;
pub const MACH: u64 = 0x30;
pub const ECR: u64 = 0x40;
pub const TXPROD: u64 = 0x600;

/// Where the shared area is.
pub const SHARED: u64 = 0x1000;
/// Where the queue descriptors are.
pub const QUEUES: u64 = 0x2000;
/// Where the multicast table is.
pub const MULTICAST: u64 = 0x4000;
/// First address given to rings and buffers.
const HEAP: u64 = 0x1_0000;
/// `PAGE_SIZE`, the size of a body buffer.
const PAGE: u16 = 4096;
/// `VMXNET3_HDR_COPY_SIZE`.
const HEADER_COPY: usize = 128;
/// `VMXNET3_MAX_SKB_BUF_SIZE`.
const HEAD_MAX: u32 = 3072;
/// `VMXNET3_MAX_ETH_HDR_SIZE`.
const ETHERNET_MAX: u32 = 22;

/// What a driver is loaded with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub queues: u8,
    pub tx_ring: u32,
    pub rx_ring: u32,
    pub body_ring: u32,
    pub mtu: u32,
    pub features: Features,
}

impl Default for Options {
    fn default() -> Self {
        let features = Features::RX_CHECKSUM | Features::RX_VLAN;
        Self { queues: 1, tx_ring: 32, rx_ring: 32, body_ring: 32, mtu: 1500, features }
    }
}

/// An offload request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub mode: u8,
    pub header_len: u16,
    pub mss_or_offset: u16,
    pub tag: Option<u16>,
}

/// A frame received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub tag: Option<u16>,
    /// The completion's words 0 and 3 of the packet's end.
    pub place: RxPlace,
    pub verdict: RxVerdict,
}

/// A ring of which the driver fills entries and the device uses them.
struct CommandRing {
    base: u64,
    size: u32,
    fill: u32,
    comp: u32,
    generation: bool,
}

impl CommandRing {
    fn free(&self) -> u32 {
        (if self.comp > self.fill { 0 } else { self.size }) + self.comp - self.fill - 1
    }

    fn at(&self, index: u32) -> u64 {
        self.base + u64::from(index) * DESC_SIZE
    }

    fn advance_fill(&mut self) {
        self.fill += 1;
        if self.fill == self.size {
            self.fill = 0;
            self.generation = !self.generation;
        }
    }
}

/// A ring of completions.
struct CompletionRing {
    base: u64,
    size: u32,
    next: u32,
    generation: bool,
}

impl CompletionRing {
    fn take<T: zerocopy::FromBytes + zerocopy::IntoBytes>(&mut self, machine: &Machine) -> Option<T> {
        let address = self.base + u64::from(self.next) * DESC_SIZE;
        let tail: U32 = machine.ram().read_obj(address + 12).unwrap();
        if (tail.get() >> 31 == 1) != self.generation {
            return None;
        }
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.generation = !self.generation;
        }
        Some(machine.ram().read_obj(address).unwrap())
    }
}

struct TxQueue {
    ring: CommandRing,
    completions: CompletionRing,
    data: u64,
    buffers: u64,
    /// Start of the packet that ends at this index.
    start_of: Vec<Option<u32>>,
}

struct RxBufferInfo {
    address: u64,
    len: u16,
    body: bool,
}

struct RxQueue {
    rings: [CommandRing; 2],
    info: [Vec<RxBufferInfo>; 2],
    completions: CompletionRing,
    ids: [u16; 2],
    /// A packet whose end has not been seen.
    partial: Option<Vec<u8>>,
}

/// The driver.
pub struct Driver<'a> {
    pub machine: &'a Machine,
    pub options: Options,
    heap: u64,
    tx: Vec<TxQueue>,
    rx: Vec<RxQueue>,
}

impl<'a> Driver<'a> {
    /// Probes and prepares, without activating.
    pub fn prepare(machine: &'a Machine, options: Options) -> Self {
        let mut driver = Self { machine, options, heap: HEAP, tx: Vec::new(), rx: Vec::new() };
        driver.probe();
        for _ in 0..options.queues {
            let queue = driver.make_tx();
            driver.tx.push(queue);
        }
        for queue in 0..options.queues {
            let queue = driver.make_rx(queue);
            driver.rx.push(queue);
        }
        driver.write_shared();
        driver
    }

    /// Probes, activates and wants everything addressed to it, to groups and to all.
    pub fn open(machine: &'a Machine, options: Options) -> Self {
        let driver = Self::prepare(machine, options);
        assert_eq!(driver.activate(), 0);
        driver.set_mode(RxMode::UNICAST | RxMode::BROADCAST | RxMode::ALL_MULTICAST);
        assert_eq!(driver.get(GET_LINK), 0x2710_0001);
        driver.enable_interrupts();
        machine.irqs.take();
        driver
    }

    fn probe(&self) {
        assert_eq!(self.read(BAR_CONTROL, 0x00) & 0x7f, 1, "revision 1 only");
        self.write(BAR_CONTROL, 0x00, 1);
        assert_eq!(self.read(BAR_CONTROL, 0x08) & 1, 1);
        self.write(BAR_CONTROL, 0x08, 1);
        assert_eq!(self.get(0xf00d_0008), 0, "interrupt type and mask mode are automatic");
    }

    pub fn read(&self, bar: u8, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.machine.nic.read(bar, offset, &mut word);
        u32::from_le_bytes(word)
    }

    pub fn write(&self, bar: u8, offset: u64, value: u32) {
        self.machine.nic.write(bar, offset, &value.to_le_bytes());
    }

    /// Executes a command and returns its result.
    pub fn get(&self, command: u32) -> u32 {
        self.write(BAR_CONTROL, CMD, command);
        self.read(BAR_CONTROL, CMD)
    }

    pub fn activate(&self) -> u32 {
        self.write(BAR_CONTROL, MACL, u32::from_le_bytes([0x52, 0x54, 0, 0x12]));
        self.write(BAR_CONTROL, MACH, u32::from_le_bytes([0x34, 0x56, 0, 0]));
        self.write(BAR_CONTROL, DSAL, SHARED as u32);
        self.write(BAR_CONTROL, DSAH, 0);
        self.get(ACTIVATE)
    }

    /// `vmxnet3_enable_all_intrs`: unmasks first, then clears "disable all".
    pub fn enable_interrupts(&self) {
        for vector in 0..=self.options.queues {
            self.unmask(vector);
        }
        self.machine.ram().write_obj(SHARED + INTERRUPT_CONTROL, &U32::new(0)).unwrap();
    }

    pub fn unmask(&self, vector: u8) {
        self.write(BAR_DATA, u64::from(vector) * 8, 0);
    }

    pub fn set_mode(&self, mode: RxMode) {
        self.machine.ram().write_obj(SHARED + RX_FILTER, &U32::new(mode.bits())).unwrap();
        self.get(UPDATE_RX_MODE);
    }

    /// Vector of events.
    pub fn event_vector(&self) -> u8 {
        self.options.queues
    }

    fn allocate(&mut self, len: u64) -> u64 {
        let address = self.heap;
        self.heap += len.next_multiple_of(512);
        assert!(self.heap <= 0x60_0000);
        address
    }

    fn command_ring(&mut self, size: u32) -> CommandRing {
        let base = self.allocate(u64::from(size) * DESC_SIZE);
        self.machine.ram().write(base, &vec![0; size as usize * 16]).unwrap();
        CommandRing { base, size, fill: 0, comp: 0, generation: true }
    }

    fn completion_ring(&mut self, size: u32) -> CompletionRing {
        let base = self.allocate(u64::from(size) * DESC_SIZE);
        self.machine.ram().write(base, &vec![0; size as usize * 16]).unwrap();
        CompletionRing { base, size, next: 0, generation: true }
    }

    fn make_tx(&mut self) -> TxQueue {
        let size = self.options.tx_ring;
        let ring = self.command_ring(size);
        let completions = self.completion_ring(size);
        let data = self.allocate(u64::from(size) * HEADER_COPY as u64);
        let buffers = self.allocate(0x2_0000);
        TxQueue { ring, completions, data, buffers, start_of: vec![None; size as usize] }
    }

    /// `rx_buf_per_pkt`.
    fn buffers_per_packet(&self) -> u32 {
        1 + (self.options.mtu + ETHERNET_MAX).saturating_sub(HEAD_MAX).div_ceil(u32::from(PAGE))
    }

    fn make_rx(&mut self, queue: u8) -> RxQueue {
        let per_packet = self.buffers_per_packet();
        let unit = per_packet * 32;
        let sizes = [self.options.rx_ring, self.options.body_ring].map(|size| size.next_multiple_of(unit));
        let head_len = u16::try_from((self.options.mtu + ETHERNET_MAX).clamp(128, HEAD_MAX)).unwrap();
        let rings = sizes.map(|size| self.command_ring(size));
        let completions = self.completion_ring(sizes[0] + sizes[1]);
        let mut info = [Vec::new(), Vec::new()];
        for (ring, size) in sizes.into_iter().enumerate() {
            for index in 0..size {
                let body = ring == 1 || index % per_packet != 0;
                let len = if body { PAGE } else { head_len };
                let address = self.allocate(u64::from(len));
                info[ring].push(RxBufferInfo { address, len, body });
            }
        }
        let ids = [queue, queue + self.options.queues].map(u16::from);
        let mut queue = RxQueue { rings, info, completions, ids, partial: None };
        for ring in 0..2 {
            let count = queue.rings[ring].size - 1;
            queue.fill(self.machine, ring, count);
        }
        queue
    }

    fn write_shared(&self) {
        let mut shared = DriverShared::new_zeroed();
        shared.magic = U32::new(SHARED_MAGIC);
        shared.misc.features = U64::new(self.options.features.bits());
        shared.misc.queue_descs = U64::new(QUEUES);
        shared.misc.queue_descs_len = U32::new(u32::from(self.options.queues) * 512);
        shared.misc.mtu = U32::new(self.options.mtu);
        shared.misc.max_rx_buffers = U16::new(0);
        shared.misc.tx_queues = self.options.queues;
        shared.misc.rx_queues = self.options.queues;
        shared.interrupts.auto_mask = 1;
        shared.interrupts.vectors = self.options.queues + 1;
        shared.interrupts.event_vector = self.event_vector();
        shared.interrupts.control = U32::new(1);
        shared.rx_filter.vlans[0] = U32::new(1);
        self.machine.ram().write_obj(SHARED, &shared).unwrap();
        for (index, queue) in self.tx.iter().enumerate() {
            self.machine.ram().write_obj(tx_desc(index), &queue.desc(index)).unwrap();
        }
        for (index, queue) in self.rx.iter().enumerate() {
            self.machine.ram().write_obj(self.rx_desc(index), &queue.desc(index)).unwrap();
        }
    }

    /// Address of a receive queue's descriptor.
    pub fn rx_desc(&self, queue: usize) -> u64 {
        QUEUES + (u64::from(self.options.queues) + queue as u64) * QUEUE_DESC_SIZE
    }

    /// Guest-physical ranges the device may write: completions, status, statistics, events, posted buffers.
    pub fn writable(&self) -> Vec<(u64, u64)> {
        let mut ranges = vec![(SHARED + EVENTS, 4)];
        for (index, queue) in self.tx.iter().enumerate() {
            ranges.push((queue.completions.base, u64::from(queue.completions.size) * DESC_SIZE));
            ranges.push((tx_desc(index) + QUEUE_STATUS, 88));
        }
        for (index, queue) in self.rx.iter().enumerate() {
            ranges.push((queue.completions.base, u64::from(queue.completions.size) * DESC_SIZE));
            ranges.push((self.rx_desc(index) + QUEUE_STATUS, 88));
        }
        ranges
    }

    /// Buffers that are or were posted by the driver itself.
    pub fn posted(&self) -> impl Iterator<Item = (u64, u64)> {
        self.rx
            .iter()
            .flat_map(|queue| queue.info.iter().flatten())
            .map(|info| (info.address, u64::from(info.len)))
    }

    /// Addresses of a queue's transmit ring and head and body ring, and their sizes.
    pub fn rings(&self, queue: usize) -> [(u64, u32); 3] {
        let [heads, bodies] = self.rx[queue].rings.each_ref().map(|ring| (ring.base, ring.size));
        [(self.tx[queue].ring.base, self.tx[queue].ring.size), heads, bodies]
    }

    /// Whether a packet of `pieces` pieces fits the ring.
    pub fn can_send(&self, queue: usize, pieces: usize) -> bool {
        (self.tx[queue].ring.free() as usize) > pieces + 1
    }

    /// Queues a packet whose first bytes are copied next to the ring, as Linux does with headers, and whose rest lies
    /// in several pieces; then kicks.
    pub fn send(&mut self, queue: usize, frame: &[u8], pieces: usize, offload: Offload) {
        let header = match offload.mode {
            OFFLOAD_TSO => usize::from(offload.header_len),
            _ => frame.len().min(HEADER_COPY),
        };
        let machine = self.machine;
        let tx = &mut self.tx[queue];
        assert!(tx.ring.free() as usize > pieces);
        let start = tx.ring.fill;
        let mut place = tx.data + u64::from(start) * HEADER_COPY as u64;
        machine.ram().write(place, &frame[..header]).unwrap();
        let rest = &frame[header..];
        machine.ram().write(tx.buffers, rest).unwrap();
        let chunk = rest.len().div_ceil(pieces.max(1)).clamp(1, TX_BUFFER_MAX as usize);
        let lens = std::iter::once(header).chain(rest.chunks(chunk).map(<[u8]>::len));
        let count = 1 + rest.chunks(chunk).len();
        let mut next = tx.buffers;
        let first = (start, tx.ring.generation);
        for (position, len) in lens.enumerate() {
            let end = position + 1 == count;
            tx.write_desc(machine, place, len, position == 0, end, offload);
            place = next;
            next += chunk as u64;
            if end {
                tx.start_of[tx.ring.fill as usize] = Some(start);
            }
            tx.ring.advance_fill();
        }
        // The first descriptor's generation bit is set last.
        let address = tx.ring.at(first.0) + DESC_GENERATION_WORD;
        let word: U32 = machine.ram().read_obj(address).unwrap();
        let word = TxBuffer::from_bits(word.get()).with_generation(first.1);
        machine.ram().write_obj(address, &U32::new(word.into_bits())).unwrap();
        let fill = tx.ring.fill;
        self.write(BAR_DATA, TXPROD + 8 * queue as u64, fill);
    }

    /// `vmxnet3_tq_tx_complete`: takes completions; returns the number of packets.
    pub fn complete_tx(&mut self, queue: usize) -> usize {
        let tx = &mut self.tx[queue];
        let mut packets = 0;
        while let Some(completion) = tx.completions.take::<TxCompletion>(self.machine) {
            let index = completion.index.get();
            assert_eq!(index >> 12, 0);
            assert_eq!(CompletionTail::from_bits(completion.tail.get()).kind(), 0);
            let start = tx.start_of[index as usize].take();
            assert_eq!(start, Some(tx.ring.comp), "completed the end of the oldest packet");
            let desc: TxDesc = self.machine.ram().read_obj(tx.ring.at(index)).unwrap();
            assert!(TxOptions::from_bits(desc.options.get()).end_of_packet());
            tx.ring.comp = (index + 1) % tx.ring.size;
            packets += 1;
        }
        packets
    }

    /// `vmxnet3_rq_rx_complete`: takes what was received and posts the buffers again.
    pub fn poll_rx(&mut self, queue: usize) -> Vec<Received> {
        let mut received = Vec::new();
        let rx = &mut self.rx[queue];
        while let Some(completion) = rx.completions.take::<RxCompletion>(self.machine) {
            received.extend(rx.take(self.machine, &completion));
        }
        received
    }
}

/// Address of a transmit queue's descriptor.
pub fn tx_desc(queue: usize) -> u64 {
    QUEUES + queue as u64 * QUEUE_DESC_SIZE
}

impl TxQueue {
    fn desc(&self, index: usize) -> TxQueueDesc {
        let mut desc = TxQueueDesc::new_zeroed();
        desc.ring = U64::new(self.ring.base);
        desc.ring_size = U32::new(self.ring.size);
        desc.data_ring = U64::new(self.data);
        desc.data_ring_size = U32::new(self.ring.size);
        desc.completion_ring = U64::new(self.completions.base);
        desc.completion_ring_size = U32::new(self.completions.size);
        desc.vector = index as u8;
        desc
    }

    fn write_desc(
        &self,
        machine: &Machine,
        address: u64,
        len: usize,
        first: bool,
        end: bool,
        offload: Offload,
    ) {
        let mut buffer = TxBuffer::new()
            .with_length(u16::try_from(len % TX_BUFFER_MAX as usize).unwrap())
            .with_generation(self.ring.generation != first);
        let mut options = TxOptions::new().with_end_of_packet(end).with_completion(end);
        if first {
            buffer.set_mss_or_checksum_offset(offload.mss_or_offset);
            options.set_header_len(offload.header_len);
            options.set_offload(offload.mode);
            options.set_insert_tag(offload.tag.is_some());
            options.set_tag(offload.tag.unwrap_or(0));
        }
        let desc = TxDesc {
            address: U64::new(address),
            buffer: U32::new(buffer.into_bits()),
            options: U32::new(options.into_bits()),
        };
        machine.ram().write_obj(self.ring.at(self.ring.fill), &desc).unwrap();
    }
}

impl RxQueue {
    fn desc(&self, index: usize) -> RxQueueDesc {
        let mut desc = RxQueueDesc::new_zeroed();
        desc.rings = self.rings.each_ref().map(|ring| U64::new(ring.base));
        desc.ring_sizes = self.rings.each_ref().map(|ring| U32::new(ring.size));
        desc.completion_ring = U64::new(self.completions.base);
        desc.completion_ring_size = U32::new(self.completions.size);
        desc.vector = index as u8;
        desc
    }

    /// Posts `count` buffers.
    fn fill(&mut self, machine: &Machine, ring: usize, count: u32) {
        for _ in 0..count {
            let info = &self.info[ring][self.rings[ring].fill as usize];
            let buffer = RxBuffer::new()
                .with_length(info.len)
                .with_body(info.body)
                .with_generation(self.rings[ring].generation);
            let desc = RxDesc {
                address: U64::new(info.address),
                buffer: U32::new(buffer.into_bits()),
                reserved: U32::ZERO,
            };
            machine.ram().write_obj(self.rings[ring].at(self.rings[ring].fill), &desc).unwrap();
            self.rings[ring].advance_fill();
        }
    }

    /// One completion; a packet if it ends one.
    fn take(&mut self, machine: &Machine, completion: &RxCompletion) -> Option<Received> {
        let place = RxPlace::from_bits(completion.place.get());
        let length = RxLength::from_bits(completion.length.get());
        let verdict = RxVerdict::from_bits(completion.verdict.get());
        let ring = self.ids.iter().position(|id| *id == place.ring()).expect("one of the queue's rings");
        let index = u32::from(place.index());
        let info = &self.info[ring][index as usize];
        let desc: RxDesc = machine.ram().read_obj(self.rings[ring].at(index)).unwrap();
        let buffer = RxBuffer::from_bits(desc.buffer.get());
        assert_eq!((desc.address.get(), buffer.length()), (info.address, info.len), "descriptor left alone");
        assert_eq!(verdict.kind(), RX_COMPLETION);
        assert!(length.length() <= info.len && length.length() > 0);
        let mut bytes = vec![0; usize::from(length.length())];
        machine.ram().read(info.address, &mut bytes).unwrap();
        if place.start_of_packet() {
            assert!(ring == 0 && !info.body, "a packet starts in a head buffer of the first ring");
            assert!(self.partial.is_none());
            self.partial = Some(bytes);
        } else {
            assert!(info.body, "a packet goes on in body buffers");
            self.partial.as_mut().expect("a packet was started").extend(bytes);
        }
        self.repost(machine, ring, index);
        if !place.end_of_packet() {
            return None;
        }
        assert!(!length.error());
        assert_eq!(verdict.checksum(), 0, "would be taken for a partial checksum");
        if verdict.l4_checksum_ok() && (verdict.ipv6() || verdict.ip_checksum_ok()) {
            assert!((verdict.tcp() || verdict.udp()) && !verdict.fragment(), "WARN_ON_ONCE of the driver");
        }
        let tag = length.tag_stripped().then_some(length.tag());
        Some(Received { bytes: self.partial.take().unwrap(), tag, place, verdict })
    }

    /// Buffers before the completed one were passed over and are posted again with those used.
    fn repost(&mut self, machine: &Machine, ring: usize, index: u32) {
        self.rings[ring].comp = index;
        let free = self.rings[ring].free();
        self.fill(machine, ring, free);
    }
}
