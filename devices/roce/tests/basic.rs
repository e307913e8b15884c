//! Each operation once, on a good wire.

mod common;

use common::node::HEAP;
use common::wr::{SEND, statuses, va};
use common::{Connection, World};
use verbs::{
    CqId, CqInit, Error, Gid, GidEntry, Owner, PdId, Provider, QpId, QpType, Qpn, SendOp, UdAddress, WcFlags,
    WcOpcode, WcStatus,
};

const OK: WcStatus = WcStatus::Success;

#[test]
fn send_arrives_with_its_length_and_immediate_data() {
    let mut world = World::connected(Connection::default());
    let data: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    world.nodes[0].write(HEAP, &data);
    world.nodes[1].recv(1, 10, HEAP + 0x1_0000, 8192);
    world.nodes[0].send(1, 20, SendOp::Send { imm: Some([1, 2, 3, 4]) }, HEAP, 5000);
    world.run();

    let received = world.nodes[1].completions();
    assert_eq!(statuses(&received), [(10, OK)]);
    assert_eq!((received[0].opcode, received[0].byte_len), (WcOpcode::Recv, 5000));
    assert_eq!((received[0].flags, received[0].imm_or_key), (WcFlags::WITH_IMM, [1, 2, 3, 4]));
    assert_eq!(world.nodes[1].read(HEAP + 0x1_0000, 5001), [data, vec![0]].concat());
    let sent = world.nodes[0].completions();
    assert_eq!(statuses(&sent), [(20, OK)]);
    assert_eq!(sent[0].opcode, WcOpcode::Send);
}

#[test]
fn write_then_read_brings_the_same_bytes_back() {
    for gid_index in [0, 1] {
        let mut world = World::connected(Connection { gid_index, ..Connection::default() });
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
        world.nodes[0].write(HEAP, &data);
        let (addr, rkey) = (va(HEAP + 0x10_0001), world.nodes[1].keys.rkey);
        world.nodes[0].send(1, 1, SendOp::Write { addr, rkey, imm: None }, HEAP, 100_000);
        world.nodes[0].send(1, 2, SendOp::Read { addr, rkey }, HEAP + 0x20_0000, 100_000);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK), (2, OK)]);
        assert_eq!(world.nodes[1].read(HEAP + 0x10_0001, 100_000), data);
        assert_eq!(world.nodes[0].read(HEAP + 0x20_0000, 100_000), data);
        assert_eq!(world.nodes[1].completions(), []);
    }
}

#[test]
fn atomics_return_the_old_value_and_leave_the_new_one() {
    let mut world = World::connected(Connection::default());
    let word = HEAP + 0x1000;
    world.nodes[1].write(word, &7u64.to_le_bytes());
    let (addr, rkey) = (va(word), world.nodes[1].keys.rkey);
    world.nodes[0].send(1, 1, SendOp::FetchAdd { addr, rkey, add: 5 }, HEAP, 8);
    world.nodes[0].send(1, 2, SendOp::CompareSwap { addr, rkey, compare: 12, swap: 99 }, HEAP + 8, 8);
    world.nodes[0].send(1, 3, SendOp::CompareSwap { addr, rkey, compare: 12, swap: 1 }, HEAP + 16, 8);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK), (2, OK), (3, OK)]);
    let results: Vec<u64> = (0..3)
        .map(|i| u64::from_le_bytes(world.nodes[0].read(HEAP + i * 8, 8).try_into().unwrap()))
        .collect();
    assert_eq!(results, [7, 12, 99]);
    assert_eq!(world.nodes[1].read(word, 8), 99u64.to_le_bytes());
}

#[test]
fn datagram_arrives_behind_forty_bytes_with_its_ip_header() {
    for (qp_type, gid_index) in [(QpType::Ud, 0), (QpType::Ud, 1), (QpType::Gsi, 0), (QpType::Gsi, 1)] {
        let mut world = World::new();
        let now = world.now;
        let qpns = [0, 1].map(|n: usize| world.nodes[n].create_ud(now, QpId(5), qp_type, 0x1234));
        world.nodes[0].write(HEAP, b"hello datagram");
        world.nodes[1].recv(5, 10, HEAP + 0x1000, 4096);
        let av = world.nodes[0].av(&world.nodes[1], gid_index);
        let qkey = if qp_type == QpType::Gsi { 0x8001_0000 } else { 0x1234 };
        let to = UdAddress { av, qpn: qpns[1], qkey };
        world.nodes[0].send(5, 20, SendOp::UdSend { to, imm: None }, HEAP, 14);
        world.run();

        assert_eq!(statuses(&world.nodes[0].completions()), [(20, OK)]);
        let received = world.nodes[1].completions();
        assert_eq!(statuses(&received), [(10, OK)]);
        assert_eq!((received[0].byte_len, received[0].src_qp), (54, qpns[0]));
        assert_eq!(received[0].flags, WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE);
        assert_eq!(received[0].network_hdr_type, 1 + gid_index);
        assert_eq!(world.nodes[1].read(HEAP + 0x1028, 14), b"hello datagram");
        let grh = world.nodes[1].read(HEAP + 0x1000, 40);
        let source = match gid_index {
            0 => Gid::from(std::net::Ipv4Addr::from([grh[32], grh[33], grh[34], grh[35]])),
            _ => Gid(grh[8..24].try_into().unwrap()),
        };
        assert_eq!(source, world.nodes[0].gids()[usize::from(gid_index)]);
    }
}

#[test]
fn queue_pair_connected_to_itself_works_without_the_link() {
    let mut world = World::new();
    let node = &mut world.nodes[0];
    let (qpn, [gid, _], mac) = (node.create_rc(QpId(1)), node.gids(), node.mac);
    node.bring_up(world.now, QpId(1), qpn, gid, mac, Connection::default());
    node.write(HEAP, &[7; 10_000]);
    node.recv(1, 1, HEAP + 0x10_000, 10_000);
    node.send(1, 2, SEND, HEAP, 10_000);
    world.run();
    let node = &mut world.nodes[0];
    assert_eq!(statuses(&node.completions()), [(1, OK), (2, OK)]);
    assert_eq!(node.read(HEAP + 0x10_000, 10_000), [7; 10_000]);
    assert_ne!(qpn, Qpn(1));
    let counters = node.provider.counters();
    assert_eq!((counters.tx_packets, counters.direct_copied_bytes), (0, 10_000));
}

#[test]
fn reset_forgets_all_objects_and_answers_nobody() {
    let mut world = World::connected(Connection::default());
    world.nodes[1].recv(1, 10, HEAP, 100);
    world.nodes[0].send(1, 20, SEND, HEAP, 100);
    let gid = world.nodes[1].gids()[0];
    world.nodes[1].provider.reset();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(20, WcStatus::RetryExcErr)]);
    let provider = &mut world.nodes[1].provider;
    assert_eq!(provider.poll_event(), None);
    assert_eq!(provider.query_qp(QpId(1)), Err(Error::NotFound));
    assert_eq!(provider.next_deadline(), None);
    // Everything can be had again.
    provider.create_pd(PdId(1), Owner::Kernel).unwrap();
    provider.create_cq(CqId(1), CqInit { owner: Owner::Kernel, depth: 1 }).unwrap();
    provider.set_gid(GidEntry { index: 0, gid }).unwrap();
    provider.create_qp(QpId(1), common::Node::qp_init(QpType::Rc)).unwrap();
}
