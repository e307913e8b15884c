//! A peer that sends anything: nothing panics, nothing is written outside what was granted, and all work is bounded.

mod common;

use std::time::Duration;

use common::node::{HEAP, HEAP_VA};
use common::scenario::{Scenario, check};
use common::wr::va;
use common::{Connection, Node, Rng, World, edit};
use device_model::time::Instant;
use proptest::prelude::*;
use roce::wire::Frame;
use verbs::{Access, Mtu, Provider, QpId, QpState, SendOp};

/// What the peer may write: node 1's first megabyte of heap, by the key it knows.
const GRANTED: u64 = 1 << 20;

/// A connection in the middle of work, node 1 with receives posted and reads outstanding.
fn victim() -> World {
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B256, ..Connection::default() });
    let victim = &mut world.nodes[1];
    victim.provider.deregister_mr(verbs::MrId(1)).unwrap();
    victim.keys = victim.register(2, HEAP_VA, HEAP, GRANTED, Access::all());
    // A region the peer may read only, and that nobody writes.
    victim.register(3, 0x10_0000, HEAP + GRANTED, GRANTED, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let (addr, rkey) = (va(HEAP), world.nodes[0].keys.rkey);
    for i in 0..4 {
        let victim = &mut world.nodes[1];
        victim.recv(1, i, HEAP + i * 0x1000, 0x1000);
        victim.send(1, i, SendOp::Read { addr, rkey }, HEAP + 0x8000, 2000);
        victim.send(1, i, SendOp::Write { addr, rkey, imm: None }, HEAP, 700);
        victim.send(1, i, SendOp::FetchAdd { addr, rkey, add: 1 }, HEAP + 0x4000, 8);
    }
    world
}

/// Frames of all kinds to the victim, with its real number, address and key.
fn honest_frames(world: &mut World) -> Vec<Vec<u8>> {
    let (addr, rkey) = (va(HEAP), world.nodes[1].keys.rkey);
    let peer = &mut world.nodes[0];
    for (i, size) in [0, 5, 256, 900].into_iter().enumerate() {
        let i = i as u64;
        peer.send(1, i, SendOp::Send { imm: Some([1; 4]) }, HEAP, size);
        peer.send(1, i, SendOp::Write { addr, rkey, imm: Some([2; 4]) }, HEAP, size);
        peer.send(1, i, SendOp::Read { addr, rkey }, HEAP + 0x1_0000, size);
        peer.send(1, i, SendOp::CompareSwap { addr, rkey, compare: 0, swap: 1 }, HEAP, 8);
        peer.send(1, i, SendOp::SendInv { rkey }, HEAP, size);
    }
    world.recording = Some(vec![]);
    world.run_for(Duration::from_millis(2));
    world.recording.take().unwrap()
}

/// Turns a frame into one its sender would not have sent, with lengths and CRC that are right more often than not.
fn mutate(frame: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let bth = edit::bth(&frame);
    match rng.below(8) {
        0 => frame[bth] = rng.next() as u8,
        1 => frame[bth] = rng.below(0x18) as u8,
        2 => frame[bth + 1] = rng.next() as u8,
        3 => {
            let len = bth + 12 + rng.below(400) as usize;
            frame.resize(len + 4, 0x5a);
            set_lengths(&mut frame);
        }
        4 => {
            let len = (frame.len() as u64 - 14) as usize;
            frame[14 + rng.below(len as u64) as usize] = rng.next() as u8;
        }
        _ => {}
    }
    for _ in 0..rng.below(3) {
        let len = (frame.len() - bth).min(44);
        let at = bth + rng.below(len as u64) as usize;
        frame[at] ^= 1 << rng.below(8);
    }
    if rng.percent(50) {
        // Near the expected number, so that it is not just out of sequence.
        let psn = 0xff_fff0 + rng.below(40) as u32;
        frame[bth + 9..bth + 12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }
    if rng.percent(90) {
        edit::seal(&mut frame);
    }
    frame
}

fn set_lengths(frame: &mut [u8]) {
    let (ip, udp) = (frame.len() as u16 - 14, frame.len() as u16 - 34);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    frame[38..40].copy_from_slice(&udp.to_be_bytes());
    frame[24..26].fill(0);
    let sum: u32 = (14..34).step_by(2).map(|i| u32::from(u16::from_be_bytes([frame[i], frame[i + 1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// Everything of the victim's memory that nothing may have been written to.
fn out_of_bounds(world: &World) -> (Vec<u8>, Vec<u8>) {
    let node = &world.nodes[1];
    (node.read(0, HEAP as usize), node.read(HEAP + GRANTED, 2 << 20))
}

#[test]
fn mutated_frames_write_nothing_outside_what_was_granted() {
    let mut refused = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut world = victim();
        let frames = honest_frames(&mut victim());
        let pattern = rng.bytes(4096);
        world.nodes[1].write(HEAP + GRANTED, &pattern);
        let before = out_of_bounds(&world);
        for _ in 0..60 {
            let frame = mutate(&frames[rng.below(frames.len() as u64) as usize], &mut rng);
            let now = world.now;
            world.nodes[1].provider.receive(now, &frame);
            if rng.percent(30) {
                world.run_for(Duration::from_micros(rng.below(2000)));
            }
            if world.nodes[1].state(1) != QpState::Rts {
                refused += 1;
                break;
            }
        }
        world.run_for(Duration::from_millis(50));
        assert!(out_of_bounds(&world) == before, "seed {seed}");
    }
    // The mutations reach the state machine: some of them end the connection, but not all at once.
    assert!(refused > 20, "only {refused} connections were ended");
}

#[test]
fn flood_of_duplicate_reads_keeps_a_bounded_queue_and_a_bounded_turn() {
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B256, rd_atomic: 16, ..Connection::default() });
    let op = SendOp::Read { addr: va(HEAP), rkey: world.nodes[1].keys.rkey };
    world.nodes[0].send(1, 1, op, HEAP, 256 << 10);
    world.recording = Some(vec![]);
    world.run_for(Duration::from_micros(2));
    let request = world.recording.take().unwrap().remove(0);
    let now = world.now;
    let victim = &mut world.nodes[1];
    victim.provider.receive(now, &request);
    for index in 0..1000u32 {
        // The same request, but for one packet less each time.
        let mut again = request.clone();
        let (bth, ext) = (edit::bth(&again), edit::ext(&again));
        let psn = 0xff_fff0u32.wrapping_add(index) & 0xff_ffff;
        again[bth + 9..bth + 12].copy_from_slice(&psn.to_be_bytes()[1..]);
        let address = va(HEAP) + u64::from(index) * 256;
        again[ext..ext + 8].copy_from_slice(&address.to_be_bytes());
        again[ext + 12..ext + 16].copy_from_slice(&((256 << 10) - index * 256).to_be_bytes());
        edit::seal(&mut again);
        victim.provider.receive(now, &again);
    }
    assert_eq!(victim.provider.counters().duplicate_requests, 1000);
    victim.provider.advance(now);
    assert!(victim.link.take_sent().len() <= 64);
    let mut rest = 0;
    while victim.provider.advance(now) {
        rest += victim.link.take_sent().len();
    }
    // At most as many answers as may be outstanding, of at most 1024 packets each.
    assert!(rest <= 16 * 1024, "{rest} packets");
}

#[test]
fn acknowledgement_of_what_was_never_sent_is_ignored() {
    let mut world = World::new();
    world.connect(1, Connection { timeout: 0, ..Connection::default() });
    world.hooks.push(Box::new(|_, mut frame| {
        let bth = edit::bth(&frame);
        // From one packet ahead to half the circle ahead.
        let frames = [1u32, 2, 100, 0x7f_ffff, 0x80_0000].map(|ahead| {
            let psn = edit::packet(&frame).psn.plus(ahead).get();
            frame[bth + 9..bth + 12].copy_from_slice(&psn.to_be_bytes()[1..]);
            edit::seal(&mut frame);
            frame.clone()
        });
        frames.to_vec()
    }));
    let op = SendOp::Write { addr: va(HEAP), rkey: world.nodes[1].keys.rkey, imm: None };
    world.nodes[0].send(1, 1, op, HEAP, 10);
    world.run();
    assert_eq!(world.nodes[0].completions(), []);
}

#[test]
fn packet_from_another_address_is_dropped() {
    let mut world = World::new();
    world.connect(1, Connection { retry_cnt: 0, ..Connection::default() });
    world.hooks.push(Box::new(|from, mut frame| {
        if from == 0 {
            frame[29] = 77;
            set_lengths(&mut frame);
            edit::seal(&mut frame);
        }
        vec![frame]
    }));
    let op = SendOp::Write { addr: va(HEAP), rkey: world.nodes[1].keys.rkey, imm: None };
    world.nodes[0].send(1, 1, op, HEAP, 10);
    world.run();
    assert!(world.nodes[1].provider.counters().dropped_address > 0);
    assert_eq!(world.nodes[1].provider.query_qp(QpId(1)).unwrap().rq_psn, 0xff_fff0);
}

#[test]
fn fragments_are_not_claimed() {
    let mut world = World::new();
    world.recording = Some(vec![]);
    check(&mut world, &Scenario::every_kind(Mtu::B256, &[1], 1)).unwrap();
    let mut frame = world.recording.take().unwrap().remove(0);
    assert!(world.nodes[1].provider.claims(&frame));
    frame[20] = 0x20;
    set_lengths(&mut frame);
    assert!(!world.nodes[1].provider.claims(&frame));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), family in 0..2) {
        let mut frame = bytes;
        // Let most of them get past the first checks.
        let start: &[u8] = if family == 0 { &[0x08, 0x00, 0x45] } else { &[0x86, 0xdd, 0x60] };
        if let Some(place) = frame.get_mut(12..15) {
            place.copy_from_slice(start);
        }
        let _ = Frame::parse(&frame);
        let mut node = Node::new(1);
        node.provider.claims(&frame);
        node.provider.receive(Instant::ZERO, &frame);
        prop_assert!(!node.provider.advance(Instant::ZERO));
    }
}
