use super::*;
use crate::testing::{BARS, Event, Fixture, MSIX};

const COMMAND: u16 = 0x04;
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const FLR: u16 = 1 << 15;

#[test]
fn header_says_what_the_device_says() {
    let f = Fixture::new();
    assert_eq!(f.config_u32(0x00), 0x0820_15ad);
    assert_eq!(f.config_u32(0x08), 0x0200_0103);
    assert_eq!(f.config_u32(0x2c), 0x0821_15ad);
    assert_eq!(f.config_u32(COMMAND), 0x0010_0000);
}

#[test]
fn writing_ones_to_a_bar_reads_back_its_size_and_kind() {
    let f = Fixture::new();
    for offset in (0x10..0x28).step_by(4) {
        f.set_config_u32(offset, u32::MAX);
    }
    let read: Vec<_> = (0x10..0x28).step_by(4).map(|offset| f.config_u32(offset)).collect();
    assert_eq!(read, [0xffff_f000, 0xfff0_0000, 0xffff_c00c, 0xffff_ffff, 0, 0]);
}

#[test]
fn byte_writes_build_a_bar_address() {
    let f = Fixture::new();
    for (at, byte) in [0xff, 0x5f, 0x43, 0xe1].into_iter().enumerate() {
        f.function.config_write(0x10 + at as u16, &[byte]);
    }
    assert_eq!(f.config_u32(0x10), 0xe143_5000);
}

#[test]
fn listener_hears_each_change_of_decoding_once() {
    let f = Fixture::new();
    f.set_config_u32(0x14, 0xe010_0000);
    f.set_config_u32(0x18, 0x8000);
    f.set_config_u32(0x1c, 2);
    assert_eq!(f.recorder.take(), []);
    assert!(f.set_config_u16(COMMAND, MEMORY));
    assert_eq!(
        f.recorder.take(),
        [Event::Moved(1, Some(0xe010_0000)), Event::Moved(2, Some(2 << 32 | 0x8000))]
    );
    assert!(!f.set_config_u16(COMMAND, MEMORY));
    assert!(f.set_config_u32(0x14, 0xe020_0000));
    assert_eq!(f.recorder.take(), [Event::Moved(1, Some(0xe020_0000))]);
    assert!(f.set_config_u16(COMMAND, 0));
    assert_eq!(f.recorder.take(), [Event::Moved(1, None), Event::Moved(2, None)]);
}

#[test]
fn bar_without_address_is_not_decoded() {
    let f = Fixture::new();
    assert!(!f.set_config_u16(COMMAND, MEMORY));
    assert!(f.function.bars().iter().all(|(_, base)| base.is_none()));
}

#[test]
fn bus_master_reaches_device_and_interrupts() {
    let f = Fixture::new();
    enable_msix(&f);
    unmask(&f, 7);
    f.msix_signal(7);
    assert_eq!(f.router.count(7), 0);
    f.set_config_u16(COMMAND, BUS_MASTER);
    assert_eq!(f.recorder.take(), [Event::BusMaster(true)]);
    assert_eq!(f.router.count(7), 1);
}

#[test]
fn read_only_registers_survive_writes_of_ones() {
    let f = Fixture::new();
    let express = f.capabilities(0x10)[0];
    let fixed = [0x00, 0x08, 0x2c, 0x30, 0x34, express, express + 4, express + 0x0c, 0x100, 0xffc];
    let before = fixed.map(|offset| f.config_u32(offset));
    for offset in fixed {
        f.set_config_u32(offset, u32::MAX);
    }
    assert_eq!(fixed.map(|offset| f.config_u32(offset)), before);
    f.set_config_u16(COMMAND, u16::MAX);
    assert_eq!(f.config_u32(COMMAND), 0x0010_0546);
}

#[test]
fn capabilities_are_chained_with_their_contents() {
    let f = Fixture::new();
    let [express] = f.capabilities(0x10)[..] else { panic!("one PCI Express capability") };
    assert_eq!(f.config_u16(express + 2), 0x0092);
    assert_ne!(f.config_u32(express + 4) & 1 << 28, 0);
    let [msix] = f.capabilities(0x11)[..] else { panic!("one MSI-X capability") };
    assert_eq!(f.config_u16(msix + 2), MSIX.vectors - 1);
    assert_eq!((f.config_u32(msix + 4), f.config_u32(msix + 8)), (0, 0x800));
    let [first, second, _] = f.capabilities(0x09)[..] else { panic!("three vendor capabilities") };
    assert_eq!(f.config_u32(first + 2), 0x0302_0106);
    assert_eq!(f.config_u16(second + 2), 0x0914);
}

#[test]
fn function_level_reset_resets_device_config_and_interrupts() {
    let f = Fixture::new();
    f.set_config_u32(0x10, 0xe000_0000);
    f.set_config_u16(COMMAND, MEMORY | BUS_MASTER);
    enable_msix(&f);
    unmask(&f, 0);
    f.recorder.take();
    let express = f.capabilities(0x10)[0];
    assert!(f.set_config_u16(express + 8, FLR));
    assert_eq!(f.recorder.take(), [Event::Moved(0, None), Event::BusMaster(false), Event::Reset]);
    assert_eq!((f.config_u16(COMMAND), f.config_u32(0x10), f.config_u16(express + 8)), (0, 0, 0));
    enable_msix(&f);
    f.set_config_u16(COMMAND, BUS_MASTER);
    f.msix_signal(0);
    assert_eq!(f.router.count(0), 0);
}

#[test]
fn msix_structures_are_served_here_and_the_rest_of_their_bar_by_the_device() {
    let f = Fixture::new();
    let mut data = [0xff; 4];
    f.function.read(0, 12, &mut data);
    assert_eq!(data, 1_u32.to_le_bytes());
    assert_eq!(f.recorder.take(), []);
    f.function.read(0, 0x700, &mut data);
    f.function.write(1, 12, &[1, 2]);
    assert_eq!(f.recorder.take(), [Event::Read(0, 0x700, 4), Event::Write(1, 12, vec![1, 2])]);
}

#[test]
fn window_reaches_into_bars_that_are_not_mapped() {
    let f = Fixture::new();
    let window = f.capabilities(0x09)[2];
    let aim = |bar: u8, offset: u32, length: u32| {
        f.function.config_write(window + 4, &[bar]);
        f.set_config_u32(window + 8, offset);
        f.set_config_u32(window + 12, length);
    };
    aim(1, 0x10, 2);
    assert_eq!(f.config_u32(window + 16), 0x5a5a);
    f.function.config_write(window + 16, &[1, 2]);
    // The vector control of the first MSI-X vector is not the device's.
    aim(0, 12, 4);
    assert_eq!(f.config_u32(window + 16), 1);
    assert_eq!(f.recorder.take(), [Event::Read(1, 0x10, 2), Event::Write(1, 0x10, vec![1, 2])]);
    // Outside a BAR, in none, misaligned, of an impossible length.
    for (bar, offset, length) in [
        (1, 0x10_0000, 1),
        (1, 0x0f_fffe, 4),
        (3, 0, 4),
        (0xff, 0, 4),
        (1, 2, 4),
        (1, 0, 0),
        (1, 0, 3),
        (1, 0, u32::MAX),
    ] {
        aim(bar, offset, length);
        f.config_u32(window + 16);
        f.set_config_u32(window + 16, 7);
    }
    assert_eq!(f.recorder.take(), []);
    aim(1, 0, 4);
    f.config_u32(window + 12);
    assert_eq!(f.recorder.take(), [], "only the data is a window");
}

#[test]
fn impossible_bars_are_refused() {
    let ok = BARS[2];
    let bad = [
        vec![BarSpec { size: 0x800, ..ok }],
        vec![BarSpec { size: 0x3000, ..ok }],
        vec![BarSpec { size: 0, ..ok }],
        vec![BarSpec { index: 5, ..ok }],
        vec![BarSpec { index: 255, ..ok }],
        vec![ok, BarSpec { index: 3, ..ok }],
        vec![BarSpec { size: 1 << 32, kind: BarKind::Memory32, ..ok }],
    ];
    for bars in bad {
        assert_eq!(check_bars(&bars), Err(FunctionError::Bar(*bars.last().unwrap())));
    }
    assert_eq!(check_bars(&BARS), Ok(()));
}

#[test]
fn impossible_msix_layouts_are_refused() {
    let bad = [
        MsixSpec { vectors: 0, ..MSIX },
        MsixSpec { vectors: 2049, bar: 1, pba_offset: 0x1_0000, ..MSIX },
        MsixSpec { bar: 4, ..MSIX },
        MsixSpec { table_offset: 4, ..MSIX },
        MsixSpec { pba_offset: 0x400, ..MSIX },
        MsixSpec { pba_offset: 0xff8, ..MSIX },
        MsixSpec { table_offset: 0xffff_fff8, ..MSIX },
    ];
    for spec in bad {
        assert_eq!(check_msix(&spec, &BARS), Err(FunctionError::Msix(spec)));
    }
    assert_eq!(check_msix(&MSIX, &BARS), Ok(()));
}

fn enable_msix(f: &Fixture) {
    let msix = f.capabilities(0x11)[0];
    f.set_config_u16(msix + 2, 1 << 15);
}

fn unmask(f: &Fixture, vector: u64) {
    f.function.write(0, vector * 16 + 12, &[0; 4]);
}

impl Fixture {
    fn msix_signal(&self, vector: u16) {
        device_model::irq::Interrupts::signal(&*self.msix, vector);
    }
}
