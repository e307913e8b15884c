//! The machine.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use device_model::doorbell::{Bell, Doorbell, DoorbellError, DoorbellPage, Doorbells};
use device_model::irq::Interrupts;
use device_model::net::MacAddr;
use device_model::ram::{GuestRam, Ram};
use device_model::save::{Record, RestoreError};
use device_model::time::Instant;
use parking_lot::Mutex;
use pci::Device;
use pvrdma_driver::Platform;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::register::{BAR_REGISTERS, BAR_UAR, Register, Vector};
use verbs::Provider;
use vm_memory::GuestAddress;

use super::pages::SharedPages;
use crate::{Bells, Config, ConfigError, Next, Parts, Pvrdma};

/// What free pages are filled with. A page that changes while it is free was written after the guest took it back.
pub const PAGE_POISON: u8 = 0xdb;

/// Page number at which the guest believes the doorbell pages to start.
const DOORBELL_PFN: u64 = 0xfe00_0000 / PAGE_SIZE;
/// Batches after which a device that still has more to do is taken to never end.
const MAX_BATCHES: u32 = 100_000;

/// A bell that counts.
struct CountingBell {
    file: File,
    rings: AtomicU64,
}

impl CountingBell {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            file: File::open("/dev/null").expect("there is a null device"),
            rings: AtomicU64::new(0),
        })
    }

    fn take(&self) -> bool {
        self.rings.swap(0, Ordering::SeqCst) > 0
    }
}

impl AsFd for CountingBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Bell for CountingBell {
    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
    }
}

/// Interrupts that are counted.
#[derive(Default)]
struct CountingInterrupts([AtomicU64; Vector::COUNT as usize]);

impl Interrupts for CountingInterrupts {
    fn signal(&self, vector: u16) {
        self.0[usize::from(vector)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Doorbells as a hypervisor would catch them.
struct Registry {
    room: usize,
    bells: Mutex<HashMap<Doorbell, Arc<dyn Bell>>>,
    pages: SharedPages,
    /// Writes that stopped a CPU, or would have.
    stops: AtomicU64,
}

impl Doorbells for Registry {
    fn register(&self, doorbell: Doorbell, bell: Arc<dyn Bell>) -> Result<(), DoorbellError> {
        let mut bells = self.bells.lock();
        if bells.contains_key(&doorbell) {
            return Err(DoorbellError::Exists);
        }
        if bells.len() >= self.room {
            return Err(DoorbellError::Exhausted);
        }
        bells.insert(doorbell, bell);
        Ok(())
    }

    fn unregister(&self, doorbell: Doorbell) {
        self.bells.lock().remove(&doorbell);
    }

    fn share(&self, bar: u8, offset: u64, bell: Arc<dyn Bell>) -> Option<Box<dyn DoorbellPage>> {
        (bar == BAR_UAR).then(|| self.pages.share(offset, bell))
    }
}

/// Pages that nobody uses.
struct Pages {
    free: Vec<u64>,
}

/// Sizes of a machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineConfig {
    /// The device.
    pub device: Config,
    /// Bytes of memory.
    pub ram: u64,
    /// Doorbells the hypervisor can catch; the others arrive as register writes.
    pub doorbells: usize,
    /// Group bells.
    pub groups: usize,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            device: Config::new(MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56])),
            ram: 16 << 20,
            doorbells: 4096,
            groups: 4,
        }
    }
}

/// A machine with one device whose bus mastering is on.
pub struct Machine {
    /// The device.
    pub device: Pvrdma,
    /// Memory, from address 0; page 0 is never given out.
    pub ram: Arc<Ram>,
    interrupts: Arc<CountingInterrupts>,
    registry: Arc<Registry>,
    work: Arc<CountingBell>,
    groups: Vec<Arc<CountingBell>>,
    unread: Arc<CountingBell>,
    pages: Mutex<Pages>,
    clock: Arc<AtomicU64>,
    interface_up: Arc<AtomicBool>,
}

impl Machine {
    /// A machine whose device uses `provider`, which is given the memory.
    pub fn boot(
        config: MachineConfig,
        provider: impl FnOnce(Arc<dyn GuestRam>) -> Box<dyn Provider>,
    ) -> Guest {
        Self::try_boot(config, provider).expect("the device can be driven")
    }

    /// The same, unless no driver could work with such a device.
    pub fn try_boot(
        config: MachineConfig,
        provider: impl FnOnce(Arc<dyn GuestRam>) -> Box<dyn Provider>,
    ) -> Result<Guest, ConfigError> {
        let size = usize::try_from(config.ram).expect("memory fits the host");
        let ram = Arc::new(Ram::from_ranges(&[(GuestAddress(0), size)]).expect("there is enough memory"));
        let interrupts = Arc::new(CountingInterrupts::default());
        let registry = Arc::new(Registry {
            room: config.doorbells,
            bells: Mutex::default(),
            pages: SharedPages::default(),
            stops: AtomicU64::new(0),
        });
        let clock = Arc::new(AtomicU64::new(0));
        let (work, unread) = (CountingBell::new(), CountingBell::new());
        let groups: Vec<_> = (0..config.groups).map(|_| CountingBell::new()).collect();
        let reader = clock.clone();
        let interface_up = Arc::new(AtomicBool::new(true));
        let interface = interface_up.clone();
        let parts = Parts {
            provider: provider(ram.clone()),
            ram: ram.clone(),
            interrupts: interrupts.clone(),
            doorbells: registry.clone(),
            bells: Bells {
                work: work.clone(),
                groups: groups.iter().map(|bell| bell.clone() as Arc<dyn Bell>).collect(),
                unread: unread.clone(),
            },
            clock: Box::new(move || Instant::from_nanos(reader.load(Ordering::Relaxed))),
            interface_up: Box::new(move || interface.load(Ordering::Relaxed)),
        };
        let device = Pvrdma::new(config.device, parts)?;
        device.set_bus_master(true);
        let pages = Mutex::new(Pages { free: scattered_pages(&ram, config.ram) });
        Ok(Guest(Arc::new(Self {
            device,
            ram,
            interrupts,
            registry,
            work,
            groups,
            unread,
            pages,
            clock,
            interface_up,
        })))
    }

    /// Time now.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.load(Ordering::Relaxed))
    }

    /// Brings the paired network interface up or down.
    pub fn set_interface(&self, up: bool) {
        self.interface_up.store(up, Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.clock.fetch_add(u64::try_from(time.as_nanos()).expect("a short time"), Ordering::Relaxed);
    }

    /// Answers group bells.
    pub fn answer_bells(&self) {
        for (group, bell) in self.groups.iter().enumerate() {
            if bell.take() {
                self.device.rang(group);
            }
        }
    }

    /// Does what the I/O thread would do once: answers bells and serves the device.
    pub fn serve(&self) -> Next {
        self.work.take();
        self.answer_bells();
        self.device.service(self.now())
    }

    /// Does what the I/O thread would do with a frame from the link. Returns whether it was for the device.
    pub fn receive(&self, frame: &[u8]) -> bool {
        self.answer_bells();
        self.device.receive(self.now(), frame)
    }

    /// Serves the device until it has nothing more to do at this time.
    pub fn run(&self) -> Next {
        for _ in 0..MAX_BATCHES {
            let next = self.serve();
            if !next.more {
                return next;
            }
        }
        panic!("The device never comes to rest");
    }

    /// Whether the I/O thread has been woken since it last looked.
    pub fn is_woken(&self) -> bool {
        self.work.rings.load(Ordering::SeqCst) > 0
            || self.groups.iter().any(|bell| bell.rings.load(Ordering::SeqCst) > 0)
    }

    /// Times an empty poll was caught by the hypervisor.
    pub fn caught_polls(&self) -> u64 {
        self.unread.rings.load(Ordering::Relaxed)
    }

    /// Doorbells that stopped a CPU, or would have, since the machine was made.
    pub fn stops(&self) -> u64 {
        self.registry.stops.load(Ordering::Relaxed)
    }

    /// Takes the device's state out, and puts it back into a device that knows nothing any more. Memory stays.
    ///
    /// # Errors
    ///
    /// What the device says of a record that `change` has spoilt.
    pub fn move_device(&self, change: impl FnOnce(Record) -> Record) -> Result<(), RestoreError> {
        let record = self.device.save().expect("device can be saved");
        self.device.reset();
        self.device.set_bus_master(true);
        self.work.take();
        for bell in &self.groups {
            bell.take();
        }
        self.device.restore(&change(record))
    }

    /// Doorbells registered with the hypervisor.
    pub fn registered_doorbells(&self) -> usize {
        self.registry.bells.lock().len()
    }

    /// Interrupts of a vector since the last call.
    pub fn take_interrupts(&self, vector: Vector) -> u64 {
        self.interrupts.0[vector as usize].swap(0, Ordering::Relaxed)
    }

    /// Panics if the device has written to a page that the guest has taken back or never used.
    pub fn check_free_pages(&self) {
        for page in &self.pages.lock().free {
            self.check_poison(*page);
        }
    }

    /// Poisons free pages again, for a test whose guest scribbles on them itself.
    pub fn poison_free_pages(&self) {
        for page in &self.pages.lock().free {
            self.memory().write(*page, &[PAGE_POISON; PAGE_SIZE as usize]).expect("page is RAM");
        }
    }

    /// Pages that are free.
    pub fn free_pages(&self) -> usize {
        self.pages.lock().free.len()
    }

    fn check_poison(&self, page: u64) {
        let mut bytes = [0; PAGE_SIZE as usize];
        self.memory().read(page, &mut bytes).expect("page is RAM");
        assert!(
            bytes.iter().all(|byte| *byte == PAGE_POISON),
            "Page {page:#x} was written while it was free"
        );
    }

    /// Memory as devices see it.
    pub fn memory(&self) -> &dyn GuestRam {
        &*self.ram
    }
}

/// All pages but the first, poisoned, in an order in which few follow one another.
fn scattered_pages(ram: &Ram, bytes: u64) -> Vec<u64> {
    let ram: &dyn GuestRam = ram;
    let count = bytes / PAGE_SIZE;
    let mut pages: Vec<u64> = (1..count).map(|page| page * PAGE_SIZE).collect();
    for page in &pages {
        ram.write(*page, &[PAGE_POISON; PAGE_SIZE as usize]).expect("page is RAM");
    }
    pages.sort_by_key(|page| (page / PAGE_SIZE % 7, *page));
    pages
}

/// A handle to a [`Machine`], and the platform that a driver runs on.
#[derive(Clone)]
pub struct Guest(Arc<Machine>);

impl Deref for Guest {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl Platform for Guest {
    fn read_register(&self, register: Register) -> u32 {
        let mut word = [0; 4];
        self.device.read(BAR_REGISTERS, register.offset(), &mut word);
        u32::from_le_bytes(word)
    }

    fn write_register(&self, register: Register, value: u32) {
        self.device.write(BAR_REGISTERS, register.offset(), &value.to_le_bytes());
    }

    fn ring(&self, page: u32, offset: u64, value: u32) {
        let offset = u64::from(page) * PAGE_SIZE + offset;
        if self.registry.pages.store(offset, value) {
            return;
        }
        self.registry.stops.fetch_add(1, Ordering::Relaxed);
        let caught =
            self.registry.bells.lock().get(&Doorbell { bar: BAR_UAR, offset, value: Some(value) }).cloned();
        match caught {
            Some(bell) => bell.ring(),
            None => self.device.write(BAR_UAR, offset, &value.to_le_bytes()),
        }
    }

    fn doorbell_pfn(&self) -> u64 {
        DOORBELL_PFN
    }

    fn wait_response(&self) -> bool {
        self.take_interrupts(Vector::Response) == 1
    }

    fn alloc_page(&self) -> u64 {
        let page = self.pages.lock().free.pop().expect("memory is not used up");
        self.check_poison(page);
        self.write(page, &[0; PAGE_SIZE as usize]);
        page
    }

    fn free_page(&self, page: u64) {
        self.write(page, &[PAGE_POISON; PAGE_SIZE as usize]);
        self.pages.lock().free.insert(0, page);
    }

    fn read(&self, address: u64, bytes: &mut [u8]) {
        self.memory().read(address, bytes).expect("address is RAM");
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory().write(address, bytes).expect("address is RAM");
    }

    fn load(&self, address: u64) -> u32 {
        self.memory().load_u32(address, Ordering::Acquire).expect("word is RAM")
    }

    fn store(&self, address: u64, value: u32) {
        self.memory().store_u32(address, value, Ordering::Release).expect("word is RAM");
    }
}
