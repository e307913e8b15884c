//! Shared receive queues.

mod common;

use common::node::{CQ, HEAP, Node, PD};
use common::wr::{SEND, statuses};
use common::{Carrier, Connection, World};
use verbs::{
    AsyncEvent, Error, Provider, ProviderEvent, QpId, QpInit, QpState, QpType, SendOp, SrqAttr, SrqId,
    SrqInit, WcStatus,
};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + 0x10_0000;
const SRQ: SrqId = SrqId(3);

/// Two connections whose receiving side shares a queue of eight.
fn sharing() -> World {
    let mut world = World::new();
    let attr = SrqAttr { max_wr: 8, max_sge: 2, limit: 0 };
    world.nodes[1].provider.create_srq(SRQ, SrqInit { pd: PD, attr }).unwrap();
    for id in [1, 2] {
        let qpns = [world.nodes[0].create_rc(QpId(id)), world.nodes[1].create_rc_with_srq(QpId(id), SRQ)];
        world.connect_existing(QpId(id), qpns, Connection::default());
    }
    world
}

#[test]
fn receives_go_to_whichever_queue_pair_needs_one() {
    let mut world = sharing();
    for i in 0..4 {
        world.nodes[1].srq_recv(3, i, TARGET + i * 4096, 4096);
    }
    for qp in [2, 1, 1, 2] {
        world.nodes[0].send(qp, u64::from(qp), SEND, HEAP, 2000);
        world.run();
    }
    let received: Vec<_> = world.nodes[1].completions().iter().map(|c| (c.wr_id, c.qp, c.status)).collect();
    assert_eq!(received, [(0, QpId(2), OK), (1, QpId(1), OK), (2, QpId(1), OK), (3, QpId(2), OK)]);
    let retired = world.nodes[1].events.iter().filter(|e| **e == ProviderEvent::SrqRetired(SRQ)).count();
    assert_eq!(retired, 4);
}

#[test]
fn crossing_the_limit_is_reported_once_and_disarms_it() {
    let mut world = sharing();
    for i in 0..6 {
        world.nodes[1].srq_recv(3, i, TARGET, 4096);
    }
    world.nodes[1].provider.set_srq_limit(SRQ, 4).unwrap();
    for (sent, events) in [(2, 0), (1, 1), (2, 0)] {
        for i in 0..sent {
            world.nodes[0].send(1, i, SEND, HEAP, 10);
        }
        world.run();
        let expected = vec![AsyncEvent::SrqLimitReached(SRQ); events];
        assert_eq!(world.nodes[1].async_events(), expected);
    }
    assert_eq!(world.nodes[1].provider.query_srq(SRQ).unwrap().limit, 0);
    assert!(matches!(world.nodes[1].provider.set_srq_limit(SRQ, 9), Err(Error::Invalid(_))));
}

#[test]
fn limit_may_be_armed_again_and_below_it_the_next_receive_taken_tells() {
    let mut world = sharing();
    for i in 0..4 {
        world.nodes[1].srq_recv(3, i, TARGET, 4096);
    }
    for limit in [4, 8, 1] {
        // 3, 2 and 1 are left after this one; neither arming nor posting is an event.
        world.nodes[1].provider.set_srq_limit(SRQ, limit).unwrap();
        assert_eq!(world.nodes[1].async_events(), []);
        world.nodes[0].send(1, 1, SEND, HEAP, 10);
        world.run();
        let expected = if limit == 1 { vec![] } else { vec![AsyncEvent::SrqLimitReached(SRQ)] };
        assert_eq!(world.nodes[1].async_events(), expected);
    }
    world.nodes[1].provider.set_srq_limit(SRQ, 0).unwrap();
    world.nodes[0].send(1, 1, SEND, HEAP, 10);
    world.run();
    assert_eq!(world.nodes[1].async_events(), []);
}

#[test]
fn last_receive_is_told_once_however_the_queue_pair_failed() {
    let last = |id| AsyncEvent::LastWqeReached(QpId(id));
    let mut world = sharing();
    // Its own request fails.
    world.nodes[1].send(1, 1, SendOp::Bad(WcStatus::LocLenErr), HEAP, 0);
    world.run();
    assert_eq!(world.nodes[1].async_events(), [last(1)]);
    // It refuses a request of its peer.
    world.nodes[0].send(2, 1, SendOp::Write { addr: 0, rkey: 0, imm: None }, HEAP, 1);
    world.run();
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::QpAccessErr(QpId(2)), last(2)]);
    // Once in error, nothing is news.
    world.set_state(1, 1, QpState::Err).unwrap();
    world.set_state(1, 2, QpState::Reset).unwrap();
    world.set_state(0, 1, QpState::Err).unwrap();
    assert_eq!([0, 1].map(|n: usize| world.nodes[n].async_events()), [vec![], vec![]]);
}

#[test]
fn empty_queue_is_answered_with_rnr() {
    let mut world = sharing();
    world.nodes[0].send(1, 1, SEND, HEAP, 10);
    world.run_for(std::time::Duration::from_millis(3));
    assert!(world.nodes[0].provider.counters().rnr_naks_received > 0);
    world.nodes[1].srq_recv(3, 7, TARGET, 10);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
}

#[test]
fn failing_queue_pair_gives_up_the_receive_it_holds_and_leaves_the_others() {
    let mut world = sharing();
    // In the middle of a message, which channels carry in one go.
    world.carrier = Carrier::Wire;
    for i in 0..3 {
        world.nodes[1].srq_recv(3, i, TARGET, 1 << 20);
    }
    world.nodes[0].send(1, 1, SEND, HEAP, 1 << 20);
    world.run_for(std::time::Duration::from_micros(9));
    world.set_state(1, 1, QpState::Err).unwrap();
    assert_eq!(statuses(&world.nodes[1].completions()), [(0, WcStatus::WrFlushErr)]);
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::LastWqeReached(QpId(1))]);
    world.nodes[0].send(2, 2, SEND, HEAP, 10);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK)]);
}

#[test]
fn queue_in_use_or_full_refuses() {
    let mut world = sharing();
    let node = &mut world.nodes[1];
    assert_eq!(node.provider.destroy_srq(SRQ), Err(Error::Busy));
    for i in 0..8 {
        node.srq_recv(3, i, TARGET, 10);
    }
    let wr = node.recv_wr(9, TARGET, 10);
    assert_eq!(node.provider.post_srq_recv(SRQ, wr.clone()), Err(Error::Exhausted));
    assert!(matches!(node.provider.post_recv(QpId(1), wr), Err(Error::Invalid(_))));
    for id in [1, 2] {
        node.provider.destroy_qp(QpId(id)).unwrap();
    }
    node.provider.destroy_srq(SRQ).unwrap();
    let init = QpInit { srq: Some(SRQ), send_cq: CQ, ..Node::qp_init(QpType::Rc) };
    assert_eq!(node.provider.create_qp(QpId(1), init), Err(Error::NotFound));
}
