//! A carrier that comes and goes: nothing is lost, and nothing done twice.

use std::time::Duration;

use proptest::prelude::*;
use verbs::{Access, MrId, Mtu, Provider, QpId, QpState, SendOp, WcStatus};

use super::common::node::{HEAP, HEAP_VA};
use super::common::scenario::{Kind, Op, Scenario, check};
use super::common::wr::{SEND, statuses, va};
use super::common::{Carrier, Connection, Faults, Rng, World};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + (16 << 20);

fn changing(percent: u64, seed: u64) -> World {
    let mut world = World::new();
    world.carrier = Carrier::Changing(percent, Rng::new(seed));
    world
}

#[test]
fn every_operation_and_size_is_exact_while_the_carrier_changes() {
    for mtu in Mtu::ALL {
        for seed in 0..8 {
            let mut world = changing(30, seed);
            if seed % 2 == 1 {
                world.faults = Faults::rough(seed);
            }
            let bytes = mtu.bytes();
            let sizes = [0, 1, 256, 257, bytes + 1, 100 * bytes + 3];
            let scenario = Scenario::every_kind(mtu, &sizes, seed);
            check(&mut world, &scenario).unwrap_or_else(|e| panic!("{mtu:?}, seed {seed}: {e}"));
        }
    }
}

#[test]
fn large_messages_are_exact_while_the_carrier_changes() {
    for (kind, mtu) in [(Kind::Write, Mtu::B4096), (Kind::Read, Mtu::B1024), (Kind::Send, Mtu::B2048)] {
        let mut world = changing(10, 7);
        let op = Op { kind, size: (4 << 20) + 5, fence: false, signaled: true };
        let connection = Connection { mtu, ..Connection::default() };
        let scenario = Scenario { connection, ops: vec![op; 2], early_receives: 2, seed: 3 };
        check(&mut world, &scenario).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        let counters = world.nodes[0].provider.counters();
        assert!(counters.direct_tx_records > 0 && counters.direct_losses > 0, "{counters:?}");
    }
}

#[test]
fn bytes_are_copied_once_and_the_link_is_not_used() {
    let len = 1_000_000;
    for (op, copier) in [("write", 1), ("read", 0), ("send", 1)] {
        let mut world = World::new();
        world.connect(1, Connection::default());
        let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
        world.nodes[1].recv(1, 7, TARGET, len);
        let op = match op {
            "write" => SendOp::Write { addr, rkey, imm: None },
            "read" => SendOp::Read { addr, rkey },
            _ => SEND,
        };
        world.nodes[0].send(1, 1, op, HEAP, len);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
        let counters = [0, 1].map(|n: usize| *world.nodes[n].provider.counters());
        let copied = counters.map(|c| c.direct_copied_bytes + c.tunnel_fetched_bytes);
        assert_eq!(copied[copier], u64::from(len));
        assert_eq!(copied[1 - copier], 0);
        assert_eq!(counters.map(|c| c.tx_packets), [0, 0]);
        // A chunk takes one record, its answer another.
        assert!(counters[0].direct_tx_records < 10, "{:?}", counters[0]);
    }
}

#[test]
fn sequence_numbers_are_those_of_packets() {
    for carrier in [Carrier::Wire, Carrier::Direct] {
        let mut world = World::new();
        world.carrier = carrier;
        world.connect(1, Connection { psn: 0, ..Connection::default() });
        let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
        for (len, psn) in [(0, 1), (1, 2), (1024, 3), (1025, 5), (300 << 10, 305)] {
            world.nodes[0].send(1, 1, SendOp::Write { addr, rkey, imm: None }, HEAP, len);
            world.run();
            assert_eq!(world.nodes[0].provider.query_qp(QpId(1)).unwrap().sq_psn, psn);
            assert_eq!(world.nodes[1].provider.query_qp(QpId(1)).unwrap().rq_psn, psn);
        }
        world.nodes[0].send(1, 1, SendOp::Read { addr, rkey }, HEAP, 10_000);
        world.run();
        assert_eq!(world.nodes[0].provider.query_qp(QpId(1)).unwrap().sq_psn, 315);
    }
}

#[test]
fn destroyed_region_is_read_by_nobody_afterwards() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let region = world.nodes[0].register(9, HEAP_VA, HEAP, 1 << 20, Access::all());
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    let mut wr = world.nodes[0].wr(1, SendOp::Write { addr, rkey, imm: None }, HEAP, 1 << 20);
    wr.sges[0].lkey = region.lkey;
    world.run();
    world.nodes[0].post(1, wr);
    // The request is on its way, and the peer does not look.
    world.nodes[0].provider.advance(world.now);
    let losses = world.nodes[0].provider.counters().direct_losses;
    world.nodes[0].provider.deregister_mr(MrId(9)).unwrap();
    assert_eq!(world.nodes[0].provider.counters().direct_losses, losses + 1);
    world.nodes[0].write(HEAP, &[0x5e; 4096]);
    world.run();
    assert_eq!(world.nodes[1].read(TARGET, 4096), [0; 4096]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn region_may_go_at_once_when_the_peer_has_read_it() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let region = world.nodes[0].register(9, HEAP_VA, HEAP, 1 << 20, Access::all());
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    let mut wr = world.nodes[0].wr(1, SendOp::Write { addr, rkey, imm: None }, HEAP, 1 << 20);
    wr.sges[0].lkey = region.lkey;
    world.nodes[0].post(1, wr);
    world.run();
    let losses = world.nodes[0].provider.counters().direct_losses;
    world.nodes[0].provider.deregister_mr(MrId(9)).unwrap();
    assert_eq!(world.nodes[0].provider.counters().direct_losses, losses);
}

#[test]
fn peer_that_is_gone_fails_a_connection_as_on_the_wire() {
    let mut world = World::new();
    world.connect(1, Connection { retry_cnt: 2, ..Connection::default() });
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    world.run();
    world.carrier = Carrier::Wire;
    world.hooks.push(Box::new(|_, _| vec![]));
    let mac = world.nodes[1].mac;
    world.nodes[0].provider.detach(mac);
    world.nodes[0].send(1, 1, SendOp::Write { addr, rkey, imm: None }, HEAP, 1 << 20);
    world.run_for(Duration::from_secs(5));
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(world.nodes[0].state(1), QpState::Err);
}

#[test]
fn a_port_that_goes_down_takes_its_channels_along() {
    for down in [0, 1] {
        let mut world = World::new();
        world.connect(1, Connection { timeout: 14, ..Connection::default() });
        world.run();
        let losses = world.nodes[down].provider.counters().direct_losses;
        world.nodes[down].provider.set_port(false);
        assert_eq!(world.nodes[down].provider.counters().direct_losses, losses + 1);
        world.carrier = Carrier::Wire;
        let op = world.write_op(TARGET);
        world.nodes[0].send(1, 1, op, HEAP, 3000);
        world.run_for(Duration::from_millis(100));
        assert!(world.nodes[0].completions().is_empty());
        world.nodes[down].provider.set_port(true);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![0u32..4, 200u32..300, 0u32..200_000];
    (prop::sample::select(&Kind::ALL[..]), size, any::<bool>(), any::<bool>())
        .prop_map(|(kind, size, fence, signaled)| Op { kind, size, fence, signaled })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mix_of_operations_is_exact_while_the_carrier_changes(
        ops in prop::collection::vec(any_op(), 1..30),
        mtu in prop::sample::select(&Mtu::ALL[..]),
        (percent, seed, rough) in (1u64..50, any::<u64>(), any::<bool>()),
        early_receives in 0usize..8,
    ) {
        let mut world = changing(percent, seed);
        if rough {
            world.faults = Faults { loss: 3, duplication: 5, reordering: 10, ..Faults::rough(seed) };
        }
        let connection = Connection { mtu, ..Connection::default() };
        prop_assert_eq!(check(&mut world, &Scenario { connection, ops, early_receives, seed }), Ok(()));
    }
}
