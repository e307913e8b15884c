//! A guest that writes anything anywhere: registers, config space, rings and buffers of a block device.
//!
//! Whatever it does, the device neither panics nor keeps its thread busy, does not change a read-only image, and
//! works again after a function level reset.

mod driver;

use std::sync::Arc;

use driver::*;
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::NamedTempFile;
use virtio::Block;
use virtio::block::RawImage;

const SECTORS: usize = 64;
const QUEUE_SIZE: u16 = 16;

#[derive(Clone, Debug)]
enum Step {
    Config(u16, Vec<u8>),
    Register(u64, Vec<u8>),
    Memory(u64, Vec<u8>),
    Descriptor { queue: u16, index: u16, descriptor: Descriptor },
    Request { queue: u16, kind: u32, sector: u64, parts: Vec<(u64, u32, bool)> },
    Offer(u16, u16),
    Status(u8),
    Run,
}

/// Addresses near everything that matters, and some that are nowhere.
fn address() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        Just(desc(0)),
        Just(avail(0)),
        Just(used(0)),
        Just(desc(1)),
        Just(DATA),
        Just(RAM_SIZE as u64 - 8)
    ];
    prop_oneof![4 => (near, 0..64_u64).prop_map(|(base, offset)| base + offset), 1 => any::<u64>()]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![0..40_u32, Just(512), Just(1024), Just(u32::MAX), any::<u32>()]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 1..=8),
        any::<u16>().prop_map(|value| value.to_le_bytes().to_vec()),
        (0..4_u32).prop_map(|value| value.to_le_bytes().to_vec()),
        address().prop_map(|address| address.to_le_bytes().to_vec()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let queue = || 0..2_u16;
    let register =
        prop_oneof![0..0x40_u64, 0x0ff8..0x1010_u64, 0x1ff8..0x2048_u64, 0x3000..0x3010_u64, 0..0x8000_u64];
    let descriptor = (address(), length(), 0..8_u16, prop_oneof![0..QUEUE_SIZE + 2, any::<u16>()]).boxed();
    let part = (address(), length(), any::<bool>());
    let kind = prop_oneof![0..14_u32, any::<u32>()];
    let sector = prop_oneof![0..SECTORS as u64 + 2, any::<u64>()];
    prop_oneof![
        1 => (0..0x120_u16, bytes()).prop_map(|(at, data)| Step::Config(at, data)),
        4 => (register, bytes()).prop_map(|(at, data)| Step::Register(at, data)),
        2 => (address(), bytes()).prop_map(|(at, data)| Step::Memory(at, data)),
        2 => (queue(), 0..QUEUE_SIZE, descriptor)
            .prop_map(|(queue, index, descriptor)| Step::Descriptor { queue, index, descriptor }),
        4 => (queue(), kind, sector, vec(part, 0..4))
            .prop_map(|(queue, kind, sector, parts)| Step::Request { queue, kind, sector, parts }),
        2 => (queue(), 0..QUEUE_SIZE + 1).prop_map(|(queue, head)| Step::Offer(queue, head)),
        1 => any::<u8>().prop_map(Step::Status),
        3 => Just(Step::Run),
    ]
}

fn take(driver: &mut Driver, step: &Step) {
    match step {
        Step::Config(at, data) => {
            driver.function.config_write(*at, data);
            driver.function.config_read(*at, &mut data.clone());
        }
        Step::Register(at, data) => {
            driver.write(*at, data);
            driver.function.read(0, *at, &mut data.clone());
        }
        Step::Memory(at, data) => {
            let _ = driver.try_poke(*at, data);
        }
        Step::Descriptor { queue, index, descriptor } => {
            driver.write_descriptor(desc(*queue), *index, *descriptor);
        }
        Step::Request { queue, kind, sector, parts } => {
            driver.poke(DATA, &kind.to_le_bytes());
            driver.poke(DATA + 8, &sector.to_le_bytes());
            let mut all = vec![(DATA, 16, false)];
            all.extend(parts);
            all.push((DATA + 0x100, 1, true));
            driver.submit(*queue, &all);
        }
        Step::Offer(queue, head) => driver.offer(*queue, *head),
        Step::Status(status) => driver.set_status(*status),
        Step::Run => driver.run(),
    }
}

/// Resets the function as Linux does and asks the disk for its serial.
fn works_after_reset(driver: &mut Driver) -> bool {
    let express = driver.capabilities(0x10)[0];
    driver.function.config_write(express + 8, &0x8000_u16.to_le_bytes());
    driver.enable_function();
    driver.start(VERSION_1, QUEUE_SIZE);
    driver.poke(DATA, &8_u32.to_le_bytes());
    driver.submit(1, &[(DATA, 16, false), (DATA + 0x200, 20, true), (DATA + 0x300, 1, true)]);
    driver.run();
    driver.used(1) == Some((0, 21)) && driver.peek::<20>(DATA + 0x200).starts_with(b"serial")
}

proptest! {
    #[test]
    fn any_sequence_leaves_a_device_that_works_after_reset(steps in vec(step(), 1..120), read_only: bool) {
        let content: Vec<u8> = (0..SECTORS).flat_map(|sector| [sector as u8; 512]).collect();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let image = Arc::new(RawImage::open(file.path(), read_only).unwrap());
        let mut driver = Driver::new(Arc::new(Block::new(image, 2, "serial")));
        driver.start(VERSION_1 | EVENT_IDX | INDIRECT_DESC, QUEUE_SIZE);
        for step in &steps {
            take(&mut driver, step);
        }
        driver.run();
        prop_assert!(works_after_reset(&mut driver));
        let after = std::fs::read(file.path()).unwrap();
        prop_assert_eq!(after.len(), content.len());
        prop_assert!(!read_only || after == content);
    }
}
