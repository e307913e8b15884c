//! The checker of `exactness.rs` finds what it is there to find: each fault here is one that a broken engine would have.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::scenario::{Scenario, check};
use common::{Connection, Faults, Rng, WireFault, World, edit};
use roce::wire::{Frame, NakCode, Pdu, Syndrome};
use verbs::Mtu;

fn scenario() -> Scenario {
    let every = Scenario::every_kind(Mtu::B256, &[1, 255, 256, 257, 1500], 7);
    Scenario { connection: Connection { timeout: 8, ..every.connection }, ..every }
}

fn checked(loss: bool, fault: WireFault) -> (World, Result<(), String>) {
    let mut world = World::new();
    if loss {
        world.faults = Faults::rough(5);
    }
    world.hooks.push(fault);
    let result = check(&mut world, &scenario());
    (world, result)
}

#[test]
fn without_a_fault_the_checker_is_content() {
    checked(true, Box::new(|_, frame| vec![frame])).1.unwrap();
}

/// Changes a byte of the payload of some frames; `seal` hides it from the CRC.
fn corrupting(seal: bool) -> WireFault {
    let mut rng = Rng::new(3);
    Box::new(move |_, mut frame| {
        let payload = Frame::parse(&frame).unwrap().payload;
        if !payload.is_empty() && rng.percent(10) {
            frame[payload.start] ^= 1;
            if seal {
                edit::seal(&mut frame);
            }
        }
        vec![frame]
    })
}

#[test]
fn corruption_is_repaired_because_the_crc_shows_it() {
    let (world, result) = checked(false, corrupting(false));
    result.unwrap();
    assert!(world.nodes.iter().any(|node| node.provider.counters().dropped_icrc > 0));
}

#[test]
fn corruption_that_the_crc_misses_is_caught() {
    checked(false, corrupting(true)).1.unwrap_err();
}

#[test]
fn wrong_crc_on_every_frame_is_caught() {
    let fault = |_, mut frame: Vec<u8>| {
        *frame.last_mut().unwrap() ^= 0x80;
        vec![frame]
    };
    checked(false, Box::new(fault)).1.unwrap_err();
}

#[test]
fn gap_that_is_acknowledged_instead_of_refused_is_caught() {
    // A responder that does not notice a missing packet: its sequence NAK becomes an ACK.
    let fault = |_, mut frame: Vec<u8>| {
        if let Pdu::Ack(aeth) = edit::packet(&frame).pdu
            && aeth.syndrome == Syndrome::Nak(NakCode::Sequence)
        {
            let at = edit::ext(&frame);
            frame[at] = 0x1f;
            edit::seal(&mut frame);
        }
        vec![frame]
    };
    checked(true, Box::new(fault)).1.unwrap_err();
}

#[test]
fn acknowledgements_that_never_arrive_are_caught() {
    let fault = |_, frame: Vec<u8>| match edit::packet(&frame).pdu {
        Pdu::Ack(_) => vec![],
        _ => vec![frame],
    };
    checked(false, Box::new(fault)).1.unwrap_err();
}

#[test]
fn atomic_that_is_executed_twice_is_caught() {
    // A responder without a replay cache: each retransmitted atomic is executed anew.
    let mut world = World::new();
    world.faults = Faults::rough(5);
    let ram: Vec<_> = world.nodes.iter().map(|node| node.ram.clone()).collect();
    let mut seen = HashSet::new();
    let executed_again = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&executed_again);
    world.hooks.push(Box::new(move |from, frame| {
        let packet = edit::packet(&frame);
        if let Pdu::Atomic(eth) = packet.pdu
            && !seen.insert((from, packet.psn))
        {
            execute_again(&*ram[1 - from], eth);
            count.fetch_add(1, Ordering::Relaxed);
        }
        vec![frame]
    }));
    check(&mut world, &scenario()).unwrap_err();
    assert!(executed_again.load(Ordering::Relaxed) > 0);
}

fn execute_again(ram: &dyn device_model::ram::GuestRam, eth: roce::wire::AtomicEth) {
    use common::node::{HEAP, HEAP_VA};
    use roce::wire::AtomicKind;
    let gpa = eth.va - HEAP_VA + HEAP;
    let word: u64 = ram.read_obj(gpa).unwrap();
    let word = match eth.kind {
        AtomicKind::FetchAdd(add) => word.wrapping_add(add),
        AtomicKind::CompareSwap { compare, swap } if word == compare => swap,
        AtomicKind::CompareSwap { .. } => word,
    };
    ram.write_obj(gpa, &word).unwrap();
}
