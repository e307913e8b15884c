//! The transport as a driver sees it, with the entropy device behind it.

mod driver;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use device_model::doorbell::{Bell, Doorbell, DoorbellError, Doorbells};
use driver::*;
use virtio::{Buffer, Malformed, Rng, TransportError, VirtioDevice, VirtioPci, Wiring};

/// Keeps its buffers until told.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<Buffer>>,
    malformed: AtomicBool,
}

impl VirtioDevice for Keeper {
    fn id(&self) -> u16 {
        42
    }

    fn class(&self) -> [u8; 3] {
        [0xff, 0, 0]
    }

    fn features(&self) -> u64 {
        1 << 3
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![8, 256]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        data.fill(offset as u8);
    }

    fn handle(&self, _: u16, buffer: Buffer) -> Result<(), Malformed> {
        self.kept.lock().unwrap().push(buffer);
        if self.malformed.load(SeqCst) { Err(Malformed("test")) } else { Ok(()) }
    }
}

fn keeper() -> (Driver, Arc<Keeper>) {
    let keeper = Arc::new(Keeper::default());
    (Driver::new(keeper.clone()), keeper)
}

const OFFERED: u64 = VERSION_1 | INDIRECT_DESC | EVENT_IDX | 1 << 3;

#[test]
fn capabilities_name_every_structure() {
    let (driver, _) = keeper();
    let found: Vec<_> = driver
        .capabilities(0x09)
        .into_iter()
        .map(|at| {
            let mut cap = [0; 20];
            driver.function.config_read(at, &mut cap);
            let word = |i: usize| u32::from_le_bytes([cap[i], cap[i + 1], cap[i + 2], cap[i + 3]]);
            (cap[3], cap[4], word(8), word(12))
        })
        .collect();
    let expected =
        [(1, 0, 0, 56), (3, 0, 0x1000, 1), (4, 0, 0x2000, 0x1000), (2, 0, 0x3000, 0x1000), (5, 0, 0, 0)];
    assert_eq!(found, expected);
}

#[test]
fn firmware_reaches_the_structures_by_config_space() {
    let (driver, _) = keeper();
    let window = driver.capabilities(0x09)[4];
    driver.function.config_write(window + 8, &0x12_u32.to_le_bytes());
    driver.function.config_write(window + 12, &2_u32.to_le_bytes());
    let mut queues = [0; 2];
    driver.function.config_read(window + 16, &mut queues);
    assert_eq!(u16::from_le_bytes(queues), 2);
}

#[test]
fn registers_read_as_the_specification_says_after_reset() {
    let (driver, _) = keeper();
    assert_eq!(driver.device_features(), OFFERED);
    assert_eq!(u16::from_le_bytes(driver.read(0x12)), 2);
    assert_eq!(driver.status(), 0);
    assert_eq!(u16::from_le_bytes(driver.read(0x10)), 0xffff);
    driver.write(0x16, &1_u16.to_le_bytes());
    assert_eq!(u16::from_le_bytes(driver.read(0x18)), 256);
    assert_eq!(u16::from_le_bytes(driver.read(0x1e)), 1);
    driver.write(0x16, &2_u16.to_le_bytes());
    assert_eq!(u16::from_le_bytes(driver.read(0x18)), 0);
    assert_eq!(driver.read::<2>(0x2004), [4, 4]);
}

#[test]
fn features_that_were_not_offered_or_lack_version_1_are_refused() {
    for (features, accepted) in [(OFFERED, true), (VERSION_1 | 1, false), (1 << 3, false), (VERSION_1, true)]
    {
        let (driver, _) = keeper();
        driver.set_status(ACKNOWLEDGE | DRIVER);
        driver.set_features(features);
        driver.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        assert_eq!(driver.status() & FEATURES_OK != 0, accepted, "{features:#x}");
    }
}

#[test]
fn features_are_fixed_once_accepted_and_driver_ok_needs_them() {
    let (driver, _) = keeper();
    driver.set_status(ACKNOWLEDGE | DRIVER | DRIVER_OK);
    assert_eq!(driver.status(), ACKNOWLEDGE | DRIVER);
    driver.set_features(VERSION_1);
    driver.set_status(FEATURES_OK);
    driver.set_features(u64::MAX);
    driver.write(0x08, &0_u32.to_le_bytes());
    assert_eq!(u32::from_le_bytes(driver.read(0x0c)), 0);
    assert_eq!(driver.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK);
}

#[test]
fn queue_registers_hold_while_disabled_and_are_fixed_once_enabled() {
    let (mut driver, _) = keeper();
    driver.write(0x18, &3_u16.to_le_bytes());
    assert_eq!(u16::from_le_bytes(driver.read(0x18)), 8);
    driver.write(0x20, &0x1234_5678_9abc_def1_u64.to_le_bytes());
    assert_eq!(u64::from_le_bytes(driver.read(0x20)), 0x1234_5678_0000_0000);
    driver.start_queue(0, 4);
    driver.write(0x18, &8_u16.to_le_bytes());
    driver.write(0x20, &0_u32.to_le_bytes());
    assert_eq!(u16::from_le_bytes(driver.read(0x18)), 4);
    assert_eq!(u64::from_le_bytes(driver.read(0x20)), desc(0));
}

#[test]
fn vector_that_does_not_exist_reads_back_as_none() {
    let (driver, _) = keeper();
    driver.write(0x1a, &3_u16.to_le_bytes());
    assert_eq!(driver.read::<2>(0x1a), [0xff, 0xff]);
    driver.write(0x1a, &2_u16.to_le_bytes());
    assert_eq!(driver.read::<2>(0x1a), [2, 0]);
}

/// Writes down what is registered.
#[derive(Default)]
struct RecordingDoorbells(Mutex<Vec<Doorbell>>);

impl Doorbells for RecordingDoorbells {
    fn register(&self, doorbell: Doorbell, _: Arc<dyn Bell>) -> Result<(), DoorbellError> {
        self.0.lock().unwrap().push(doorbell);
        Ok(())
    }

    fn unregister(&self, _: Doorbell) {}
}

#[test]
fn each_notification_address_is_a_doorbell() {
    let (driver, keeper) = keeper();
    let doorbells = Arc::new(RecordingDoorbells::default());
    let wiring = Wiring { doorbells: doorbells.clone(), ..driver.wiring() };
    VirtioPci::new(keeper, wiring).unwrap();
    let doorbell = |offset| Doorbell { bar: 0, offset, value: None };
    assert_eq!(*doorbells.0.lock().unwrap(), [doorbell(0x3000), doorbell(0x3004)]);
}

#[test]
fn wrong_number_of_bells_is_refused() {
    let (driver, keeper) = keeper();
    let wiring = Wiring { bells: Vec::new(), ..driver.wiring() };
    let error = VirtioPci::new(keeper, wiring).err().unwrap();
    assert!(matches!(error, TransportError::Bells { queues: 2, bells: 0 }));
}

#[test]
fn random_bytes_arrive_with_an_interrupt() {
    let mut driver = Driver::new(Arc::new(Rng));
    driver.start(VERSION_1, 8);
    driver.submit(0, &[(DATA, 24, true), (DATA + 0x100, 8, true)]);
    driver.run();
    assert_eq!(driver.used(0), Some((0, 32)));
    assert_eq!(driver.router.take(), [1]);
    assert_ne!(driver.peek::<24>(DATA), [0; 24]);
    assert_ne!(driver.peek::<8>(DATA + 0x100), [0; 8]);
}

#[test]
fn buffers_before_driver_ok_wait_for_it() {
    let (mut driver, keeper) = keeper();
    driver.set_features(VERSION_1);
    driver.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
    driver.start_queue(0, 8);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert!(keeper.kept.lock().unwrap().is_empty());
    driver.set_status(DRIVER_OK);
    driver.run();
    assert_eq!(keeper.kept.lock().unwrap().len(), 1);
}

#[test]
fn late_completion_rings_the_bell_and_comes_back() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    driver.submit(0, &[(DATA, 8, false), (DATA + 8, 8, true)]);
    driver.run();
    assert_eq!(driver.used(0), None);
    let Buffer { readable, writable, token } = keeper.kept.lock().unwrap().pop().unwrap();
    assert_eq!((readable.len(), writable.len()), (8, 8));
    token.complete(5);
    assert_eq!(driver.used(0), None);
    driver.run();
    assert_eq!(driver.used(0), Some((0, 5)));
}

#[test]
fn dropped_buffer_comes_back_empty() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    driver.submit(1, &[(DATA, 8, true)]);
    driver.run();
    keeper.kept.lock().unwrap().clear();
    driver.run();
    assert_eq!(driver.used(1), Some((0, 0)));
}

#[test]
fn completion_after_a_reset_is_forgotten() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    driver.start(OFFERED, 8);
    keeper.kept.lock().unwrap().clear();
    driver.run();
    assert_eq!(driver.used(0), None);
}

#[test]
fn indirect_chain_is_followed() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    driver.chain(DATA, &[(DATA + 0x1000, 16, false), (DATA + 0x2000, 32, true)]);
    driver.write_descriptor(desc(0), 5, (DATA, 32, INDIRECT, 0));
    driver.offer(0, 5);
    driver.run();
    let buffer = keeper.kept.lock().unwrap().pop().unwrap();
    assert_eq!((buffer.readable.len(), buffer.writable.len()), (16, 32));
}

#[test]
fn nothing_happens_without_bus_mastering() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    driver.function.config_write(4, &[2, 0]);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert!(keeper.kept.lock().unwrap().is_empty());
    driver.function.config_write(4, &[6, 0]);
    driver.run();
    assert_eq!(keeper.kept.lock().unwrap().len(), 1);
}

#[test]
fn function_level_reset_returns_to_power_on() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    let express = driver.capabilities(0x10)[0];
    driver.function.config_write(express + 8, &0x8000_u16.to_le_bytes());
    driver.enable_function();
    assert_eq!((driver.status(), driver.read::<2>(0x10)), (0, [0xff, 0xff]));
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert!(keeper.kept.lock().unwrap().is_empty());
    driver.start(OFFERED, 8);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert_eq!(keeper.kept.lock().unwrap().len(), 1);
}

#[test]
fn configuration_change_moves_the_generation_and_interrupts() {
    let (mut driver, _) = keeper();
    driver.device.config_changed();
    assert_eq!((driver.read::<1>(0x15), driver.router.take()), ([1], vec![]));
    driver.start(OFFERED, 8);
    driver.device.config_changed();
    assert_eq!((driver.read::<1>(0x15), driver.router.take()), ([2], vec![0]));
}

#[test]
fn queue_without_vector_sets_the_isr_bit_until_it_is_read() {
    let mut driver = Driver::new(Arc::new(Rng));
    driver.start(VERSION_1, 8);
    driver.write(0x1a, &[0xff, 0xff]);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert!(driver.router.take().is_empty());
    assert_eq!((driver.read::<1>(0x1000), driver.read::<1>(0x1000)), ([1], [0]));
}

/// What a hostile driver can offer, each of which must break the device and nothing else.
#[test]
fn unusable_chains_break_the_device_until_reset() {
    type Attack = fn(&mut Driver);
    let attacks: [(&str, Attack); 9] = [
        ("loop", |d| {
            d.write_descriptor(desc(0), 0, (DATA, 8, NEXT, 1));
            d.write_descriptor(desc(0), 1, (DATA, 8, NEXT, 0));
            d.offer(0, 0);
        }),
        ("head out of range", |d| d.offer(0, 8)),
        ("next out of range", |d| {
            d.write_descriptor(desc(0), 0, (DATA, 8, NEXT, 9));
            d.offer(0, 0);
        }),
        ("readable behind writable", |d| d.submit(0, &[(DATA, 8, true), (DATA, 8, false)])),
        ("indirect in indirect", |d| {
            d.write_descriptor(DATA, 0, (DATA, 32, INDIRECT, 0));
            d.write_descriptor(desc(0), 0, (DATA, 16, INDIRECT, 0));
            d.offer(0, 0);
        }),
        ("indirect table outside RAM", |d| {
            d.write_descriptor(desc(0), 0, (u64::MAX - 15, 16, INDIRECT, 0));
            d.offer(0, 0);
        }),
        ("indirect table of odd length", |d| {
            d.write_descriptor(desc(0), 0, (DATA, 17, INDIRECT, 0));
            d.offer(0, 0);
        }),
        ("indirect chain longer than the queue", |d| {
            d.chain(DATA, &[(DATA, 8, false); 9]);
            d.write_descriptor(desc(0), 0, (DATA, 9 * 16, INDIRECT, 0));
            d.offer(0, 0);
        }),
        ("available index far ahead", |d| {
            d.poke(avail(0) + 2, &1000_u16.to_le_bytes());
            d.notify(0);
        }),
    ];
    for (name, attack) in attacks {
        let (mut driver, keeper) = keeper();
        driver.start(OFFERED, 8);
        driver.router.take();
        attack(&mut driver);
        driver.run();
        assert_ne!(driver.status() & NEEDS_RESET, 0, "{name}");
        assert_eq!(driver.router.take(), [0], "{name}");
        assert!(keeper.kept.lock().unwrap().is_empty(), "{name}");
        driver.start(OFFERED, 8);
        driver.submit(0, &[(DATA, 8, true)]);
        driver.run();
        assert_eq!(keeper.kept.lock().unwrap().len(), 1, "{name}");
    }
}

#[test]
fn rings_outside_ram_break_the_device() {
    for offset in [0x20, 0x28, 0x30] {
        let mut driver = Driver::new(Arc::new(Rng));
        driver.set_features(VERSION_1);
        driver.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        for (register, address) in [(0x20, desc(0)), (0x28, avail(0)), (0x30, used(0))] {
            let address = if register == offset { 0xffff_ffff_ffff_fff0 } else { address };
            driver.write(register, &address.to_le_bytes());
        }
        driver.write(0x1c, &1_u16.to_le_bytes());
        driver.poke(avail(0) + 2, &1_u16.to_le_bytes());
        driver.set_status(DRIVER_OK);
        driver.run();
        assert_ne!(driver.status() & NEEDS_RESET, 0, "ring at {offset:#x}");
        driver.start(VERSION_1, 8);
        assert_eq!(driver.status() & NEEDS_RESET, 0);
    }
}

#[test]
fn available_ring_that_ends_outside_ram_does_not_hang_the_thread() {
    let mut driver = Driver::new(Arc::new(Rng));
    driver.start(VERSION_1, 8);
    driver.set_status(0);
    driver.set_features(VERSION_1);
    driver.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
    // Flags and index are the last four bytes of RAM, the entries lie beyond.
    let ring = RAM_SIZE as u64 - 4;
    driver.poke(ring + 2, &1_u16.to_le_bytes());
    for (register, address) in [(0x20, desc(0)), (0x28, ring), (0x30, used(0))] {
        driver.write(register, &address.to_le_bytes());
    }
    driver.write(0x1c, &1_u16.to_le_bytes());
    driver.set_status(DRIVER_OK);
    driver.run();
    assert_ne!(driver.status() & NEEDS_RESET, 0);
}

#[test]
fn more_buffers_in_flight_than_the_queue_holds_break_the_device() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    for _ in 0..8 {
        driver.submit(0, &[(DATA, 8, true)]);
        driver.run();
    }
    assert_eq!((driver.status() & NEEDS_RESET, keeper.kept.lock().unwrap().len()), (0, 8));
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert_ne!(driver.status() & NEEDS_RESET, 0);
}

#[test]
fn malformed_buffer_breaks_the_device() {
    let (mut driver, keeper) = keeper();
    driver.start(OFFERED, 8);
    keeper.malformed.store(true, SeqCst);
    driver.submit(0, &[(DATA, 8, true)]);
    driver.run();
    assert_ne!(driver.status() & NEEDS_RESET, 0);
}
