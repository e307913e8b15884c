//! Saved engines: what they take, what comes back, and what is refused.

mod common;

use std::time::Duration;

use device_model::save::{Record, RestoreError};
use roce::engine::Config;
use roce::provider::{RoceConfig, RoceProvider};
use verbs::{CqId, CqInit, Error, Mtu, Owner, Provider, QpAttr, QpId, QpState, QpType, SendOp, WcStatus};

use common::node::{CQ, HEAP, PD};
use common::wr::{statuses, va};
use common::{Connection, Node, World};

/// An empty device in place of a node's.
fn successor(node: &Node) -> RoceProvider {
    let config = RoceConfig { mac: node.mac, engine: Config { secret: 99, ..Config::default() } };
    RoceProvider::new(config, node.ram.clone(), node.link.clone()).unwrap()
}

/// Moves a node's state to a new device.
fn move_node(world: &mut World, n: usize) {
    let record = world.nodes[n].provider.save(world.now).unwrap();
    let mut provider = successor(&world.nodes[n]);
    provider.restore(world.now, &record).unwrap();
    world.nodes[n].provider = provider;
}

/// Two nodes in the middle of everything that takes more than a packet.
fn busy() -> World {
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B256, ..Connection::default() });
    let (rkey, addr) = (world.nodes[1].keys.rkey, va(HEAP));
    let node = &mut world.nodes[0];
    node.send(1, 0, SendOp::Write { addr, rkey, imm: None }, HEAP, 5000);
    node.send(1, 1, SendOp::Read { addr, rkey }, HEAP + 0x1_0000, 5000);
    node.send(1, 2, SendOp::FetchAdd { addr, rkey, add: 5 }, HEAP + 0x2_0000, 8);
    world.run_for(Duration::from_micros(7));
    world
}

#[test]
fn idle_connection_takes_less_than_a_kibibyte() {
    const CONNECTIONS: usize = 100;
    let mut world = World::new();
    let empty = world.nodes[0].provider.save(world.now).unwrap().len();
    for id in 1..=CONNECTIONS as u32 {
        let init = CqInit { owner: Owner::User, depth: 16 };
        world.nodes[0].provider.create_cq(CqId(100 + id), init).unwrap();
        world.connect(id, Connection::default());
    }
    world.run();
    let each = (world.nodes[0].provider.save(world.now).unwrap().len() - empty) / CONNECTIONS;
    assert!(each <= 1024, "{each} bytes");
}

#[test]
fn numbers_keys_and_attributes_stay() {
    let mut world = busy();
    for n in 0..2 {
        let before = world.nodes[n].provider.query_qp(QpId(1)).unwrap();
        let counters = *world.nodes[n].provider.counters();
        move_node(&mut world, n);
        let after = world.nodes[n].provider.query_qp(QpId(1)).unwrap();
        // The requester starts again at what was not acknowledged.
        assert_eq!(QpAttr { sq_psn: before.sq_psn, ..after }, before);
        assert_eq!(*world.nodes[n].provider.counters(), counters);
    }
    world.run();
    let done = statuses(&world.nodes[0].completions());
    assert_eq!(done, [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
}

#[test]
fn objects_stay_in_use_and_numbers_taken() {
    let mut world = busy();
    move_node(&mut world, 0);
    let provider = &mut world.nodes[0].provider;
    assert_eq!(provider.destroy_pd(PD), Err(Error::Busy));
    assert_eq!(provider.destroy_cq(CQ), Err(Error::Busy));
    assert_eq!(provider.create_qp(QpId(1), Node::qp_init(QpType::Rc)), Err(Error::Exists));
    provider.destroy_qp(QpId(1)).unwrap();
    provider.destroy_cq(CQ).unwrap();
}

#[test]
fn destination_whose_link_is_too_small_refuses_and_stays_empty() {
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B4096, ..Connection::default() });
    let record = world.nodes[0].provider.save(world.now).unwrap();
    let small = Node::with(3, 1500, Config::default());
    let config = RoceConfig { mac: small.mac, engine: Config::default() };
    let mut provider = RoceProvider::new(config, small.ram.clone(), small.link.clone()).unwrap();
    let refused = provider.restore(world.now, &record);
    assert!(matches!(&refused, Err(RestoreError::Invalid { why, .. }) if why.contains("MTU")), "{refused:?}");
    assert_eq!(provider.query_qp(QpId(1)), Err(Error::NotFound));
    provider.create_pd(PD, Owner::Kernel).unwrap();
}

#[test]
fn damaged_state_is_refused_or_harms_nobody_else() {
    let mut world = busy();
    let now = world.now;
    let good = postcard::to_allocvec(&world.nodes[0].provider.save(now).unwrap()).unwrap();
    let node = &world.nodes[0];
    let (mut refused, mut taken) = (0, 0);
    let mut attempt = |bytes: &[u8]| {
        let Ok(record) = postcard::from_bytes::<Record>(bytes) else { return };
        let mut provider = successor(node);
        if provider.restore(now, &record).is_err() {
            refused += 1;
            assert_eq!(provider.query_qp(QpId(1)), Err(Error::NotFound));
            return;
        }
        taken += 1;
        (0..50u32).for_each(|step| {
            let _ = provider.advance(now + Duration::from_millis(1) * step);
        });
        while provider.poll_event().is_some() {}
        assert!(node.link.take_sent().len() < 10_000);
    };
    (0..good.len()).for_each(|len| attempt(&good[..len]));
    for at in 0..good.len() {
        for change in [1, 0x10, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= change;
            attempt(&bad);
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}

#[test]
fn failed_connection_stays_failed() {
    let mut world = busy();
    world.set_state(0, 1, QpState::Err).unwrap();
    move_node(&mut world, 0);
    assert_eq!(world.nodes[0].state(1), QpState::Err);
    let flushed = world.nodes[0].completions();
    assert!(flushed.iter().any(|c| c.status == WcStatus::WrFlushErr), "{flushed:?}");
}

#[test]
fn peer_whose_packets_were_lost_is_asked_for_them_at_once() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let (rkey, addr) = (world.nodes[1].keys.rkey, va(HEAP));
    world.nodes[0].send(1, 0, SendOp::Write { addr, rkey, imm: None }, HEAP, 5000);
    let now = world.now;
    world.nodes[0].provider.advance(now);
    assert!(!world.nodes[0].link.take_sent().is_empty());
    move_node(&mut world, 1);
    // Far less than the peer would wait before it asks by itself.
    world.run_for(Duration::from_millis(1));
    assert_eq!(statuses(&world.nodes[0].completions()), [(0, WcStatus::Success)]);
}
