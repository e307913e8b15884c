use proptest::prelude::*;

use super::*;
use crate::assign::Window;
use crate::device::BarSpec;
use crate::testing::{Event, Fixture};

const WINDOWS: Windows = Windows {
    low: Window { base: 0xe000_0000, size: 0x1000_0000 },
    high: Window { base: 1 << 38, size: 1 << 32 },
};
const COMMAND: u16 = 0x04;

/// A slot 3 with two functions.
fn machine() -> (Root, [Fixture; 2]) {
    let fixtures = [Fixture::new(), Fixture::new()];
    let mut builder = RootBuilder::new(WINDOWS);
    for (number, fixture) in fixtures.iter().enumerate() {
        let bdf = Bdf::new(3, number as u8).unwrap();
        builder.plug(bdf, fixture.function.clone()).unwrap();
    }
    (builder.build().unwrap(), fixtures)
}

fn ecam(slot: u64, function: u64, register: u16) -> u64 {
    slot << 15 | function << 12 | u64::from(register)
}

fn ecam_u32(root: &Root, offset: u64) -> u32 {
    let mut data = [0; 4];
    root.ecam_read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn base_of(function: &Function, bar: u8) -> u64 {
    let (_, base) = function.bars().into_iter().find(|(spec, _)| spec.index == bar).unwrap();
    base.unwrap()
}

fn enable(root: &Root, function: u64) {
    root.ecam_write(ecam(3, function, COMMAND), &[0b110, 0]);
}

#[test]
fn host_bridge_is_at_zero_and_empty_addresses_read_as_ones() {
    let (root, _) = machine();
    assert_eq!(ecam_u32(&root, 0x08), 0x0600_0000);
    assert_eq!(ecam_u32(&root, ecam(4, 0, 0)), u32::MAX);
    assert_eq!(ecam_u32(&root, ecam(3, 2, 0)), u32::MAX);
    assert_eq!(ecam_u32(&root, ECAM_SIZE), u32::MAX);
    assert_eq!(ecam_u32(&root, u64::MAX - 1), u32::MAX);
}

#[test]
fn function_zero_of_a_shared_slot_says_multifunction() {
    let (root, _) = machine();
    assert_eq!(ecam_u32(&root, ecam(3, 0, 0x0c)), 0x0080_0000);
    assert_eq!(ecam_u32(&root, ecam(3, 1, 0x0c)), 0);
    root.reset();
    assert_eq!(ecam_u32(&root, ecam(3, 0, 0x0c)), 0x0080_0000);
}

#[test]
fn ports_and_ecam_reach_the_same_registers() {
    let (root, _) = machine();
    root.port_write(CONFIG_ADDRESS, &(1_u32 << 31 | 3 << 11 | 1 << 8 | 0x3c).to_le_bytes());
    root.port_write(CONFIG_DATA, &[0x2a]);
    assert_eq!(ecam_u32(&root, ecam(3, 1, 0x3c)), 0x2a);
    root.port_write(CONFIG_ADDRESS, &(1_u32 << 31 | 3 << 11 | 1 << 8).to_le_bytes());
    let mut device = [0; 2];
    root.port_read(CONFIG_DATA + 2, &mut device);
    assert_eq!(u16::from_le_bytes(device), 0x0820);
}

#[test]
fn config_data_without_enable_or_on_another_bus_reads_as_ones() {
    let (root, _) = machine();
    for address in [3_u32 << 11, 1 << 31 | 1 << 16] {
        root.port_write(CONFIG_ADDRESS, &address.to_le_bytes());
        let mut data = [0; 4];
        root.port_read(CONFIG_DATA, &mut data);
        assert_eq!(data, [0xff; 4]);
    }
}

#[test]
fn address_register_takes_whole_writes_only() {
    let (root, _) = machine();
    root.port_write(CONFIG_ADDRESS, &u32::MAX.to_le_bytes());
    root.port_write(CONFIG_ADDRESS, &[0]);
    root.port_write(CONFIG_ADDRESS + 1, &[0]);
    let mut data = [0; 4];
    root.port_read(CONFIG_ADDRESS, &mut data);
    assert_eq!(u32::from_le_bytes(data), 0x80ff_fffc);
}

#[test]
fn firmware_addresses_are_distinct_and_decoded_once_enabled() {
    let (root, [zero, one]) = machine();
    assert!(!root.memory_read(WINDOWS.low.base, &mut [0; 4]));
    enable(&root, 0);
    enable(&root, 1);
    assert_ne!(base_of(&zero.function, 1), base_of(&one.function, 1));
    one.recorder.take();
    assert!(root.memory_write(base_of(&one.function, 2) + 0x3ffc, &[1, 2, 3, 4]));
    assert_eq!(one.recorder.take(), [Event::Write(2, 0x3ffc, vec![1, 2, 3, 4])]);
}

#[test]
fn moved_bar_is_found_at_its_new_address_only() {
    let (root, [zero, _]) = machine();
    enable(&root, 0);
    let old = base_of(&zero.function, 1);
    root.ecam_write(ecam(3, 0, 0x14), &0xef00_0000_u32.to_le_bytes());
    assert!(!root.memory_read(old, &mut [0; 4]));
    assert!(root.memory_read(0xef0f_ffff, &mut [0; 1]));
    assert!(!root.memory_read(0xef10_0000, &mut [0; 1]));
}

#[test]
fn access_is_cut_at_the_end_of_the_bar() {
    let (root, [zero, _]) = machine();
    enable(&root, 0);
    let end = base_of(&zero.function, 1) + 0x10_0000;
    zero.recorder.take();
    let mut data = [0; 8];
    assert!(root.memory_read(end - 3, &mut data));
    assert_eq!(data, [0x5a, 0x5a, 0x5a, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert!(root.memory_write(end - 2, &[7; 8]));
    assert_eq!(zero.recorder.take(), [Event::Read(1, 0xf_fffd, 3), Event::Write(1, 0xf_fffe, vec![7; 2])]);
}

#[test]
fn machine_reset_restores_firmware_addresses_and_stops_decoding() {
    let (root, [zero, _]) = machine();
    enable(&root, 0);
    let base = base_of(&zero.function, 1);
    root.ecam_write(ecam(3, 0, 0x14), &0xef00_0000_u32.to_le_bytes());
    root.reset();
    assert!(!root.memory_read(0xef00_0000, &mut [0; 4]));
    enable(&root, 0);
    assert_eq!(base_of(&zero.function, 1), base);
}

#[test]
fn taken_address_and_missing_function_zero_are_refused() {
    let mut builder = RootBuilder::new(WINDOWS);
    let function = Fixture::new().function;
    assert_eq!(builder.plug(Bdf::HOST_BRIDGE, function.clone()), Err(RootError::Taken(Bdf::HOST_BRIDGE)));
    assert_eq!(builder.free_slot(), Some(1));
    let bdf = Bdf::new(1, 1).unwrap();
    builder.plug(bdf, function).unwrap();
    assert_eq!(builder.free_slot(), Some(2));
    assert_eq!(builder.build().err(), Some(RootError::NoFunctionZero(bdf)));
}

#[derive(Clone, Debug)]
enum Access {
    Port(u16, Vec<u8>),
    Ecam(u64, Vec<u8>),
    Memory(u64, Vec<u8>),
}

fn access() -> impl Strategy<Value = Access> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..=9);
    let register = (0..2_u64, 0..0x110_u16).prop_map(|(function, register)| ecam(3, function, register));
    let address = prop_oneof![any::<u64>(), 0xe000_0000..0xe030_0000_u64, (1_u64 << 38)..(1 << 38) + 0x8010];
    prop_oneof![
        (CONFIG_ADDRESS - 1..CONFIG_DATA + 5, bytes()).prop_map(|(port, data)| Access::Port(port, data)),
        (prop_oneof![register, any::<u64>()], bytes()).prop_map(|(at, data)| Access::Ecam(at, data)),
        (address, bytes()).prop_map(|(at, data)| Access::Memory(at, data)),
    ]
}

/// What no guest may change: identity, header type and capability list.
fn fixed(root: &Root) -> Vec<u32> {
    [0x00, 0x08, 0x2c, 0x34, 0x40].map(|register| ecam_u32(root, ecam(3, 1, register))).to_vec()
}

/// Whether a device access is inside its BAR.
fn contained(event: &Event, bars: &[BarSpec]) -> bool {
    let (bar, offset, length) = match event {
        Event::Read(bar, offset, length) => (*bar, *offset, *length),
        Event::Write(bar, offset, data) => (*bar, *offset, data.len()),
        _ => return true,
    };
    bars.iter().any(|spec| spec.index == bar && offset + length as u64 <= spec.size)
}

proptest! {
    #[test]
    fn any_sequence_of_accesses_keeps_identity_and_stays_inside_bars(
        accesses in prop::collection::vec(access(), 1..80),
    ) {
        let (root, fixtures) = machine();
        enable(&root, 0);
        enable(&root, 1);
        let before = fixed(&root);
        for access in accesses {
            match access {
                Access::Port(port, mut data) => {
                    root.port_write(port, &data);
                    root.port_read(port, &mut data);
                }
                Access::Ecam(at, mut data) => {
                    root.ecam_write(at, &data);
                    root.ecam_read(at, &mut data);
                }
                Access::Memory(at, mut data) => {
                    root.memory_write(at, &data);
                    root.memory_read(at, &mut data);
                }
            }
        }
        prop_assert_eq!(fixed(&root), before);
        for fixture in &fixtures {
            let bars: Vec<_> = fixture.function.bars().into_iter().map(|(spec, _)| spec).collect();
            for event in fixture.recorder.take() {
                prop_assert!(contained(&event, &bars), "{event:?}");
            }
        }
    }
}
