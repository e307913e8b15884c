//! Retries, time-outs and everything else that takes time.

mod common;

use std::time::Duration;

use common::node::HEAP;
use common::wr::{SEND, statuses, va};
use common::{Connection, World, edit};
use roce::wire::{Aeth, Pdu, Syndrome};
use verbs::{AsyncEvent, Mtu, Provider, QpId, QpState, SendFlags, SendOp, WcStatus};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + 0x10_0000;

/// A wire that carries nothing.
fn cut(world: &mut World) {
    world.hooks.push(Box::new(|_, _| vec![]));
}

#[test]
fn transport_retries_are_as_many_as_asked_for_and_seven_is_seven() {
    for retry_cnt in [0, 1, 6, 7] {
        let mut world = World::connected(Connection { retry_cnt, ..Connection::default() });
        cut(&mut world);
        let start = world.now;
        let op = world.write_op(TARGET);
        world.nodes[0].send(1, 1, op, HEAP, 10);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RetryExcErr)]);
        let counters = world.nodes[0].provider.counters();
        assert_eq!(counters.ack_timeouts, u64::from(retry_cnt) + 1);
        // Each interval is one to four times 4.096 µs · 2^10.
        let nominal = Duration::from_nanos(4096 << 10) * (u32::from(retry_cnt) + 1);
        let took = world.now - start;
        assert!(took >= nominal && took <= nominal * 4, "{retry_cnt} retries took {took:?}");
    }
}

#[test]
fn a_port_that_is_down_loses_what_comes_and_goes_and_retries_are_as_for_any_loss() {
    for down in [0, 1] {
        let mut world = World::connected(Connection { timeout: 14, ..Connection::default() });
        world.nodes[down].provider.set_port(false);
        let op = world.write_op(TARGET);
        world.nodes[0].send(1, 1, op.clone(), HEAP, 3000);
        world.run_for(Duration::from_millis(100));
        assert!(world.nodes[0].completions().is_empty());
        let lost = world.nodes[down].provider.counters();
        assert!(lost.tx_failed + lost.dropped_port_down > 0, "{lost:?}");
        world.nodes[down].provider.set_port(true);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
        world.nodes[down].provider.set_port(false);
        world.nodes[0].send(1, 2, op, HEAP, 3000);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(2, WcStatus::RetryExcErr)]);
    }
}

#[test]
fn what_a_device_sends_itself_does_not_need_the_port() {
    let mut world = World::new();
    let [node, _] = &mut world.nodes;
    let (ids, gid, mac) = ([QpId(1), QpId(2)], node.gids()[0], node.mac);
    let qpns = ids.map(|id| node.create_rc(id));
    for (id, peer) in [(ids[0], qpns[1]), (ids[1], qpns[0])] {
        node.bring_up(world.now, id, peer, gid, mac, Connection::default());
    }
    node.provider.set_port(false);
    let op = SendOp::Write { addr: va(TARGET), rkey: node.keys.rkey, imm: None };
    node.send(1, 1, op, HEAP, 3000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
}

#[test]
fn loss_that_nothing_shows_is_repaired_long_before_a_long_timeout() {
    // Time-out 19 is 2.1 s, as connection managers choose it.
    for lose in [|pdu: &Pdu| matches!(pdu, Pdu::Ack(_)), |pdu: &Pdu| matches!(pdu, Pdu::Write { .. })] {
        let mut world = World::connected(Connection { timeout: 19, retry_cnt: 0, ..Connection::default() });
        let mut left = 3;
        world.hooks.push(Box::new(move |_, frame| {
            let drop = left > 0 && lose(&edit::packet(&frame).pdu);
            left -= i32::from(drop);
            if drop { vec![] } else { vec![frame] }
        }));
        let (start, op) = (world.now, world.write_op(TARGET));
        world.nodes[0].send(1, 1, op, HEAP, 3000);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
        assert!(world.now - start < Duration::from_millis(200), "{:?}", world.now - start);
        let counters = world.nodes[0].provider.counters();
        assert!(counters.probes > 0);
        assert_eq!(counters.ack_timeouts, 0);
    }
}

#[test]
fn probe_of_a_peer_that_is_merely_slow_costs_one_packet() {
    let mut world = World::connected(Connection { timeout: 14, ..Connection::default() });
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op, HEAP, 100_000);
    // The peer does nothing for 25 ms, then takes everything at once.
    world.stall(1, Duration::from_millis(25));
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    let counters = world.nodes[0].provider.counters();
    assert_eq!((counters.probes, counters.retransmitted_packets), (1, 1));
}

#[test]
fn timeout_zero_waits_for_ever() {
    let mut world = World::connected(Connection { timeout: 0, ..Connection::default() });
    cut(&mut world);
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op, HEAP, 10);
    world.run();
    assert_eq!(world.nodes[0].completions(), []);
    assert_eq!(world.nodes[0].provider.next_deadline(), None);
}

#[test]
fn progress_restores_all_retries() {
    let mut world = World::connected(Connection { retry_cnt: 2, ..Connection::default() });
    // Two of three frames of the sender are lost, again and again.
    let mut count = 0;
    world.hooks.push(Box::new(move |from, frame| {
        count += usize::from(from == 0);
        if from == 0 && count % 3 != 0 { vec![] } else { vec![frame] }
    }));
    for i in 0..10 {
        let op = world.write_op(TARGET);
        world.nodes[0].send(1, i, op, HEAP, 10);
        world.run();
    }
    assert!(world.nodes[0].completions().iter().all(|c| c.status == OK));
    assert!(world.nodes[0].provider.counters().ack_timeouts >= 15);
}

#[test]
fn rnr_retries_are_as_many_as_asked_for() {
    for rnr_retry in [0, 1, 6] {
        let mut world =
            World::connected(Connection { rnr_retry, min_rnr_timer: 20, ..Connection::default() });
        let start = world.now;
        world.nodes[0].send(1, 1, SEND, HEAP, 10);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RnrRetryExcErr)]);
        let naks = world.nodes[0].provider.counters().rnr_naks_received;
        assert_eq!(naks, u64::from(rnr_retry) + 1);
        // Code 20 is 10.24 ms.
        assert!(world.now - start >= Duration::from_micros(10_240) * u32::from(rnr_retry));
        assert_eq!(world.nodes[1].state(1), QpState::Rts);
    }
}

#[test]
fn rnr_retry_seven_waits_for_ever_and_then_delivers() {
    let mut world = World::connected(Connection { rnr_retry: 7, min_rnr_timer: 31, ..Connection::default() });
    world.nodes[0].write(HEAP, &[5; 3000]);
    world.nodes[0].send(1, 1, SEND, HEAP, 3000);
    world.run_for(Duration::from_secs(30));
    assert!(world.nodes[0].provider.counters().rnr_naks_received > 50);
    world.nodes[1].recv(1, 7, TARGET, 3000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    assert_eq!(world.nodes[1].read(TARGET, 3000), [5; 3000]);
}

#[test]
fn waiting_for_receives_costs_no_transport_retry() {
    let mut world = World::connected(Connection { retry_cnt: 0, min_rnr_timer: 31, ..Connection::default() });
    for wr_id in 0..4 {
        world.nodes[0].send(1, wr_id, SEND, HEAP, 3000);
    }
    world.run_for(Duration::from_secs(30));
    for wr_id in 0..4 {
        world.nodes[1].recv(1, wr_id, TARGET, 3000);
    }
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(0, OK), (1, OK), (2, OK), (3, OK)]);
    assert_eq!(world.nodes[0].provider.counters().ack_timeouts, 0);
}

/// As `rdma_rxe` does, for the packets behind the one that finds no receive.
#[test]
fn sequence_nak_behind_an_rnr_nak_costs_no_retry_and_cuts_no_wait() {
    let mut world = World::connected(Connection { retry_cnt: 0, min_rnr_timer: 20, ..Connection::default() });
    world.hooks.push(Box::new(|_, frame| {
        let Pdu::Ack(Aeth { syndrome: Syndrome::RnrNak(_), .. }) = edit::packet(&frame).pdu else {
            return vec![frame];
        };
        let mut nak = frame.clone();
        nak[edit::ext(&frame)] = 0x60;
        edit::seal(&mut nak);
        vec![frame, nak]
    }));
    let start = world.now;
    world.nodes[0].send(1, 1, SEND, HEAP, 3000);
    world.run_for(Duration::from_millis(100));
    world.nodes[1].recv(1, 1, TARGET, 3000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    let counters = world.nodes[0].provider.counters();
    // Code 20 is 10.24 ms.
    assert_eq!(counters.rnr_naks_received, 10);
    assert!(world.now - start < Duration::from_millis(120));
}

#[test]
fn progress_restores_all_rnr_retries() {
    let mut world = World::connected(Connection { rnr_retry: 1, min_rnr_timer: 20, ..Connection::default() });
    for wr_id in 0..10 {
        world.nodes[0].send(1, wr_id, SEND, HEAP, 3000);
        // One NAK at once, one after 10.24 ms that would be the last straw.
        world.run_for(Duration::from_millis(5));
        world.nodes[1].recv(1, wr_id, TARGET, 3000);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(wr_id, OK)]);
    }
    assert_eq!(world.nodes[0].provider.counters().rnr_naks_received, 10);
}

#[test]
fn write_with_immediate_waits_for_a_receive_without_losing_its_data() {
    let mut world = World::connected(Connection { mtu: Mtu::B256, ..Connection::default() });
    world.nodes[0].write(HEAP, &[5; 3000]);
    let op = SendOp::Write { addr: va(TARGET), rkey: world.nodes[1].keys.rkey, imm: Some([9; 4]) };
    world.nodes[0].send(1, 1, op, HEAP, 3000);
    world.run_for(Duration::from_millis(5));
    assert_eq!(world.nodes[0].completions(), []);
    world.nodes[1].recv(1, 7, TARGET, 0);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    let received = world.nodes[1].completions();
    assert_eq!((received[0].byte_len, received[0].imm_or_key), (3000, [9; 4]));
    assert_eq!(world.nodes[1].read(TARGET, 3000), [5; 3000]);
}

#[test]
fn fenced_request_leaves_after_the_data_of_earlier_reads_has_come() {
    for fence in [false, true] {
        let mut world = World::connected(Connection::default());
        world.recording = Some(vec![]);
        let read = SendOp::Read { addr: va(TARGET), rkey: world.nodes[1].keys.rkey };
        world.nodes[0].send(1, 1, read, HEAP, 5000);
        let op = world.write_op(TARGET);
        let mut wr = world.nodes[0].wr(2, op, HEAP, 10);
        wr.flags.set(SendFlags::FENCE, fence);
        world.nodes[0].post(1, wr);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK), (2, OK)]);
        let frames = world.recording.take().unwrap();
        let at = |wanted: fn(&Pdu) -> bool| frames.iter().position(|f| wanted(&edit::packet(f).pdu)).unwrap();
        let write = at(|pdu| matches!(pdu, Pdu::Write { .. }));
        let response = at(|pdu| matches!(pdu, Pdu::ReadResponse { .. }));
        assert_eq!(write > response, fence);
    }
}

#[test]
fn no_more_reads_are_outstanding_than_agreed() {
    for rd_atomic in [1u8, 3] {
        let mut world = World::connected(Connection { rd_atomic, ..Connection::default() });
        world.recording = Some(vec![]);
        for i in 0..10 {
            let op = SendOp::Read { addr: va(TARGET), rkey: world.nodes[1].keys.rkey };
            world.nodes[0].send(1, i, op, HEAP, 100);
        }
        world.run();
        assert_eq!(world.nodes[0].completions().len(), 10);
        let (mut outstanding, mut most) = (0i32, 0);
        for frame in world.recording.take().unwrap() {
            match edit::packet(&frame).pdu {
                Pdu::ReadRequest(_) => outstanding += 1,
                Pdu::ReadResponse { .. } => outstanding -= 1,
                _ => {}
            }
            most = most.max(outstanding);
        }
        assert_eq!(most, i32::from(rd_atomic));
    }
}

#[test]
fn responder_refuses_more_reads_than_agreed() {
    let mut world = World::new();
    let qpns = [0, 1].map(|n: usize| world.nodes[n].create_rc(QpId(1)));
    let [a, b] = [&world.nodes[0], &world.nodes[1]].map(|node| (node.gids()[0], node.mac));
    let how = Connection::default();
    let now = world.now;
    world.nodes[0].bring_up(now, QpId(1), qpns[1], b.0, b.1, Connection { rd_atomic: 16, ..how });
    world.nodes[1].bring_up(now, QpId(1), qpns[0], a.0, a.1, Connection { rd_atomic: 1, ..how });
    for i in 0..8 {
        let op = SendOp::Read { addr: va(TARGET), rkey: world.nodes[1].keys.rkey };
        world.nodes[0].send(1, i, op, HEAP, 20_000);
    }
    world.run();
    let completions = world.nodes[0].completions();
    assert!(completions.iter().any(|c| c.status == WcStatus::RemInvReqErr));
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::QpReqErr(QpId(1))]);
}

#[test]
fn lost_part_of_a_read_is_asked_for_from_the_missing_packet_on() {
    let mut world = World::connected(Connection::default());
    world.recording = Some(vec![]);
    let mut lost = false;
    world.hooks.push(Box::new(move |_, frame| {
        let packet = edit::packet(&frame);
        let drop = !lost && matches!(packet.pdu, Pdu::ReadResponse { .. }) && packet.psn.get() == 0xff_fff3;
        lost |= drop;
        if drop { vec![] } else { vec![frame] }
    }));
    let data: Vec<u8> = (0..20_000u32).map(|i| (i % 247) as u8).collect();
    world.nodes[1].write(TARGET, &data);
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    world.nodes[0].send(1, 1, SendOp::Read { addr, rkey }, HEAP, 20_000);
    world.run();
    assert_eq!(world.nodes[0].read(HEAP, 20_000), data);
    let requests: Vec<_> = world
        .recording
        .take()
        .unwrap()
        .iter()
        .map(|frame| edit::packet(frame))
        .filter_map(|packet| match packet.pdu {
            Pdu::ReadRequest(reth) => Some((packet.psn.get(), reth.va - addr, reth.len)),
            _ => None,
        })
        .collect();
    assert_eq!(requests, [(0xff_fff0, 0, 20_000), (0xff_fff3, 3072, 20_000 - 3072)]);
    let counters = world.nodes[0].provider.counters();
    assert_eq!((counters.implied_naks, counters.ack_timeouts), (1, 0));
}

#[test]
fn one_acknowledgement_may_cover_many_messages() {
    let mut world = World::connected(Connection::default());
    world.recording = Some(vec![]);
    for i in 0..50 {
        let op = world.write_op(TARGET);
        world.nodes[0].send(1, i, op, HEAP, 64);
    }
    world.run();
    assert_eq!(world.nodes[0].completions().len(), 50);
    let frames = world.recording.take().unwrap();
    let acks = frames.iter().filter(|frame| matches!(edit::packet(frame).pdu, Pdu::Ack(_))).count();
    assert!(acks < 10, "{acks} acknowledgements");
}

#[test]
fn first_message_to_a_queue_pair_that_only_receives_is_reported_once() {
    let mut world = World::new();
    let qpns = [0, 1].map(|n: usize| world.nodes[n].create_rc(QpId(1)));
    let [a, b] = [&world.nodes[0], &world.nodes[1]].map(|node| (node.gids()[0], node.mac));
    let now = world.now;
    world.nodes[0].bring_up(now, QpId(1), qpns[1], b.0, b.1, Connection::default());
    let steps = common::node::rc_steps(qpns[0], a.0, a.1, Connection::default());
    for (attr, mask) in &steps[..2] {
        world.modify(1, 1, attr, *mask).unwrap();
    }
    for i in 0..2 {
        world.nodes[1].recv(1, i, TARGET, 100);
        world.nodes[0].send(1, i, SEND, HEAP, 100);
        world.run();
    }
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::CommEst(QpId(1))]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(0, OK), (1, OK)]);
}

#[test]
fn full_link_delays_frames_and_loses_none() {
    let mut world = World::connected(Connection::default());
    *world.nodes[0].link.room.lock().unwrap() = 3;
    world.nodes[0].write(HEAP, &[5; 200_000]);
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op, HEAP, 200_000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    assert_eq!(world.nodes[1].read(TARGET, 200_000), [5; 200_000]);
    let counters = world.nodes[0].provider.counters();
    assert!(counters.tx_deferred > 10);
    assert_eq!(counters.retransmitted_packets, 0);
}

#[test]
fn idle_device_has_no_deadline() {
    let mut world = World::connected(Connection::default());
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op, HEAP, 10);
    world.run();
    for node in &mut world.nodes {
        assert!(!node.provider.advance(world.now));
        assert_eq!(node.provider.next_deadline(), None);
    }
}
