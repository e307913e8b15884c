//! A guest that keeps to no rule: nothing panics, every call ends, and only memory that was offered is written.

use proptest::prelude::*;
use vmxnet3::spec::RxMode;
use vmxnet3::spec::desc::DESC_SIZE;

use crate::driver::{Driver, Options, QUEUES, SHARED};
use crate::frames::{inbound, payload, segment};
use crate::machine::{Machine, RAM};
use pci::Device;

/// Addresses near everything that matters: rings, buffers, ends of RAM, and nowhere.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        16 => 0x10_0000u64..0x58_0000,
        1 => 0u64..0x1_0000,
        1 => 0x5f_0000u64..0x61_0000,
        1 => 0x8f_f000u64..0x90_1000,
        1 => any::<u64>(),
    ]
}

/// A descriptor: address and the two words after it.
fn desc() -> impl Strategy<Value = (u64, u32, u32)> {
    let words = prop_oneof![
        // Generation bits right, short, and an end of packet.
        4 => (any::<u32>(), any::<u32>()).prop_map(|(a, b)| ((a & !0x3000) | 0x8000_4000, b | 0x3000)),
        4 => any::<u32>().prop_map(|a| ((a & !0x7000) | 0x8000_0000, 0)),
        1 => any::<(u32, u32)>(),
    ];
    (address(), words).prop_map(|(address, (a, b))| (address, a, b))
}

#[derive(Clone, Debug)]
enum Step {
    Tx(u16, (u64, u32, u32)),
    Heads(u16, (u64, u32, u32)),
    Bodies(u16, (u64, u32, u32)),
    ProcessTx,
    Receive(usize),
    ReceiveTcp(usize),
    Register(u8, u64, u32),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let commands = prop_oneof![0xcafe_0003u32..0xcafe_0010, 0xf00d_0000u32..0xf00d_0013];
    prop_oneof![
        4 => (0u16..32, desc()).prop_map(|(index, desc)| Step::Tx(index, desc)),
        4 => (0u16..32, desc()).prop_map(|(index, desc)| Step::Heads(index, desc)),
        2 => (0u16..32, desc()).prop_map(|(index, desc)| Step::Bodies(index, desc)),
        2 => Just(Step::ProcessTx),
        3 => (0usize..9100).prop_map(Step::Receive),
        1 => (0usize..1400).prop_map(Step::ReceiveTcp),
        1 => (0u8..2, 0u64..512, any::<u32>()).prop_filter_map("activates elsewhere", |(bar, slot, value)| {
            // The shared area stays where it is; what it says is another test's subject.
            let offset = slot * 8;
            (bar == 0 || !matches!(offset, 0x10..=0x20)).then_some(Step::Register(bar, offset, value))
        }),
        1 => commands.prop_map(|command| Step::Register(1, 0x20, command)),
        1 => Just(Step::Restart),
    ]
}

/// Two segments that can be merged.
fn receive_tcp(machine: &Machine, len: usize) {
    let frames = [segment(0, &payload(len)), segment(len, &payload(len))];
    machine.nic.receive(frames.iter().map(Vec::as_slice));
}

fn put_desc(machine: &Machine, ring: u64, index: u16, (address, a, b): (u64, u32, u32)) {
    let desc = [&address.to_le_bytes()[..], &a.to_le_bytes(), &b.to_le_bytes()].concat();
    machine.ram().write(ring + u64::from(index) * DESC_SIZE, &desc).unwrap();
}

/// Copies the driver's own writes into the picture of what memory should be.
struct Picture(Vec<(u64, Vec<u8>)>);

impl Picture {
    fn refresh(&mut self, machine: &Machine, ranges: &[(u64, u64)]) {
        for (address, len) in ranges {
            for (base, bytes) in &mut self.0 {
                let end = *base + bytes.len() as u64;
                let (from, to) = ((*address).max(*base), address.saturating_add(*len).min(end));
                if from < to {
                    let target = &mut bytes[(from - *base) as usize..(to - *base) as usize];
                    machine.ram().read(from, target).unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_write_only_what_was_posted(steps in proptest::collection::vec(step(), 1..120)) {
        let machine = Machine::new();
        machine.poison(0x5a);
        let options = Options { mtu: 9000, ..Options::default() };
        let mut driver = Driver::open(&machine, options);
        let mode = RxMode::PROMISCUOUS | RxMode::ALL_MULTICAST;
        driver.set_mode(mode);
        let mut picture = Picture(machine.snapshot());
        let [(tx, _), (heads, _), (bodies, _)] = driver.rings(0);
        let mut writable = driver.writable();
        for step in steps {
            match step {
                Step::Tx(index, desc) => {
                    put_desc(&machine, tx, index, desc);
                    picture.refresh(&machine, &[(tx + u64::from(index) * DESC_SIZE, DESC_SIZE)]);
                }
                Step::Heads(index, desc) | Step::Bodies(index, desc) => {
                    let ring = if matches!(step, Step::Heads(..)) { heads } else { bodies };
                    put_desc(&machine, ring, index, desc);
                    writable.push((desc.0, u64::from(desc.1 & 0x3fff)));
                    picture.refresh(&machine, &[(ring + u64::from(index) * DESC_SIZE, DESC_SIZE)]);
                }
                Step::ProcessTx => {
                    // Bounded by the ring: each packet takes at least one descriptor.
                    let mut calls = 0;
                    while machine.nic.process_tx() && calls < 8 {
                        calls += 1;
                    }
                    machine.link.take();
                }
                Step::Receive(len) => machine.receive(&inbound(len)[..len]),
                Step::ReceiveTcp(len) => receive_tcp(&machine, len),
                Step::Register(bar, offset, value) => driver.write(bar, offset, value),
                Step::Restart => {
                    machine.nic.reset();
                    machine.nic.set_bus_master(true);
                    driver = Driver::open(&machine, options);
                    driver.set_mode(mode);
                    picture = Picture(machine.snapshot());
                    writable = driver.writable();
                }
            }
            // Buffers the driver posted itself at the start.
            writable.extend(driver.posted());
            writable.sort_unstable();
            writable.dedup();
        }
        picture.refresh(&machine, &writable);
        prop_assert!(picture.0 == machine.snapshot(), "memory written that was not offered");
    }

    #[test]
    fn random_shared_areas_are_survived(
        shared in proptest::collection::vec(any::<u8>(), 704),
        queues in proptest::collection::vec(any::<u8>(), 1024),
        fields in proptest::collection::vec((0usize..1728, any::<u8>()), 0..40),
        whole in any::<bool>(),
    ) {
        let machine = Machine::new();
        let driver = Driver::prepare(&machine, Options { queues: 2, ..Options::default() });
        if whole {
            // All noise but for the magic.
            machine.ram().write(SHARED + 4, &shared[4..]).unwrap();
            machine.ram().write(QUEUES, &queues).unwrap();
        } else {
            // Right but for a few bytes.
            for (offset, byte) in fields {
                let address = if offset < 704 { SHARED + offset as u64 } else { QUEUES + offset as u64 - 704 };
                machine.ram().write(address, &[byte]).unwrap();
            }
        }
        driver.activate();
        driver.set_mode(RxMode::PROMISCUOUS);
        for command in 0..0x14 {
            driver.get(0xf00d_0000 + command);
            driver.get(0xcafe_0003 + command);
        }
        for _ in 0..4 {
            machine.receive(&inbound(1000));
            machine.nic.process_tx();
        }
        machine.nic.set_link(false);
    }

    #[test]
    fn rings_that_overlay_each_other_are_survived(shift in 0u64..64, steps in proptest::collection::vec(step(), 1..60)) {
        let machine = Machine::new();
        let driver = Driver::prepare(&machine, Options::default());
        // All rings and completions in one place.
        let base = (0x10_0000 + shift * 512).to_le_bytes();
        for offset in [0x10, 0x20, 0x110, 0x118, 0x120] {
            machine.ram().write(QUEUES + offset, &base).unwrap();
        }
        prop_assert_eq!(driver.activate(), 0);
        driver.set_mode(RxMode::PROMISCUOUS);
        let ring = u64::from_le_bytes(base);
        for step in steps {
            match step {
                Step::Tx(index, desc) | Step::Heads(index, desc) | Step::Bodies(index, desc) => {
                    put_desc(&machine, ring, index, desc);
                }
                Step::Receive(len) => machine.receive(&inbound(len)),
                Step::ReceiveTcp(len) => receive_tcp(&machine, len),
                Step::Register(bar, offset, value) => driver.write(bar, offset, value),
                Step::ProcessTx | Step::Restart => {
                    machine.nic.process_tx();
                }
            }
        }
    }
}

#[test]
fn packet_that_reaches_beyond_memory_is_dropped_and_completed() {
    let machine = Machine::new();
    let mut driver = Driver::open(&machine, Options::default());
    let [(ring, _), ..] = driver.rings(0);
    let end = RAM[0].0 + RAM[0].1 as u64;
    driver.send(0, &[0; 60], 0, Default::default());
    machine.ram().write(ring, &(end - 59).to_le_bytes()).unwrap();
    machine.run_tx();
    assert!(machine.link.take().is_empty());
    assert_eq!(driver.complete_tx(0), 1);
    assert_eq!(machine.nic.stats().tx[0].errors, 1);
}
