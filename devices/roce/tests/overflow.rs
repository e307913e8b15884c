//! Completion queues that overflow.

mod common;

use common::node::{CQ, HEAP, Node};
use common::wr::{SEND, statuses};
use common::{Carrier, Connection, World};
use verbs::{
    AsyncEvent, CqId, CqInit, Owner, Provider, ProviderEvent, QpId, QpInit, QpState, QpType, WcStatus,
};

const QP: QpId = QpId(1);
const TARGET: u64 = HEAP + 0x10_0000;

#[test]
fn overflown_completion_queue_fails_its_queue_pairs_without_naming_it_again() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let node = &mut world.nodes[0];
    node.recv(1, 1, TARGET, 10);
    node.provider.fail_cq(CQ);
    node.collect_events();
    assert_eq!(node.state(1), QpState::Err);
    let told = [ProviderEvent::Async(AsyncEvent::QpFatal(QP)), ProviderEvent::RecvRetired(QP)];
    assert_eq!(node.events, told);
}

#[test]
fn overflow_harms_no_queue_pair_that_completes_elsewhere() {
    let mut world = World::new();
    // So that messages are in the middle when the queue overflows: channels carry them in one go.
    world.carrier = Carrier::Wire;
    let other = CqId(2);
    world.connect(1, Connection::default());
    let qpns = [0, 1].map(|n: usize| {
        let provider = &mut world.nodes[n].provider;
        provider.create_cq(other, CqInit { owner: Owner::Kernel, depth: 16 }).unwrap();
        let init = QpInit { send_cq: other, recv_cq: other, ..Node::qp_init(QpType::Rc) };
        provider.create_qp(QpId(2), init).unwrap()
    });
    world.connect_existing(QpId(2), qpns, Connection::default());
    // In the middle of messages on both.
    for qp in [1, 2] {
        world.nodes[1].recv(qp, 7, TARGET, 1 << 20);
        world.nodes[0].send(qp, 1, SEND, HEAP, 1 << 20);
    }
    world.run_for(std::time::Duration::from_micros(7));
    world.nodes[1].provider.fail_cq(CQ);
    world.run();
    let got: Vec<_> = world.nodes[1].completions().iter().map(|c| (c.qp, c.cq, c.status)).collect();
    assert_eq!(got, [(QpId(2), other, WcStatus::Success)]);
    let sent: Vec<_> = world.nodes[0].completions().iter().map(|c| (c.qp, c.status)).collect();
    assert_eq!(sent, [(QpId(2), WcStatus::Success), (QP, WcStatus::RetryExcErr)]);
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::QpFatal(QP)]);
    // What uses the queue that failed is destroyed like any other.
    world.nodes[1].provider.destroy_qp(QP).unwrap();
    world.nodes[1].provider.destroy_cq(CQ).unwrap();
    world.nodes[1].recv(2, 8, TARGET, 10);
    world.nodes[0].send(2, 2, SEND, HEAP, 10);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(8, WcStatus::Success)]);
}
