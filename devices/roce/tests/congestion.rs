//! ECN marks and congestion notifications.

mod common;

use std::time::Duration;

use common::node::HEAP;
use common::wr::{SEND, statuses, va};
use common::{Connection, World, edit};
use roce::wire::{Packet, Pdu};
use verbs::{Provider, QpState, SendOp, WcStatus};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + 0x100_0000;
const LEN: u32 = 8 << 20;

fn connected(gid_index: u8) -> World {
    World::connected(Connection { gid_index, ..Connection::default() })
}

/// Marks all that node 0 sends and that may be marked.
fn mark_all(world: &mut World) {
    world.hooks.push(Box::new(|from, mut frame| {
        if from == 0 && edit::traffic_class(&frame) & 0b11 != 0 {
            edit::mark(&mut frame);
        }
        vec![frame]
    }));
}

/// Writes a long message; returns how long that took.
fn transfer(world: &mut World) -> Duration {
    let start = world.now;
    let op = SendOp::Write { addr: va(TARGET), rkey: world.nodes[1].keys.rkey, imm: None };
    world.nodes[0].send(1, 1, op, HEAP, LEN);
    let done = loop {
        assert!(world.step(start + Duration::from_secs(10)));
        let done = world.nodes[0].completions();
        if !done.is_empty() {
            break done;
        }
    };
    assert_eq!(statuses(&done), [(1, OK)]);
    let took = world.now - start;
    world.run();
    took
}

fn notifications(frames: &[Vec<u8>]) -> Vec<Packet> {
    let packets = frames.iter().map(|frame| edit::packet(frame));
    packets.filter(|packet| packet.pdu == Pdu::Cnp).collect()
}

#[test]
fn marks_are_answered_by_one_notification_at_a_time() {
    for gid_index in [0, 1] {
        let mut world = connected(gid_index);
        mark_all(&mut world);
        world.recording = Some(vec![]);
        let took = transfer(&mut world);
        let frames = world.recording.take().unwrap();
        let sent = notifications(&frames);
        let interval = roce::Config::default().cnp_interval;
        let most = took.as_nanos() / interval.as_nanos() + 1;
        assert!(sent.len() > 10 && sent.len() as u128 <= most, "{} in {took:?}", sent.len());
        let qpn = frames.iter().map(|frame| edit::packet(frame)).find(|p| matches!(p.pdu, Pdu::Ack(_)));
        assert!(sent.iter().all(|packet| packet.becn && Some(packet.dest) == qpn.map(|p| p.dest)));
        let marks = world.nodes[1].provider.counters().congestion_marks;
        assert!(marks >= u64::from(LEN / 1024));
        assert_eq!(world.nodes[1].provider.counters().cnp_sent, sent.len() as u64);
        assert_eq!(world.nodes[0].provider.counters().cnp_received, sent.len() as u64);
    }
}

#[test]
fn notifications_slow_a_connection_down_until_they_stop() {
    let mut world = connected(0);
    let before = transfer(&mut world);
    mark_all(&mut world);
    let marked = transfer(&mut world);
    assert!(marked > before * 2, "{before:?} without marks, {marked:?} with");
    world.hooks.clear();
    // Grows back meanwhile.
    for _ in 0..5 {
        transfer(&mut world);
    }
    assert_eq!(transfer(&mut world), before);
    assert_eq!(world.nodes[0].provider.counters().retransmitted_packets, 0);
}

#[test]
fn packets_of_connections_are_capable_and_notifications_and_datagrams_are_not() {
    for gid_index in [0, 1] {
        let mut world = connected(gid_index);
        mark_all(&mut world);
        world.recording = Some(vec![]);
        world.nodes[1].recv(1, 7, TARGET, 10);
        world.nodes[0].send(1, 1, SEND, HEAP, 10);
        world.run();
        for frame in world.recording.take().unwrap() {
            let capable = edit::packet(&frame).pdu != Pdu::Cnp;
            assert_eq!(edit::traffic_class(&frame) & 0b11, if capable { 0b10 } else { 0 });
        }
    }
}

/// The frame of a notification that node 1 sends.
fn notification() -> Vec<u8> {
    let mut world = connected(0);
    mark_all(&mut world);
    world.recording = Some(vec![]);
    transfer(&mut world);
    let frames = world.recording.take().unwrap();
    frames.into_iter().find(|frame| edit::packet(frame).pdu == Pdu::Cnp).unwrap()
}

#[test]
fn flood_of_notifications_harms_nothing() {
    let cnp = notification();
    let mut world = connected(0);
    for _ in 0..1000 {
        world.nodes[0].provider.receive(world.now, &cnp);
    }
    transfer(&mut world);
    world.set_state(0, 1, QpState::Err).unwrap();
    world.nodes[0].provider.receive(world.now, &cnp);
    world.nodes[0].provider.destroy_qp(verbs::QpId(1)).unwrap();
    world.nodes[0].provider.receive(world.now, &cnp);
    assert_eq!(world.nodes[0].provider.counters().dropped_no_qp, 2);
}

#[test]
fn notification_from_a_stranger_slows_nobody_down() {
    let mut world = connected(0);
    let before = transfer(&mut world);
    let mut cnp = notification();
    // Another source address.
    cnp[14 + 15] ^= 0x40;
    edit::mark(&mut cnp);
    edit::seal(&mut cnp);
    for _ in 0..100 {
        world.nodes[0].provider.receive(world.now, &cnp);
    }
    let counters = world.nodes[0].provider.counters();
    assert_eq!((counters.cnp_received, counters.dropped_address), (0, 100));
    assert_eq!(transfer(&mut world), before);
}
