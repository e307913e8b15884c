//! A guest that does anything: random registers, commands, doorbells, memory and provider events never stop the device.

mod common;

use common::{Rig, machine};
use pci::Device;
use proptest::collection::vec;
use proptest::prelude::*;
use pvrdma::test_utils::{FakeProvider, MachineConfig};
use pvrdma_driver::{Driver, Platform};
use pvrdma_spec::command::{Opcode, REQUEST_SIZE};
use pvrdma_spec::register::{Register, Vector};
use pvrdma_spec::version;
use verbs::{QpId, WcStatus};

/// Memory is small, so that random addresses hit something.
const RAM: u64 = 1 << 20;

/// One thing a guest can do.
#[derive(Clone, Debug)]
enum Act {
    /// Writes a register.
    Register(Register, u32),
    /// Sends a request with this number and these words.
    Request(u32, Vec<u32>),
    /// Rings.
    Doorbell(u32, u64, u32),
    /// Writes a word of memory.
    Memory(u64, u32),
    /// Accesses any BAR in any way.
    Access(u8, u64, Vec<u8>),
    /// Lets the I/O thread run.
    Serve,
    /// The provider finishes a request.
    Finish(u32, bool),
    /// Bus mastering.
    BusMaster(bool),
    /// Function reset and a new driver.
    Rebind,
}

/// A number that is likely to mean something: small, a flag, a page or anything.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0u32..8,
        2 => (0u32..32).prop_map(|bit| 1 << bit),
        2 => (0u32..256).prop_map(|page| page << 12),
        1 => any::<u32>(),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let register = (0..Register::ALL.len()).prop_map(|index| Register::ALL[index]);
    let number = prop_oneof![9 => 0..Opcode::ALL.len() as u32, 1 => any::<u32>()];
    let handle = prop_oneof![3 => 0u32..4, 1 => any::<u32>()];
    prop_oneof![
        2 => (register, word()).prop_map(|(register, value)| Act::Register(register, value)),
        8 => (number, vec(word(), 0..20)).prop_map(|(number, words)| Act::Request(number, words)),
        4 => (0u32..3, 0u64..3, handle, 0u32..8).prop_map(|(page, offset, handle, flags)| {
            Act::Doorbell(page, offset * 4, flags << 29 | handle)
        }),
        4 => (0..RAM / 4, word()).prop_map(|(at, value)| Act::Memory(at * 4, value)),
        1 => (any::<u8>(), 0u64..0x2000, vec(any::<u8>(), 1..=8)).prop_map(|(bar, at, data)| Act::Access(bar % 4, at, data)),
        4 => Just(Act::Serve),
        2 => (0u32..6, any::<bool>()).prop_map(|(qp, failed)| Act::Finish(qp, failed)),
        1 => any::<bool>().prop_map(Act::BusMaster),
        1 => Just(Act::Rebind),
    ]
}

fn request(number: u32, words: &[u32]) -> [u8; REQUEST_SIZE] {
    let mut bytes = [0; REQUEST_SIZE];
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    for (field, word) in bytes[16..].chunks_exact_mut(4).zip(words) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn perform(rig: &Rig, act: &Act) {
    let guest = rig.guest();
    match act {
        Act::Register(register, value) => guest.write_register(*register, *value),
        Act::Request(number, words) => drop(rig.driver.post(&request(*number, words))),
        Act::Doorbell(page, offset, value) => guest.ring(*page, *offset, *value),
        Act::Memory(at, value) => guest.store(*at, *value),
        Act::Access(bar, at, data) => {
            guest.device.write(*bar, *at, data);
            guest.device.read(*bar, *at, &mut data.clone());
        }
        Act::Serve => drop(guest.run()),
        Act::Finish(qp, failed) => {
            let status = if *failed { WcStatus::RetryExcErr } else { WcStatus::Success };
            rig.fake.finish_send(QpId(*qp), status);
            rig.fake.finish_recv(QpId(*qp), status, *failed);
        }
        Act::BusMaster(enabled) => guest.device.set_bus_master(*enabled),
        Act::Rebind => {
            guest.device.reset();
            guest.device.set_bus_master(true);
            guest.write_register(Register::DsrLow, rig.driver.region as u32);
            guest.write_register(Register::DsrHigh, 0);
            guest.write_register(Register::Ctl, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_guest_never_stops_the_device(acts in vec(act(), 1..400)) {
        let (guest, fake) = machine(MachineConfig { ram: RAM, ..MachineConfig::default() }, FakeProvider::LIMITS);
        let rig = Rig { driver: Driver::probe(guest, version::QP_HANDLE).unwrap(), fake };
        let (kernel, process) = (rig.kernel(), rig.process(1));
        let _objects = (kernel.connected_qp(), process.connected_qp(), rig.driver.create_srq(process.pd, 4, 1));
        for act in &acts {
            perform(&rig, act);
        }
        rig.guest().run();
        rig.guest().device.reset();
        prop_assert_eq!(rig.guest().device.objects(), pvrdma::ObjectCounts::default());
        prop_assert_eq!(rig.guest().registered_doorbells(), 0);
        rig.guest().device.set_bus_master(true);
        rig.guest().device.set_link(true);
        rig.guest().poison_free_pages();
        rig.guest().take_interrupts(Vector::Response);
        let again = rig.guest().clone();
        let driver = Driver::probe(again, version::QP_HANDLE);
        let alive = driver.is_ok_and(|driver| driver.query_port().is_ok());
        prop_assert!(alive);
    }
}
