//! A small driver for virtio devices behind a PCI function, without a hypervisor.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use device_model::doorbell::{Bell, NoDoorbells};
use device_model::ram::{GuestRam, Ram, RamError};
use pci::{Function, MsiMessage, MsiRouter, Msix};
use virtio::{VirtioDevice, VirtioPci, Wiring, msix_spec};
use vm_memory::GuestAddress;

pub const RAM_SIZE: usize = 0x40_0000;
/// Where tests put their buffers.
pub const DATA: u64 = 0x20_0000;

pub const VERSION_1: u64 = 1 << 32;
pub const INDIRECT_DESC: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;

pub const ACKNOWLEDGE: u8 = 1;
pub const DRIVER: u8 = 2;
pub const DRIVER_OK: u8 = 4;
pub const FEATURES_OK: u8 = 8;
pub const NEEDS_RESET: u8 = 64;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// A descriptor: address, length, flags, next.
pub type Descriptor = (u64, u32, u16, u16);

/// Counts its rings.
pub struct CountingBell {
    rings: AtomicU64,
    fd: File,
}

impl CountingBell {
    /// Whether it has rung since the last call.
    pub fn take(&self) -> bool {
        self.rings.swap(0, SeqCst) != 0
    }
}

impl AsFd for CountingBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Bell for CountingBell {
    fn ring(&self) {
        self.rings.fetch_add(1, SeqCst);
    }
}

/// Counts the interrupts of each vector.
#[derive(Default)]
pub struct CountingRouter(Mutex<Vec<u16>>);

impl CountingRouter {
    /// The vectors fired since the last call.
    pub fn take(&self) -> Vec<u16> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl MsiRouter for CountingRouter {
    fn set(&self, _: u16, _: MsiMessage) {}

    fn fire(&self, vector: u16) {
        self.0.lock().unwrap().push(vector);
    }
}

/// A device with a driver's view of it.
pub struct Driver {
    pub ram: Arc<Ram>,
    pub function: Function,
    pub device: Arc<VirtioPci>,
    pub bells: Vec<Arc<CountingBell>>,
    pub router: Arc<CountingRouter>,
    msix: Arc<Msix>,
    queues: Vec<DriverQueue>,
}

struct DriverQueue {
    size: u16,
    avail: u16,
    used: u16,
}

impl Driver {
    /// A function with memory decoding, bus mastering and all MSI-X vectors on; the device is untouched.
    pub fn new(device: Arc<dyn VirtioDevice>) -> Self {
        let ram = Arc::new(Ram::from_ranges(&[(GuestAddress(0), RAM_SIZE)]).unwrap());
        let sizes = device.queue_sizes();
        let bell = || CountingBell { rings: AtomicU64::new(0), fd: File::open("/dev/null").unwrap() };
        let bells: Vec<_> = sizes.iter().map(|_| Arc::new(bell())).collect();
        let router = Arc::new(CountingRouter::default());
        let msix = Arc::new(Msix::new(msix_spec(sizes.len() as u16), router.clone()));
        let wiring = wiring(&ram, &msix, &bells);
        let device = Arc::new(VirtioPci::new(device, wiring).unwrap());
        let function = Function::new(device.clone(), Some(msix.clone())).unwrap();
        let queues = sizes.iter().map(|_| DriverQueue { size: 0, avail: 0, used: 0 }).collect();
        let this = Self { ram, function, device, msix, bells, router, queues };
        this.enable_function();
        this
    }

    /// What the device was made with, for another.
    pub fn wiring(&self) -> Wiring {
        wiring(&self.ram, &self.msix, &self.bells)
    }

    /// Switches on memory decoding, bus mastering and MSI-X with all vectors unmasked.
    pub fn enable_function(&self) {
        self.function.config_write(4, &[6, 0]);
        let msix = self.capabilities(0x11)[0];
        self.function.config_write(msix + 2, &0x8000_u16.to_le_bytes());
        for vector in 0..=self.bells.len() as u64 {
            self.write(0x4000 + vector * 16 + 12, &[0; 4]);
        }
    }

    /// Offsets of the capabilities with `id`.
    pub fn capabilities(&self, id: u8) -> Vec<u16> {
        let mut found = Vec::new();
        let mut at = [0x34];
        self.function.config_read(0x34, &mut at);
        while at[0] != 0 {
            let offset = u16::from(at[0]);
            let mut head = [0; 2];
            self.function.config_read(offset, &mut head);
            if head[0] == id {
                found.push(offset);
            }
            at = [head[1]];
        }
        found
    }

    pub fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.function.read(0, offset, &mut data);
        data
    }

    pub fn write(&self, offset: u64, data: &[u8]) {
        self.function.write(0, offset, data);
    }

    pub fn status(&self) -> u8 {
        self.read::<1>(0x14)[0]
    }

    pub fn set_status(&self, status: u8) {
        self.write(0x14, &[status]);
    }

    pub fn device_features(&self) -> u64 {
        let word = |select: u32| {
            self.write(0x00, &select.to_le_bytes());
            u64::from(u32::from_le_bytes(self.read(0x04)))
        };
        word(0) | word(1) << 32
    }

    pub fn set_features(&self, features: u64) {
        for select in 0..2_u32 {
            self.write(0x08, &select.to_le_bytes());
            self.write(0x0c, &((features >> (32 * select)) as u32).to_le_bytes());
        }
    }

    /// Everything a driver does before it is ready: features, interrupts, queues of `size`, `DRIVER_OK`.
    pub fn start(&mut self, features: u64, size: u16) {
        self.set_status(0);
        self.set_status(ACKNOWLEDGE);
        self.set_status(ACKNOWLEDGE | DRIVER);
        self.set_features(features);
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        assert_ne!(self.status() & FEATURES_OK, 0, "features refused");
        self.write(0x10, &0_u16.to_le_bytes());
        for queue in 0..self.queues.len() as u16 {
            self.start_queue(queue, size);
        }
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        self.run();
    }

    pub fn start_queue(&mut self, queue: u16, size: u16) {
        self.queues[usize::from(queue)] = DriverQueue { size, avail: 0, used: 0 };
        let zeros = vec![0; 0x8000];
        self.poke(desc(queue), &zeros);
        self.write(0x16, &queue.to_le_bytes());
        self.write(0x18, &size.to_le_bytes());
        self.write(0x1a, &(queue + 1).to_le_bytes());
        for (offset, address) in [(0x20, desc(queue)), (0x28, avail(queue)), (0x30, used(queue))] {
            self.write(offset, &(address as u32).to_le_bytes());
            self.write(offset + 4, &((address >> 32) as u32).to_le_bytes());
        }
        self.write(0x1c, &1_u16.to_le_bytes());
    }

    pub fn poke(&self, gpa: u64, data: &[u8]) {
        self.try_poke(gpa, data).unwrap();
    }

    pub fn try_poke(&self, gpa: u64, data: &[u8]) -> Result<(), RamError> {
        let ram: &dyn GuestRam = &*self.ram;
        ram.write(gpa, data)
    }

    pub fn peek<const N: usize>(&self, gpa: u64) -> [u8; N] {
        let ram: &dyn GuestRam = &*self.ram;
        ram.read_obj(gpa).unwrap()
    }

    pub fn write_descriptor(&self, table: u64, index: u16, descriptor: Descriptor) {
        let (gpa, len, flags, next) = descriptor;
        let at = table + u64::from(index) * 16;
        self.poke(at, &gpa.to_le_bytes());
        self.poke(at + 8, &len.to_le_bytes());
        self.poke(at + 12, &flags.to_le_bytes());
        self.poke(at + 14, &next.to_le_bytes());
    }

    /// Makes `head` available and notifies.
    pub fn offer(&mut self, queue: u16, head: u16) {
        let state = &mut self.queues[usize::from(queue)];
        let slot = u64::from(state.avail % state.size);
        state.avail = state.avail.wrapping_add(1);
        let index = state.avail;
        self.poke(avail(queue) + 4 + slot * 2, &head.to_le_bytes());
        self.poke(avail(queue) + 2, &index.to_le_bytes());
        self.notify(queue);
    }

    pub fn notify(&self, queue: u16) {
        self.write(0x3000 + u64::from(queue) * 4, &queue.to_le_bytes());
    }

    /// Offers a chain of (address, length, device writes) from descriptor 0 on.
    pub fn submit(&mut self, queue: u16, parts: &[(u64, u32, bool)]) {
        self.chain(desc(queue), parts);
        self.offer(queue, 0);
    }

    /// Writes a chain from descriptor 0 of `table` on.
    pub fn chain(&self, table: u64, parts: &[(u64, u32, bool)]) {
        for (index, (gpa, len, write)) in (0_u16..).zip(parts) {
            let last = usize::from(index) + 1 == parts.len();
            let flags = if *write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.write_descriptor(table, index, (*gpa, *len, flags, index + 1));
        }
    }

    /// Lets the I/O thread's work be done, as often as bells ask for it.
    pub fn run(&self) {
        for _ in 0..10_000 {
            let rung: Vec<_> = self.bells.iter().map(|bell| bell.take()).collect();
            if !rung.contains(&true) {
                return;
            }
            for (queue, _) in (0..).zip(rung).filter(|(_, rung)| *rung) {
                self.device.process_queue(queue);
            }
        }
        panic!("the device keeps ringing its own bell");
    }

    /// The next used element: head and length.
    pub fn used(&mut self, queue: u16) -> Option<(u32, u32)> {
        let state = &mut self.queues[usize::from(queue)];
        let (size, seen) = (state.size, state.used);
        let index = u16::from_le_bytes(self.peek(used(queue) + 2));
        if index == seen {
            return None;
        }
        self.queues[usize::from(queue)].used = seen.wrapping_add(1);
        let at = used(queue) + 4 + u64::from(seen % size) * 8;
        Some((u32::from_le_bytes(self.peek(at)), u32::from_le_bytes(self.peek(at + 4))))
    }
}

fn wiring(ram: &Arc<Ram>, msix: &Arc<Msix>, bells: &[Arc<CountingBell>]) -> Wiring {
    Wiring {
        ram: ram.clone(),
        interrupts: msix.clone(),
        doorbells: Arc::new(NoDoorbells),
        bells: bells.iter().map(|bell| bell.clone() as Arc<dyn Bell>).collect(),
    }
}

/// Where the driver puts the parts of `queue`.
pub const fn desc(queue: u16) -> u64 {
    0x1_0000 * (queue as u64 + 1)
}

pub const fn avail(queue: u16) -> u64 {
    desc(queue) + 0x2000
}

pub const fn used(queue: u16) -> u64 {
    desc(queue) + 0x4000
}
