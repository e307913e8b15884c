//! The device as an operator sees it.

mod common;

use common::Rig;
use common::wire::{Node, VA, World};
use pvrdma::{Cause, DriverPhase, Snapshot};
use pvrdma_driver::{Qp, SendWork};
use pvrdma_spec::queue::{RdmaOperands, WrOpcode};
use verbs::{Owner, QpState, QpType, Qpn, WcStatus};

const SIGNALED: u32 = 2;

fn look(node: &Node) -> Snapshot {
    node.guest().device.snapshot(0, 100)
}

/// Writes `len` bytes to the peer's memory under `rkey`.
fn write(node: &Node, qp: &Qp, rkey: u32, len: u32) {
    let operands = RdmaOperands { remote_addr: VA, rkey, reserved: 0 };
    let work = SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[node.sge(0, len)]);
    assert!(node.driver.post_send(qp, &work.operands(&operands)));
}

fn transport(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot.provider.iter().find(|(other, _)| *other == name).expect("there is such a counter").1
}

#[test]
fn connected_queue_pair_shows_its_peer_and_where_it_is() {
    let world = World::new();
    let qps = world.connect(1);
    let [a, b] = &world.nodes;
    let before = look(a);
    write(a, &qps[0], b.mr.rkey, 5000);
    world.run();
    let [mine, theirs] = [look(a), look(b)];

    assert_eq!((mine.phase, mine.gids.len()), (DriverPhase::Active, 2));
    let [qp] = mine.queue_pairs[..] else { panic!("{:?}", mine.queue_pairs) };
    assert_eq!(
        (qp.handle, qp.qpn, qp.qp_type, qp.owner),
        (qps[0].handle, Qpn(qps[0].qpn), QpType::Rc, Owner::User)
    );
    assert_eq!((qp.attr.state, qp.failure), (QpState::Rts, None));
    assert_eq!((qp.attr.dest_qpn, qp.attr.av.dgid), (theirs.queue_pairs[0].qpn, theirs.gids[1].gid));
    // Five packets of 1024 bytes at most, from a number that wraps around.
    assert_eq!((before.queue_pairs[0].attr.sq_psn, qp.attr.sq_psn), (0xff_fff0, 0xff_fff5));
    assert_eq!(theirs.queue_pairs[0].attr.rq_psn, 0xff_fff5);

    assert_eq!((mine.objects.queue_pairs, mine.objects.memory_regions), (1, 1));
    assert!(mine.limits.queue_pairs > 1 && mine.limits.page_list_bytes > mine.objects.page_list_bytes);
    assert_eq!((transport(&mine, "tx_bytes"), transport(&theirs, "rx_bytes")), (5000, 5000));
    assert_eq!(mine.counters.completions[WcStatus::Success as usize], 1);
    assert!(mine.failures.is_empty());
}

#[test]
fn failure_is_remembered_longer_than_its_queue_pair() {
    let world = World::new();
    let [mine, theirs] = world.connect(1);
    let [a, b] = &world.nodes;
    b.driver.destroy_qp(theirs, &[&b.cq]).expect("queue pair goes");
    write(a, &mine, b.mr.rkey, 1);
    world.run();
    let cause = Cause::Completion(WcStatus::RetryExcErr);
    let seen = look(a);
    assert_eq!((seen.queue_pairs[0].attr.state, seen.queue_pairs[0].failure), (QpState::Err, Some(cause)));
    assert!(transport(&seen, "retransmitted_packets") > 0);

    let (handle, qpn) = (mine.handle, Qpn(mine.qpn));
    a.driver.destroy_qp(mine, &[&a.cq]).expect("queue pair goes");
    let seen = look(a);
    assert!(seen.queue_pairs.is_empty());
    let [failure] = seen.failures[..] else { panic!("{:?}", seen.failures) };
    assert_eq!((failure.handle, failure.qpn, failure.cause), (handle, qpn, cause));
    assert_eq!(failure.peer_gid, look(b).gids[1].gid);
}

#[test]
fn refused_access_is_seen_at_both_ends_and_nak_by_its_kind() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, b] = &world.nodes;
    write(a, &qps[0], b.mr.rkey ^ 1, 1);
    world.run();
    let [mine, theirs] = [look(a), look(b)];
    assert_eq!(mine.queue_pairs[0].failure, Some(Cause::Completion(WcStatus::RemAccessErr)));
    assert!(matches!(theirs.queue_pairs[0].failure, Some(Cause::Event(verbs::AsyncEvent::QpAccessErr(_)))));
    assert_eq!(transport(&mine, "remote_access_naks_received"), 1);
    assert_eq!(transport(&theirs, "remote_access_naks_sent"), 1);
    assert_eq!(transport(&mine, "invalid_request_naks_received"), 0);
}

#[test]
fn reset_forgets_what_a_queue_pair_failed_of() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, b] = &world.nodes;
    write(a, &qps[0], b.mr.rkey ^ 1, 1);
    world.run();
    let mut attrs = <pvrdma_spec::attr::QpAttr as zerocopy::FromZeros>::new_zeroed();
    attrs.qp_state = QpState::Reset as u32;
    a.driver.modify_qp(&qps[0], 1, &attrs).expect("to reset");
    assert_eq!(look(a).queue_pairs[0].failure, None);
    assert_eq!(look(a).failures.len(), 1);
}

#[test]
fn many_queue_pairs_come_in_bounded_pieces() {
    let rig = Rig::new();
    let process = rig.process(1);
    let mut qps: Vec<_> = (0..5).map(|_| process.try_qp(None).expect("queue pair comes")).collect();
    let gone = qps.remove(2);
    rig.driver.destroy_qp(gone, &[&process.cq]).expect("queue pair goes");
    let (mut handles, mut next) = (Vec::new(), Some(0));
    while let Some(first) = next {
        let piece = rig.guest().device.snapshot(first, 3);
        assert!(piece.queue_pairs.len() <= 3);
        handles.extend(piece.queue_pairs.iter().map(|qp| qp.handle));
        next = piece.next_queue_pair;
    }
    assert_eq!(handles, qps.iter().map(|qp| qp.handle).collect::<Vec<_>>());
}

#[test]
fn device_without_driver_says_so() {
    let (guest, _) = common::machine(Default::default(), pvrdma::test_utils::FakeProvider::LIMITS);
    let seen = guest.device.snapshot(0, 100);
    assert_eq!(seen.phase, DriverPhase::None);
    assert!(seen.gids.is_empty() && seen.queue_pairs.is_empty());
}
