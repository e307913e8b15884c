//! Kernel work: fast registration, invalidation, regions over all of memory.

mod common;

use common::node::{HEAP, PD, RAM};
use common::wr::{SEND, statuses, va};
use common::{Carrier, Connection, World};
use verbs::{
    Access, Error, FastReg, MrId, MrInit, MrKind, PageList, Provider, QpState, SendOp, Sge, WcFlags,
    WcOpcode, WcStatus,
};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + 0x10_0000;
const IOVA: u64 = 0x9000_0000_0123;

/// A connection, and at node 1 a fast-registration region; returns its key.
fn with_region(max_pages: u32) -> (World, u32) {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let kind = MrKind::FastReg { max_pages };
    let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::empty(), kind };
    let keys = world.nodes[1].provider.register_mr(MrId(9), init).unwrap();
    (world, keys.rkey)
}

/// Two scattered pages, used from 0x123 on for a page's length.
fn registration(key: u32) -> SendOp {
    let pages = PageList::new(12, &[TARGET + 0x4000, TARGET]).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    SendOp::FastReg(Box::new(FastReg { key, iova: IOVA, length: 0x1000, access, pages }))
}

fn write(rkey: u32, addr: u64) -> SendOp {
    SendOp::Write { addr, rkey, imm: None }
}

#[test]
fn registered_pages_are_reached_by_the_new_key_only() {
    let (mut world, key) = with_region(2);
    let new_key = key ^ 0x55;
    world.nodes[1].send(1, 1, registration(new_key), HEAP, 0);
    world.run();
    let done = world.nodes[1].completions();
    assert_eq!((statuses(&done), done[0].opcode), (vec![(1, OK)], WcOpcode::FastRegMr));
    let data: Vec<u8> = (0..0x1000u32).map(|i| (i % 199) as u8).collect();
    world.nodes[0].write(HEAP, &data);
    world.nodes[0].send(1, 2, write(new_key, IOVA), HEAP, 0x1000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(2, OK)]);
    assert_eq!(world.nodes[1].read(TARGET + 0x4123, 0x1000 - 0x123), data[..0x1000 - 0x123]);
    assert_eq!(world.nodes[1].read(TARGET, 0x123), data[0x1000 - 0x123..]);
    world.nodes[0].send(1, 3, write(key, IOVA), HEAP, 8);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(3, WcStatus::RemAccessErr)]);
}

#[test]
fn region_is_out_of_reach_before_registration_and_after_invalidation() {
    let (mut world, key) = with_region(2);
    world.nodes[1].send(1, 1, registration(key), HEAP, 0);
    world.nodes[1].send(1, 2, SendOp::LocalInv { key }, HEAP, 0);
    world.nodes[1].send(1, 3, registration(key + 1), HEAP, 0);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK), (2, OK), (3, OK)]);
    world.nodes[0].send(1, 4, write(key + 1, IOVA), HEAP, 8);
    world.run();
    world.nodes[1].send(1, 5, SendOp::LocalInv { key: key + 1 }, HEAP, 0);
    world.run();
    world.nodes[0].send(1, 6, write(key + 1, IOVA), HEAP, 8);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(4, OK), (6, WcStatus::RemAccessErr)]);
}

#[test]
fn send_with_invalidation_takes_the_key_away_and_says_so() {
    let (mut world, key) = with_region(2);
    world.nodes[1].send(1, 1, registration(key), HEAP, 0);
    world.nodes[1].recv(1, 7, TARGET, 5000);
    world.run();
    world.nodes[0].send(1, 2, SendOp::SendInv { rkey: key }, HEAP, 5000);
    world.run();
    let completions = world.nodes[1].completions();
    assert_eq!(statuses(&completions), [(1, OK), (7, OK)]);
    assert_eq!(
        (completions[1].flags, completions[1].imm_or_key),
        (WcFlags::WITH_INVALIDATE, key.to_le_bytes())
    );
    world.nodes[0].send(1, 3, write(key, IOVA), HEAP, 8);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(2, OK), (3, WcStatus::RemAccessErr)]);
}

#[test]
fn send_with_invalidation_of_what_cannot_be_invalidated_fails_both_sides() {
    let (mut world, _) = with_region(2);
    world.nodes[1].recv(1, 7, TARGET, 100);
    let rkey = world.nodes[1].keys.rkey;
    world.nodes[0].send(1, 2, SendOp::SendInv { rkey }, HEAP, 100);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(2, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&world.nodes[1].completions()), [(7, WcStatus::RemInvReqErr)]);
}

#[test]
fn bad_registrations_and_invalidations_fail_their_request() {
    let pages =
        |count: u64| PageList::new(12, &(0..count).map(|i| TARGET + i * 4096).collect::<Vec<_>>()).unwrap();
    let reg = |key, iova, length, pages| {
        SendOp::FastReg(Box::new(FastReg { key, iova, length, access: Access::REMOTE_READ, pages }))
    };
    let ordinary = World::new().nodes[1].keys.rkey;
    type Make<'a> = &'a dyn Fn(u32) -> SendOp;
    let cases: [(&str, Make<'_>); 6] = [
        ("more pages than the region takes", &|key| reg(key, 0, 1, pages(3))),
        ("longer than its pages", &|key| reg(key, 0, 0x2001, pages(2))),
        ("key of no region", &|key| reg(key ^ 0x100, 0, 1, pages(1))),
        ("invalidation of a free region", &|key| SendOp::LocalInv { key }),
        ("invalidation of an ordinary region", &|_| SendOp::LocalInv { key: ordinary }),
        ("range that wraps", &|key| reg(key, u64::MAX - 0xfff, 0x1000, pages(2))),
    ];
    for (name, op) in cases {
        let (mut world, key) = with_region(2);
        world.nodes[1].send(1, 1, op(key), HEAP, 0);
        world.run();
        assert_eq!(statuses(&world.nodes[1].completions()), [(1, WcStatus::MwBindErr)], "{name}");
    }
}

#[test]
fn registration_of_a_registered_region_fails() {
    let (mut world, key) = with_region(2);
    world.nodes[1].send(1, 1, registration(key), HEAP, 0);
    world.nodes[1].send(1, 2, registration(key + 1), HEAP, 0);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK), (2, WcStatus::MwBindErr)]);
}

#[test]
fn region_over_all_memory_names_guest_physical_addresses_and_ends_where_ram_ends() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::LOCAL_WRITE, kind: MrKind::Dma };
    let keys = world.nodes[0].provider.register_mr(MrId(9), init).unwrap();
    world.nodes[1].recv(1, 7, TARGET, 100);
    world.nodes[0].write(HEAP + 5, b"by physical address");
    let mut wr = world.nodes[0].wr(1, SEND, HEAP, 0);
    wr.sges[0] = Sge { addr: HEAP + 5, length: 19, lkey: keys.lkey };
    world.nodes[0].post(1, wr.clone());
    world.run();
    assert_eq!(world.nodes[1].read(TARGET, 19), b"by physical address");
    wr.sges[0].addr = RAM - 18;
    world.nodes[0].post(1, wr);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK), (1, WcStatus::LocProtErr)]);
}

#[test]
fn regions_that_make_no_sense_are_refused() {
    let mut world = World::new();
    let pages = || MrKind::Pages(PageList::new(12, &[TARGET]).unwrap());
    let good = MrInit { pd: PD, iova: 0x800, length: 0x800, access: Access::all(), kind: pages() };
    let bad = [
        MrInit { length: 0x801, ..good.clone() },
        MrInit { iova: u64::MAX - 0x10, length: 0x20, ..good.clone() },
        MrInit { length: 1 << 41, ..good.clone() },
        MrInit { kind: MrKind::FastReg { max_pages: 129 }, ..good.clone() },
        MrInit { access: Access::REMOTE_WRITE, ..good.clone() },
        MrInit { access: Access::REMOTE_ATOMIC, ..good.clone() },
    ];
    let provider = &mut world.nodes[0].provider;
    for init in bad {
        assert!(matches!(provider.register_mr(MrId(9), init), Err(Error::Invalid(_))));
    }
    provider.register_mr(MrId(9), good.clone()).unwrap();
    assert_eq!(provider.register_mr(MrId(9), good.clone()), Err(Error::Exists));
    assert_eq!(provider.register_mr(MrId(1 << 17), good), Err(Error::Exhausted));
}

#[test]
fn keys_of_a_number_differ_each_time_it_is_used() {
    let mut world = World::new();
    let mut keys = std::collections::HashSet::new();
    for _ in 0..64 {
        keys.insert(world.nodes[0].register(9, va(TARGET), TARGET, 4096, Access::all()).rkey >> 8);
        world.nodes[0].provider.deregister_mr(MrId(9)).unwrap();
    }
    assert_eq!(keys.len(), 64);
}

#[test]
fn straggler_of_a_read_that_was_done_before_its_key_went_away_fails_nobody() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    world.carrier = Carrier::Wire;
    world.recording = Some(vec![]);
    let keys = world.nodes[1].register(9, 0x5000, TARGET, 0x1000, Access::REMOTE_READ);
    world.nodes[0].send(1, 1, SendOp::Read { addr: 0x5000, rkey: keys.rkey }, HEAP, 100);
    world.run();
    let request = world.recording.take().unwrap().remove(0);
    world.nodes[1].provider.deregister_mr(MrId(9)).unwrap();
    world.nodes[1].provider.receive(world.now, &request);
    world.run();
    assert_eq!(world.nodes[1].provider.counters().remote_access_naks_sent, 1);
    for node in &mut world.nodes {
        assert_eq!((node.async_events(), node.state(1)), (vec![], QpState::Rts));
    }
}
