//! A driver that works like the Linux one, whose assertions (`BUG_ON`) are assertions here.

mod receive;
mod rings;
mod transmit;

use pci::Device;
use vmxnet3::spec::desc::DESC_SIZE;
use vmxnet3::spec::regs::{BAR_CONTROL, BAR_DATA};
use vmxnet3::spec::shared::*;
use vmxnet3::spec::{Features, RxMode, SHARED_MAGIC};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

pub use self::receive::Received;
use self::receive::RxQueue;
use self::rings::{CommandRing, CompletionRing};
pub use self::transmit::Offload;
use self::transmit::TxQueue;
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
        let features = Features::RX_CHECKSUM | Features::RX_VLAN | Features::LRO;
        Self { queues: 1, tx_ring: 32, rx_ring: 32, body_ring: 32, mtu: 1500, features }
    }
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

    fn write_shared(&self) {
        let mut shared = DriverShared::new_zeroed();
        shared.magic = U32::new(SHARED_MAGIC);
        shared.misc.features = U64::new(self.options.features.bits());
        shared.misc.queue_descs = U64::new(QUEUES);
        shared.misc.queue_descs_len = U32::new(u32::from(self.options.queues) * 512);
        shared.misc.mtu = U32::new(self.options.mtu);
        // `1 + MAX_SKB_FRAGS` with LRO on.
        let lro = self.options.features.contains(Features::LRO);
        shared.misc.max_rx_buffers = U16::new(if lro { 18 } else { 0 });
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
}

/// Address of a transmit queue's descriptor.
pub fn tx_desc(queue: usize) -> u64 {
    QUEUES + queue as u64 * QUEUE_DESC_SIZE
}
