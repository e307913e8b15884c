use std::sync::Barrier;
use std::thread;

use super::*;
use crate::testing::{CountingRouter, MSIX};

const ADDRESS: u32 = 0xfee0_1000;

fn new() -> (Msix, Arc<CountingRouter>) {
    let router = CountingRouter::new();
    (Msix::new(MSIX, router.clone()), router)
}

/// MSI-X with everything open but the vector masks.
fn enabled() -> (Msix, Arc<CountingRouter>) {
    let (msix, router) = new();
    msix.set_bus_master(true);
    msix.set_control(true, false);
    (msix, router)
}

fn entry(vector: u16) -> u64 {
    u64::from(MSIX.table_offset) + u64::from(vector) * ENTRY_BYTES
}

fn set_mask(msix: &Msix, vector: u16, masked: bool) {
    msix.write(entry(vector) + VECTOR_CONTROL, &u32::from(masked).to_le_bytes());
}

fn is_pending(msix: &Msix, vector: u16) -> bool {
    let mut word = [0; 8];
    msix.read(u64::from(MSIX.pba_offset) + u64::from(vector) / 64 * 8, &mut word);
    u64::from_le_bytes(word) >> (vector % 64) & 1 != 0
}

#[test]
fn unmasked_vector_fires_at_once() {
    let (msix, router) = enabled();
    set_mask(&msix, 65, false);
    msix.signal(65);
    assert_eq!((router.count(65), is_pending(&msix, 65)), (1, false));
}

#[test]
fn masked_vector_is_latched_and_fires_once_when_unmasked() {
    let (msix, router) = enabled();
    msix.signal(65);
    msix.signal(65);
    assert_eq!((router.count(65), is_pending(&msix, 65)), (0, true));
    set_mask(&msix, 65, false);
    set_mask(&msix, 65, true);
    set_mask(&msix, 65, false);
    assert_eq!((router.count(65), is_pending(&msix, 65)), (1, false));
}

#[test]
fn function_mask_and_bus_master_latch_every_vector() {
    let close: [fn(&Msix); 2] = [|m| m.set_control(true, true), |m| m.set_bus_master(false)];
    let open: [fn(&Msix); 2] = [|m| m.set_control(true, false), |m| m.set_bus_master(true)];
    for (close, open) in close.into_iter().zip(open) {
        let (msix, router) = enabled();
        set_mask(&msix, 0, false);
        set_mask(&msix, 69, false);
        close(&msix);
        msix.signal(0);
        msix.signal(69);
        assert_eq!((router.count(0), router.count(69)), (0, 0));
        open(&msix);
        assert_eq!((router.count(0), router.count(69)), (1, 1));
    }
}

#[test]
fn disabled_msix_drops_and_forgets() {
    let (msix, router) = enabled();
    msix.signal(1);
    msix.set_control(false, false);
    msix.signal(1);
    msix.set_control(true, false);
    set_mask(&msix, 1, false);
    assert_eq!(router.count(1), 0);
}

#[test]
fn vector_out_of_range_is_ignored() {
    let (msix, _) = enabled();
    msix.signal(MSIX.vectors);
    msix.signal(u16::MAX);
    assert!((0..MSIX.vectors).all(|vector| !is_pending(&msix, vector)));
}

#[test]
fn message_is_routed_once_and_only_when_it_may_fire() {
    let (msix, router) = enabled();
    msix.write(entry(3), &ADDRESS.to_le_bytes());
    msix.write(entry(3) + ADDRESS_HIGH, &1_u32.to_le_bytes());
    msix.write(entry(3) + DATA, &0x4021_u32.to_le_bytes());
    assert!(lock(&router.set).is_empty());
    set_mask(&msix, 3, false);
    set_mask(&msix, 3, true);
    set_mask(&msix, 3, false);
    let message = MsiMessage { address: 1 << 32 | u64::from(ADDRESS), data: 0x4021 };
    assert_eq!(*lock(&router.set), [(3, message)]);
    msix.write(entry(3) + DATA, &0x4022_u32.to_le_bytes());
    assert_eq!(lock(&router.set).last(), Some(&(3, MsiMessage { data: 0x4022, ..message })));
}

#[test]
fn eight_byte_accesses_reach_both_words() {
    let (msix, _) = enabled();
    msix.write(entry(2), &0x1122_3344_5566_7788_u64.to_le_bytes());
    msix.write(entry(2) + DATA, &0x9abc_u64.to_le_bytes());
    let mut bytes = [0; 16];
    msix.read(entry(2), &mut bytes);
    assert_eq!(bytes, 0x9abc_1122_3344_5566_7788_u128.to_le_bytes());
    assert!(!msix.masked.get(2));
}

#[test]
fn narrow_and_misaligned_writes_do_nothing_and_reserved_bits_stay_zero() {
    let (msix, _) = enabled();
    msix.write(entry(1), &[0xff]);
    msix.write(entry(1) + 2, &[0xff; 4]);
    msix.write(entry(1) + 4, &[0xff; 8]);
    msix.write(u64::from(MSIX.pba_offset), &[0xff; 8]);
    msix.write(entry(1) + VECTOR_CONTROL, &[0xff; 4]);
    let mut bytes = [0xaa; 16];
    msix.read(entry(1), &mut bytes);
    assert_eq!(bytes, u128::from_le_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]).to_le_bytes());
    assert!(!is_pending(&msix, 0));
}

#[test]
fn reset_masks_and_forgets() {
    let (msix, router) = enabled();
    set_mask(&msix, 0, false);
    msix.signal(1);
    msix.reset();
    msix.set_bus_master(true);
    msix.set_control(true, false);
    msix.signal(0);
    set_mask(&msix, 1, false);
    assert_eq!((router.count(0), router.count(1)), (0, 0));
    assert!(is_pending(&msix, 0));
}

/// In each round one signal meets one unmasking of the vector or of the function; whichever comes first, exactly one
/// interrupt comes out.
#[test]
fn signal_racing_with_unmasking_fires_exactly_once() {
    const ROUNDS: u64 = 2000;
    let (msix, router) = enabled();
    let barrier = Barrier::new(2);
    // Judged at the end: a panic in between would leave the other thread at the barrier.
    let mut outcome = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                msix.signal(0);
                barrier.wait();
            }
        });
        for round in 1..=ROUNDS {
            let by_vector = round % 2 == 0;
            set_mask(&msix, 0, by_vector);
            msix.set_control(true, !by_vector);
            barrier.wait();
            if by_vector {
                set_mask(&msix, 0, false)
            } else {
                msix.set_control(true, false)
            }
            barrier.wait();
            outcome.push((router.count(0), is_pending(&msix, 0)));
        }
    });
    assert_eq!(outcome, (1..=ROUNDS).map(|round| (round, false)).collect::<Vec<_>>());
}
