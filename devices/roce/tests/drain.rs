//! Draining a send queue: the SQD state.

mod common;

use std::time::Duration;

use common::node::HEAP;
use common::wr::{SEND, statuses, va};
use common::{Carrier, Connection, World};
use verbs::{
    AsyncEvent, Mtu, Provider, QpAttr, QpAttrMask, QpId, QpState, QpType, SendFlags, SendOp, UdAddress,
    WcStatus,
};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + 0x10_0000;
const DRAINED: AsyncEvent = AsyncEvent::SqDrained(QpId(1));

/// Starts to drain node 0's queue, and wants to hear when it is.
fn drain(world: &mut World) {
    let attr = QpAttr { state: QpState::Sqd, sqd_async_notify: true, ..QpAttr::default() };
    world.modify(0, 1, &attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
}

fn draining(world: &World) -> bool {
    world.nodes[0].provider.query_qp(QpId(1)).unwrap().sq_draining
}

#[test]
fn drained_queue_is_reported_once_and_starts_nothing_new() {
    let mut world = World::connected(Connection { mtu: Mtu::B256, ..Connection::default() });
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op.clone(), HEAP, 1 << 20);
    world.run_for(Duration::from_micros(7));
    drain(&mut world);
    assert!(draining(&world));
    world.nodes[0].send(1, 2, op, HEAP, 10);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
    assert!(!draining(&world));
    world.set_state(0, 1, QpState::Rts).unwrap();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(2, OK)]);
    drain(&mut world);
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
}

#[test]
fn empty_queue_is_drained_at_once() {
    let mut world = World::connected(Connection::default());
    drain(&mut world);
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
    assert!(!draining(&world));
}

#[test]
fn drained_is_said_only_to_who_asked_and_still_waits() {
    let mut world = World::connected(Connection { mtu: Mtu::B256, ..Connection::default() });
    let op = world.write_op(TARGET);
    world.nodes[0].send(1, 1, op.clone(), HEAP, 1 << 20);
    world.run_for(Duration::from_micros(7));
    world.set_state(0, 1, QpState::Sqd).unwrap();
    world.run();
    assert_eq!(world.nodes[0].async_events(), []);
    world.set_state(0, 1, QpState::Rts).unwrap();
    // Asked, and gone back to work before it came about.
    world.nodes[0].send(1, 2, op.clone(), HEAP, 1 << 20);
    world.run_for(Duration::from_micros(7));
    drain(&mut world);
    world.set_state(0, 1, QpState::Rts).unwrap();
    world.nodes[0].send(1, 3, op, HEAP, 1 << 20);
    world.run_for(Duration::from_micros(7));
    world.set_state(0, 1, QpState::Sqd).unwrap();
    world.run();
    assert_eq!(world.nodes[0].async_events(), []);
    world.set_state(0, 1, QpState::Rts).unwrap();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn queue_is_drained_when_unsignalled_requests_reads_and_lost_packets_are_done() {
    let mut world = World::connected(Connection::default());
    let (op, rkey) = (world.write_op(TARGET), world.nodes[1].keys.rkey);
    let mut lost = 3;
    world.hooks.push(Box::new(move |_, frame| {
        lost -= i32::from(lost > 0);
        if lost > 0 { vec![] } else { vec![frame] }
    }));
    for wr_id in 0..3 {
        let mut wr = world.nodes[0].wr(wr_id, op.clone(), HEAP, 5000);
        wr.flags = SendFlags::empty();
        world.nodes[0].post(1, wr);
    }
    let read = SendOp::Read { addr: va(TARGET), rkey };
    let mut wr = world.nodes[0].wr(9, read, HEAP, 5000);
    wr.flags = SendFlags::empty();
    world.nodes[0].post(1, wr);
    world.run_for(Duration::from_micros(1));
    drain(&mut world);
    assert!(draining(&world));
    assert_eq!(world.nodes[0].async_events(), []);
    world.run();
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
    assert_eq!(world.nodes[0].completions(), []);
}

#[test]
fn send_that_finds_no_receive_keeps_the_queue_from_being_drained() {
    let mut world = World::connected(Connection::default());
    world.nodes[0].send(1, 1, SEND, HEAP, 10);
    world.run_for(Duration::from_millis(3));
    drain(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(draining(&world));
    assert_eq!(world.nodes[0].async_events(), []);
    world.nodes[1].recv(1, 7, TARGET, 10);
    world.run();
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
}

#[test]
fn drained_queue_pair_still_answers_its_peer() {
    let mut world = World::connected(Connection::default());
    drain(&mut world);
    let (addr, rkey) = (va(TARGET), world.nodes[0].keys.rkey);
    world.nodes[0].recv(1, 7, TARGET, 10);
    world.nodes[1].send(1, 1, SEND, HEAP, 10);
    world.nodes[1].send(1, 2, SendOp::Read { addr, rkey }, HEAP, 5000);
    world.nodes[1].send(1, 3, SendOp::FetchAdd { addr, rkey, add: 1 }, HEAP, 8);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(7, OK)]);
}

#[test]
fn retry_budget_may_be_changed_while_draining() {
    let mut world = World::connected(Connection::default());
    let op = world.write_op(TARGET);
    // Frames are lost.
    world.carrier = Carrier::Wire;
    world.hooks.push(Box::new(|_, _| vec![]));
    world.nodes[0].send(1, 1, op, HEAP, 10);
    world.run_for(Duration::from_micros(1));
    drain(&mut world);
    let attr = QpAttr { state: QpState::Sqd, retry_cnt: 1, timeout: 8, ..QpAttr::default() };
    world.modify(0, 1, &attr, QpAttrMask::STATE | QpAttrMask::RETRY_CNT | QpAttrMask::TIMEOUT).unwrap();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(world.nodes[0].provider.counters().ack_timeouts, 2);
    assert_eq!(world.nodes[0].async_events(), []);
}

#[test]
fn drained_datagram_queue_sends_nothing_until_it_goes_on() {
    let mut world = World::new();
    let now = world.now;
    let [_, qpn] = [0, 1].map(|n: usize| world.nodes[n].create_ud(now, QpId(1), QpType::Ud, 5));
    drain(&mut world);
    assert_eq!(world.nodes[0].async_events(), [DRAINED]);
    let to = UdAddress { av: world.nodes[0].av(&world.nodes[1], 0), qpn, qkey: 5 };
    world.nodes[1].recv(1, 7, TARGET, 100);
    world.nodes[0].send(1, 1, SendOp::UdSend { to, imm: None }, HEAP, 10);
    world.run();
    assert_eq!(world.nodes[0].completions(), []);
    world.set_state(0, 1, QpState::Rts).unwrap();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    assert_eq!(statuses(&world.nodes[1].completions()), [(7, OK)]);
}
