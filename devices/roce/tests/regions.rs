//! RAM in regions that touch: what is neighbouring memory to the guest is so to its peers.

mod common;

use common::node::{HEAP, Node, PD, RAM};
use common::wr::{SEND, statuses};
use common::{Connection, World};
use verbs::{
    Access, FastReg, Keys, MrId, MrInit, MrKind, PageList, Provider, SendOp, Sge, SgeList, WcStatus,
};
use vm_memory::GuestAddress;

const OK: WcStatus = WcStatus::Success;
/// Where the regions touch.
const SEAM: u64 = HEAP + 0x10_0000;
/// Bytes on either side of it that a message takes.
const HALF: u64 = 0x1234;
const LEN: u32 = 2 * HALF as u32;

/// Two nodes with a connection; RAM of both is in two regions.
fn seamed() -> World {
    let regions = [(GuestAddress(0), SEAM as usize), (GuestAddress(SEAM), (RAM - SEAM) as usize)];
    let mut world = World::new();
    world.nodes = [1, 2].map(|n| Node::with_ram(n, 4300, roce::Config::default(), &regions));
    world.connect(1, Connection::default());
    world
}

/// RAM of a node around the seam.
fn around(node: &Node) -> Vec<u8> {
    [node.read(SEAM - HALF, HALF as usize), node.read(SEAM, HALF as usize)].concat()
}

fn fill(node: &Node, bytes: &[u8]) {
    let (before, after) = bytes.split_at(HALF as usize);
    node.write(SEAM - HALF, before);
    node.write(SEAM, after);
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i % 251) as u8).collect()
}

/// Sends, writes and reads what lies around the seam, by the addresses and keys that each node's memory has.
fn all_ways(world: &mut World, addr: u64, keys: [Keys; 2]) {
    let local = |n: usize| SgeList::from_slice(&[Sge { addr, length: LEN, lkey: keys[n].lkey }]);
    let data = pattern();
    fill(&world.nodes[0], &data);
    let mut recv = world.nodes[1].recv_wr(1, HEAP, 0);
    recv.sges = local(1);
    world.nodes[1].provider.post_recv(verbs::QpId(1), recv).unwrap();
    let rkey = keys[1].rkey;
    for (wr_id, op) in
        [(1, SEND), (2, SendOp::Write { addr, rkey, imm: None }), (3, SendOp::Read { addr, rkey })]
    {
        if wr_id == 3 {
            fill(&world.nodes[0], &vec![0; LEN as usize]);
        } else {
            fill(&world.nodes[1], &vec![0; LEN as usize]);
        }
        let mut wr = world.nodes[0].wr(wr_id, op, HEAP, 0);
        wr.sges = local(0);
        world.nodes[0].post(1, wr);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(wr_id, OK)]);
        assert_eq!(around(&world.nodes[1]), data);
        assert_eq!(around(&world.nodes[0]), data);
    }
    assert!(world.nodes.iter().all(|node| node.provider.counters().memory_faults == 0));
}

#[test]
fn pages_on_both_sides_of_a_seam_are_one_region() {
    let mut world = seamed();
    let keys = [0, 1].map(|n: usize| {
        let (iova, gpa) = (0x7000_0000 + (SEAM - HALF) % 4096, SEAM - HALF);
        world.nodes[n].register(2, iova, gpa, u64::from(LEN), Access::all())
    });
    all_ways(&mut world, 0x7000_0000 + (SEAM - HALF) % 4096, keys);
}

#[test]
fn region_over_all_memory_has_no_seam() {
    let mut world = seamed();
    let keys = [0, 1].map(|n: usize| {
        let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::all(), kind: MrKind::Dma };
        world.nodes[n].provider.register_mr(MrId(2), init).unwrap()
    });
    all_ways(&mut world, SEAM - HALF, keys);
}

#[test]
fn fast_registration_may_span_a_seam() {
    let mut world = seamed();
    let keys = [0, 1].map(|n: usize| {
        let kind = MrKind::FastReg { max_pages: 8 };
        let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::empty(), kind };
        let keys = world.nodes[n].provider.register_mr(MrId(2), init).unwrap();
        let pages: Vec<u64> = (0..4).map(|i| SEAM - 0x2000 + i * 0x1000).collect();
        let pages = PageList::new(12, &pages).unwrap();
        let iova = SEAM - HALF;
        let reg = FastReg { key: keys.lkey, iova, length: LEN, access: Access::all(), pages };
        world.nodes[n].send(1, 9, SendOp::FastReg(Box::new(reg)), HEAP, 0);
        world.run();
        assert_eq!(statuses(&world.nodes[n].completions()), [(9, OK)]);
        keys
    });
    all_ways(&mut world, SEAM - HALF, keys);
}
