//! A guest that does anything to a device with a real engine behind it: registers, commands, rings, doorbells, memory. What
//! it sends comes back to it.

#![no_main]

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use device_model::net::{Link, MacAddr};
use libfuzzer_sys::fuzz_target;
use pci::Device;
use pvrdma::Config;
use pvrdma::test_utils::{Guest, Machine, MachineConfig};
use pvrdma_driver::{Driver, Platform};
use pvrdma_spec::command::{Opcode, REQUEST_SIZE};
use pvrdma_spec::register::Register;
use pvrdma_spec::{PAGE_SIZE, version};
use roce::{RoceConfig, RoceProvider};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Memory is small, so that addresses hit something.
const RAM: u64 = 1 << 20;

/// A number that is likely to mean something.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Word {
    Small(u8),
    Bit(u8),
    Page(u8),
    Any(u32),
}

impl Word {
    const fn value(self) -> u32 {
        match self {
            Self::Small(value) => (value % 16) as u32,
            Self::Bit(bit) => 1 << (bit % 32),
            Self::Page(page) => (page as u32) << 12,
            Self::Any(value) => value,
        }
    }
}

/// Something a guest does.
#[derive(Arbitrary, Debug)]
enum Act {
    Register(u8, Word),
    Request(u8, Vec<Word>),
    Doorbell {
        page: u8,
        offset: u8,
        handle: Word,
        flags: u8,
    },
    Memory(u32, Word),
    /// A page directory entry, which is 64 bits long.
    Entry(u16, u8),
    Access(u8, u16, Vec<u8>),
    Receive(Vec<u8>),
    Serve,
    Pass(u16),
    BusMaster(bool),
    Link(bool),
    Reset,
}

/// A link whose frames come back.
#[derive(Default)]
struct Mirror(Mutex<Vec<Vec<u8>>>);

impl Link for Mirror {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let frame = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.0.lock().expect("no thread panicked").push(frame);
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        1500
    }
}

fuzz_target!(|acts: Vec<Act>| {
    let link = Arc::new(Mirror::default());
    let config = MachineConfig { device: Config::new(MAC), ram: RAM, ..MachineConfig::default() };
    let guest = Machine::boot(config, |ram| {
        Box::new(RoceProvider::new(RoceConfig::new(MAC), ram, link.clone()).expect("engine starts"))
    });
    let driver = Driver::probe(guest.clone(), version::QP_HANDLE).expect("driver binds");
    let _ = driver.bind(0, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    for act in acts.iter().take(256) {
        perform(&driver, &guest, &link, act);
    }
    guest.run();
    guest.device.reset();
    assert_eq!(guest.device.objects(), pvrdma::ObjectCounts::default(), "objects outlive a reset");
    assert_eq!(guest.registered_doorbells(), 0, "doorbells outlive a reset");
});

fn perform(driver: &Driver<Guest>, guest: &Guest, link: &Mirror, act: &Act) {
    match act {
        Act::Register(number, value) => {
            guest.write_register(Register::ALL[usize::from(*number) % Register::ALL.len()], value.value());
        }
        Act::Request(number, words) => {
            let mut bytes = [0; REQUEST_SIZE];
            bytes[8..12]
                .copy_from_slice(&(u32::from(*number) % (Opcode::ALL.len() as u32 + 1)).to_le_bytes());
            for (field, word) in bytes[16..].chunks_exact_mut(4).zip(words) {
                field.copy_from_slice(&word.value().to_le_bytes());
            }
            let _ = driver.post(&bytes);
        }
        Act::Doorbell { page, offset, handle, flags } => {
            guest.ring(
                u32::from(page % 4),
                u64::from(offset % 4) * 4,
                u32::from(*flags) << 29 | handle.value() & 0xff_ffff,
            );
        }
        Act::Memory(at, value) => guest.store(u64::from(*at) % (RAM / 4) * 4, value.value()),
        Act::Entry(at, page) => {
            let at = u64::from(*at) * 8 % RAM;
            guest.write(at, &(u64::from(*page) * PAGE_SIZE).to_le_bytes());
        }
        Act::Access(bar, at, data) => {
            let mut data = data.iter().copied().take(8).collect::<Vec<_>>();
            guest.device.write(bar % 4, u64::from(*at), &data);
            guest.device.read(bar % 4, u64::from(*at), &mut data);
        }
        Act::Receive(frame) => drop(guest.receive(frame)),
        Act::Serve => {
            guest.run();
            let frames = std::mem::take(&mut *link.0.lock().expect("no thread panicked"));
            frames.iter().take(256).for_each(|frame| drop(guest.receive(frame)));
        }
        Act::Pass(millis) => guest.pass(Duration::from_millis(u64::from(*millis))),
        Act::BusMaster(enabled) => guest.device.set_bus_master(*enabled),
        Act::Link(up) => guest.device.set_link(*up),
        Act::Reset => {
            guest.device.reset();
            guest.device.set_bus_master(true);
            guest.write_register(Register::DsrLow, driver.region as u32);
            guest.write_register(Register::DsrHigh, 0);
            guest.write_register(Register::Ctl, 0);
        }
    }
}
