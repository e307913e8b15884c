//! What surrounds the device in a test: memory, interrupt log, link and bell.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use device_model::doorbell::{Bell, NoDoorbells};
use device_model::irq::Interrupts;
use device_model::net::{Link, MacAddr};
use device_model::ram::{GuestRam, Ram};
use pci::Device;
use vm_memory::GuestAddress;
use vmxnet3::{Config, Vmxnet3};

/// Address of the interface under test.
pub const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
/// Somebody else's.
pub const PEER: MacAddr = MacAddr([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);

/// Guest RAM: two regions with a hole, so that ranges may cross into nowhere.
pub const RAM: [(u64, usize); 2] = [(0, 0x60_0000), (0x80_0000, 0x10_0000)];

/// A device and its surroundings.
pub struct Machine {
    pub ram: Arc<Ram>,
    pub irqs: Arc<IrqLog>,
    pub link: Arc<TestLink>,
    pub bell: Arc<TestBell>,
    pub nic: Vmxnet3,
}

impl Machine {
    /// A device with bus mastering allowed.
    pub fn new() -> Self {
        let ranges = RAM.map(|(base, len)| (GuestAddress(base), len));
        let ram = Arc::new(Ram::from_ranges(&ranges).unwrap());
        let irqs = Arc::new(IrqLog::default());
        let link = Arc::new(TestLink::default());
        let bell = Arc::new(TestBell::default());
        let nic = Vmxnet3::new(
            Config::new(MAC),
            ram.clone(),
            link.clone(),
            irqs.clone(),
            Arc::new(NoDoorbells),
            bell.clone(),
        );
        nic.set_bus_master(true);
        Self { ram, irqs, link, bell, nic }
    }

    pub fn ram(&self) -> &dyn GuestRam {
        &*self.ram
    }

    /// Runs the I/O thread's part until nothing is left; returns the number of calls.
    pub fn run_tx(&self) -> usize {
        let mut calls = 1;
        while self.nic.process_tx() {
            calls += 1;
        }
        calls
    }

    /// A frame comes by the link.
    pub fn receive(&self, frame: &[u8]) {
        self.nic.receive([frame]);
    }

    /// All of guest memory, for comparison.
    pub fn snapshot(&self) -> Vec<(u64, Vec<u8>)> {
        RAM.map(|(base, len)| {
            let mut bytes = vec![0; len];
            self.ram().read(base, &mut bytes).unwrap();
            (base, bytes)
        })
        .to_vec()
    }

    /// Fills all of guest memory with a byte.
    pub fn poison(&self, byte: u8) {
        for (base, len) in RAM {
            self.ram().write(base, &vec![byte; len]).unwrap();
        }
    }
}

/// Vectors signalled, in order.
#[derive(Default)]
pub struct IrqLog(Mutex<Vec<u16>>);

impl IrqLog {
    pub fn take(&self) -> Vec<u16> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Interrupts for IrqLog {
    fn signal(&self, vector: u16) {
        self.0.lock().unwrap().push(vector);
    }
}

/// A link that keeps what is sent.
pub struct TestLink {
    sent: Mutex<VecDeque<Vec<u8>>>,
    pub mtu: AtomicU16,
    pub full: AtomicBool,
}

impl Default for TestLink {
    fn default() -> Self {
        Self { sent: Mutex::default(), mtu: AtomicU16::new(9000), full: AtomicBool::new(false) }
    }
}

impl TestLink {
    pub fn take(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().drain(..).collect()
    }
}

impl Link for TestLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.sent.lock().unwrap().push_back(parts.iter().flat_map(|part| part.iter().copied()).collect());
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }
}

/// A bell that counts.
pub struct TestBell {
    pub rings: AtomicUsize,
    file: File,
}

impl Default for TestBell {
    fn default() -> Self {
        Self { rings: AtomicUsize::new(0), file: File::open("/dev/null").unwrap() }
    }
}

impl AsFd for TestBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Bell for TestBell {
    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::Relaxed);
    }
}
