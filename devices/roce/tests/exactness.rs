//! Every operation, at every path MTU, over a wire that loses, doubles and reorders: data and order must be exact.

mod common;

use common::node::{HEAP, PD};
use common::scenario::{Kind, OUT_OF_RETRIES, Op, Scenario, check};
use common::wr::statuses;
use common::{Connection, Faults, World};
use proptest::prelude::*;
use verbs::{Access, MrId, MrInit, MrKind, Mtu, PageList, Provider, SendOp, Sge, WcStatus};

fn sizes(mtu: Mtu) -> [u32; 6] {
    let mtu = mtu.bytes();
    [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu + 3]
}

#[test]
fn every_operation_and_size_is_exact_on_a_good_wire() {
    for mtu in Mtu::ALL {
        let mut world = World::new();
        check(&mut world, &Scenario::every_kind(mtu, &sizes(mtu), 1)).unwrap();
        assert_eq!(world.nodes[0].provider.counters().ack_timeouts, 0);
    }
}

#[test]
fn every_operation_and_size_is_exact_on_a_rough_wire() {
    for mtu in Mtu::ALL {
        for seed in 0..4 {
            let mut world = World::new();
            world.faults = Faults::rough(seed);
            let scenario = Scenario::every_kind(mtu, &sizes(mtu), seed);
            check(&mut world, &scenario).unwrap_or_else(|e| panic!("{mtu:?}, seed {seed}: {e}"));
            assert!(world.nodes[0].provider.counters().retransmitted_packets > 0);
        }
    }
}

#[test]
fn large_messages_are_exact_on_a_rough_wire() {
    let big = 8 << 20;
    for (kind, mtu) in [(Kind::Write, Mtu::B4096), (Kind::Read, Mtu::B2048), (Kind::Send, Mtu::B1024)] {
        let mut world = World::new();
        world.faults = Faults { loss: 2, duplication: 2, reordering: 2, ..Faults::rough(9) };
        let op = Op { kind, size: big + 1, fence: false, signaled: true };
        let connection = Connection { mtu, ..Connection::default() };
        let scenario = Scenario { connection, ops: vec![op], early_receives: 1, seed: 3 };
        check(&mut world, &scenario).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    }
}

#[test]
fn message_of_two_gigabytes_is_carried() {
    // One page of memory, half a million times.
    let len = 1u32 << 31;
    let pages = PageList::new(12, &vec![HEAP; (len >> 12) as usize]).unwrap();
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B4096, ..Connection::default() });
    let keys = [0, 1].map(|n: usize| {
        let kind = MrKind::Pages(pages.clone());
        let init = MrInit { pd: PD, iova: 0, length: u64::from(len), access: Access::all(), kind };
        world.nodes[n].provider.register_mr(MrId(2), init).unwrap()
    });
    world.nodes[0].write(HEAP, &[0xa5; 4096]);
    world.nodes[1].recv(1, 7, HEAP + 0x1_0000, 0);
    let op = SendOp::Write { addr: 0, rkey: keys[1].rkey, imm: Some([0; 4]) };
    let mut wr = world.nodes[0].wr(1, op, HEAP, len);
    wr.sges[0] = Sge { addr: 0, length: len, lkey: keys[0].lkey };
    world.nodes[0].post(1, wr);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::Success)]);
    assert_eq!(world.nodes[1].completions()[0].byte_len, len);
    assert_eq!(world.nodes[1].read(HEAP, 4096), [0xa5; 4096]);
}

fn any_op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![0u32..4, 200u32..300, 1000u32..1100, 0u32..20_000];
    (prop::sample::select(&Kind::ALL[..]), size, any::<bool>(), any::<bool>())
        .prop_map(|(kind, size, fence, signaled)| Op { kind, size, fence, signaled })
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let connection = (prop::sample::select(&Mtu::ALL[..]), 0u32..0x40, 1u8..6, 0u8..2).prop_map(
        |(mtu, psn, rd_atomic, gid_index)| Connection {
            mtu,
            psn: (0xff_ffe0 + psn) & 0xff_ffff,
            rd_atomic,
            gid_index,
            ..Connection::default()
        },
    );
    (connection, prop::collection::vec(any_op(), 1..40), 0usize..8, any::<u64>()).prop_map(
        |(connection, ops, early_receives, seed)| Scenario { connection, ops, early_receives, seed },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mix_of_operations_is_exact_on_a_rough_wire(scenario in any_scenario()) {
        let mut world = World::new();
        world.faults = Faults::rough(scenario.seed);
        prop_assert_eq!(check(&mut world, &scenario), Ok(()));
    }

    #[test]
    fn any_mix_of_operations_is_exact_or_fails_in_time_on_a_terrible_wire(scenario in any_scenario()) {
        let mut world = World::new();
        world.faults = Faults { loss: 30, duplication: 20, reordering: 30, ..Faults::rough(scenario.seed) };
        let result = check(&mut world, &scenario);
        prop_assert!(result.is_ok() || result == Err(OUT_OF_RETRIES.to_owned()), "{:?}", result);
    }
}
