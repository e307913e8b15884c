//! Every way an operation can fail: what either side is told.

mod common;

use common::node::{HEAP, HEAP_VA, PD};
use common::wr::{SEND, statuses, va};
use common::{Carrier, Connection, World};
use verbs::{
    Access, AsyncEvent, Error, MrId, MrInit, MrKind, Owner, PageList, PdId, Provider, ProviderEvent, QpId,
    QpInit, QpState, QpType, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus,
};

const QP: QpId = QpId(1);
const TARGET: u64 = HEAP + 0x10_0000;
/// Region 2 of the peer: one page with the rights a case gives it.
const PAGE: u64 = HEAP + 0x20_0000;

/// What the peer is told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// Its receive ends like this.
    Receive(WcStatus),
    Event(AsyncEvent),
    /// Nothing, and its queue pair is alive.
    Nothing,
}

use Told::{Event, Nothing, Receive};

const ACCESS_ERR: Told = Event(AsyncEvent::QpAccessErr(QP));
const REQ_ERR: Told = Event(AsyncEvent::QpReqErr(QP));

/// Runs one failing request between a good one and two that are flushed, and compares all that is told.
fn fails(access: Access, request: impl FnOnce(&mut World) -> SendWr, status: WcStatus, told: Told) {
    let mut world = World::new();
    world.connect(1, Connection { access, ..Connection::default() });
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    let good = access.contains(Access::REMOTE_WRITE);
    if good {
        world.nodes[0].send(1, 100, SendOp::Write { addr, rkey, imm: None }, HEAP, 3000);
    }
    let bad = request(&mut world);
    world.nodes[0].post(1, SendWr { wr_id: 101, flags: SendFlags::empty(), ..bad });
    for wr_id in [102, 103] {
        world.nodes[0].send(1, wr_id, SEND, HEAP, 10);
    }
    let before = world.nodes[1].read(PAGE, 0x3000);
    world.run();

    let mut expected = vec![(100, WcStatus::Success)];
    expected.truncate(usize::from(good));
    expected.extend([(101, status), (102, WcStatus::WrFlushErr), (103, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(&world.nodes[0].completions()), expected);
    assert_eq!(world.nodes[0].state(1), QpState::Err);
    assert_eq!(world.nodes[0].async_events(), []);

    let receives = statuses(&world.nodes[1].completions());
    let events = world.nodes[1].async_events();
    let alive = world.nodes[1].state(1) == QpState::Rts;
    match told {
        Receive(status) => assert_eq!((receives, events, alive), (vec![(7, status)], vec![], false)),
        Event(event) => assert_eq!((receives, events, alive), (vec![], vec![event], false)),
        Nothing => assert_eq!((receives, events, alive), (vec![], vec![], true)),
    }
    assert_eq!(world.nodes[1].read(PAGE, 0x3000), before, "memory was written");
}

/// A request of `len` bytes from the start of the heap.
fn wr(world: &World, op: SendOp, len: u32) -> SendWr {
    world.nodes[0].wr(0, op, HEAP, len)
}

fn write(world: &World, addr: u64, rkey: u32, len: u32) -> SendWr {
    wr(world, SendOp::Write { addr, rkey, imm: None }, len)
}

fn read(world: &World, addr: u64, rkey: u32, len: u32) -> SendWr {
    wr(world, SendOp::Read { addr, rkey }, len)
}

fn fetch_add(world: &World, addr: u64, rkey: u32) -> SendWr {
    wr(world, SendOp::FetchAdd { addr, rkey, add: 1 }, 8)
}

/// Registers [`PAGE`] at the peer with few rights.
fn page_with(world: &mut World, access: Access) -> (u64, u32) {
    let keys = world.nodes[1].register(2, 0x5000, PAGE, 0x1000, access);
    (0x5000, keys.rkey)
}

const ALL: Access = Access::all();

#[test]
fn send_longer_than_the_receive() {
    let request = |world: &mut World| {
        world.nodes[1].recv(1, 7, PAGE, 100);
        wr(world, SEND, 101)
    };
    fails(ALL, request, WcStatus::RemInvReqErr, Receive(WcStatus::LocLenErr));
}

#[test]
fn send_longer_than_the_receive_by_packets() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    world.nodes[1].recv(1, 7, TARGET, 1500);
    world.nodes[0].send(1, 1, SEND, HEAP, 5000);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&world.nodes[1].completions()), [(7, WcStatus::LocLenErr)]);
}

#[test]
fn receive_with_a_key_that_does_not_exist() {
    let request = |world: &mut World| {
        let mut recv = world.nodes[1].recv_wr(7, PAGE, 100);
        recv.sges[0].lkey ^= 0x100;
        world.nodes[1].provider.post_recv(QP, recv).unwrap();
        wr(world, SEND, 100)
    };
    fails(ALL, request, WcStatus::RemOpErr, Receive(WcStatus::LocProtErr));
}

#[test]
fn receive_into_a_region_without_local_write() {
    let request = |world: &mut World| {
        let (addr, lkey) = page_with(world, Access::REMOTE_READ);
        let mut recv = world.nodes[1].recv_wr(7, PAGE, 100);
        recv.sges[0] = Sge { addr, length: 100, lkey };
        world.nodes[1].provider.post_recv(QP, recv).unwrap();
        wr(world, SEND, 100)
    };
    fails(ALL, request, WcStatus::RemOpErr, Receive(WcStatus::LocProtErr));
}

#[test]
fn receive_the_device_could_not_parse() {
    let request = |world: &mut World| {
        let mut recv = world.nodes[1].recv_wr(7, PAGE, 100);
        recv.bad = Some(WcStatus::LocQpOpErr);
        world.nodes[1].provider.post_recv(QP, recv).unwrap();
        wr(world, SEND, 100)
    };
    fails(ALL, request, WcStatus::RemOpErr, Receive(WcStatus::LocQpOpErr));
}

#[test]
fn write_with_immediate_finds_a_receive_the_device_could_not_parse() {
    let request = |world: &mut World| {
        let mut recv = world.nodes[1].recv_wr(7, PAGE, 100);
        recv.bad = Some(WcStatus::LocQpOpErr);
        world.nodes[1].provider.post_recv(QP, recv).unwrap();
        let rkey = world.nodes[1].keys.rkey;
        wr(world, SendOp::Write { addr: va(PAGE), rkey, imm: Some([0; 4]) }, 100)
    };
    fails(ALL, request, WcStatus::RemOpErr, Receive(WcStatus::LocQpOpErr));
}

#[test]
fn write_with_a_wrong_key() {
    let request = |world: &mut World| write(world, va(PAGE), world.nodes[1].keys.rkey ^ 1, 100);
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_of_several_packets_past_the_end_touches_nothing() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, ALL);
        write(world, addr, rkey, 0x1001)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_before_the_start_of_the_region() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, ALL);
        write(world, addr - 1, rkey, 100)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_whose_range_wraps() {
    let request = |world: &mut World| write(world, u64::MAX - 10, world.nodes[1].keys.rkey, 100);
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_without_the_right_of_the_region() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, Access::LOCAL_WRITE | Access::REMOTE_READ);
        write(world, addr, rkey, 100)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_without_the_right_of_the_queue_pair() {
    let request = |world: &mut World| write(world, va(PAGE), world.nodes[1].keys.rkey, 100);
    fails(Access::REMOTE_READ, request, WcStatus::RemInvReqErr, REQ_ERR);
}

#[test]
fn write_to_a_region_of_another_domain() {
    let request = |world: &mut World| {
        let peer = &mut world.nodes[1].provider;
        peer.create_pd(PdId(2), Owner::User).unwrap();
        let kind = MrKind::Pages(PageList::new(12, &[PAGE]).unwrap());
        let init = MrInit { pd: PdId(2), iova: 0x5000, length: 0x1000, access: ALL, kind };
        let keys = peer.register_mr(MrId(2), init).unwrap();
        write(world, 0x5000, keys.rkey, 100)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn write_to_a_region_that_is_gone() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, ALL);
        world.nodes[1].provider.deregister_mr(MrId(2)).unwrap();
        write(world, addr, rkey, 100)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn read_without_the_right_of_the_region() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        read(world, addr, rkey, 100)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn read_without_the_right_of_the_queue_pair() {
    let request = |world: &mut World| read(world, va(PAGE), world.nodes[1].keys.rkey, 100);
    fails(Access::REMOTE_WRITE, request, WcStatus::RemInvReqErr, REQ_ERR);
}

#[test]
fn read_past_the_end() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, ALL);
        read(world, addr, rkey, 0x1001)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn atomic_at_an_odd_address() {
    let request = |world: &mut World| fetch_add(world, va(PAGE) + 4, world.nodes[1].keys.rkey);
    fails(ALL, request, WcStatus::RemInvReqErr, REQ_ERR);
}

#[test]
fn atomic_without_the_right_of_the_region() {
    let request = |world: &mut World| {
        let (addr, rkey) = page_with(world, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        fetch_add(world, addr, rkey)
    };
    fails(ALL, request, WcStatus::RemAccessErr, ACCESS_ERR);
}

#[test]
fn atomic_without_the_right_of_the_queue_pair() {
    let request = |world: &mut World| fetch_add(world, va(PAGE), world.nodes[1].keys.rkey);
    fails(Access::REMOTE_WRITE, request, WcStatus::RemInvReqErr, REQ_ERR);
}

#[test]
fn local_key_zero() {
    let request = |world: &mut World| {
        let mut wr = write(world, va(PAGE), world.nodes[1].keys.rkey, 100);
        wr.sges[0].lkey = 0;
        wr
    };
    fails(ALL, request, WcStatus::LocProtErr, Nothing);
}

#[test]
fn second_element_that_does_not_map_sends_nothing_at_all() {
    let request = |world: &mut World| {
        let mut wr = write(world, va(PAGE), world.nodes[1].keys.rkey, 0x1000);
        wr.sges.push(Sge { addr: HEAP_VA - 1, length: 16, lkey: wr.sges[0].lkey });
        wr
    };
    fails(ALL, request, WcStatus::LocProtErr, Nothing);
}

#[test]
fn read_into_a_region_without_local_write() {
    let request = |world: &mut World| {
        let keys = world.nodes[0].register(2, 0x5000, PAGE, 0x1000, Access::REMOTE_READ);
        let mut wr = read(world, va(PAGE), world.nodes[1].keys.rkey, 100);
        wr.sges[0] = Sge { addr: 0x5000, length: 100, lkey: keys.lkey };
        wr
    };
    fails(ALL, request, WcStatus::LocProtErr, Nothing);
}

#[test]
fn atomic_result_that_does_not_fit() {
    let request = |world: &mut World| {
        let mut wr = fetch_add(world, va(PAGE), world.nodes[1].keys.rkey);
        wr.sges[0].length = 4;
        wr
    };
    fails(ALL, request, WcStatus::LocLenErr, Nothing);
}

#[test]
fn message_longer_than_two_gigabytes() {
    let request = |world: &mut World| {
        let mut wr = write(world, va(PAGE), world.nodes[1].keys.rkey, 1 << 31);
        wr.sges.push(wr.sges[0]);
        wr
    };
    fails(ALL, request, WcStatus::LocLenErr, Nothing);
}

#[test]
fn request_the_device_could_not_parse() {
    let request = |world: &mut World| wr(world, SendOp::Bad(WcStatus::LocQpOpErr), 1);
    fails(ALL, request, WcStatus::LocQpOpErr, Nothing);
}

#[test]
fn datagram_on_a_connection() {
    let request = |world: &mut World| {
        let av = world.nodes[0].av(&world.nodes[1], 0);
        let to = verbs::UdAddress { av, qpn: verbs::Qpn(5), qkey: 0 };
        wr(world, SendOp::UdSend { to, imm: None }, 1)
    };
    fails(ALL, request, WcStatus::LocQpOpErr, Nothing);
}

#[test]
fn zero_length_operations_need_no_key() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    world.nodes[0].send(1, 1, SendOp::Write { addr: 1, rkey: 2, imm: None }, HEAP, 0);
    world.nodes[0].send(1, 2, SendOp::Read { addr: 1, rkey: 2 }, HEAP, 0);
    world.run();
    let ok = WcStatus::Success;
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, ok), (2, ok)]);
}

#[test]
fn user_queue_pair_may_not_touch_kernel_opcodes() {
    let fast_reg = || {
        let pages = PageList::new(12, &[PAGE]).unwrap();
        SendOp::FastReg(Box::new(verbs::FastReg { key: 0x100, iova: 0, length: 1, access: ALL, pages }))
    };
    for op in [SendOp::LocalInv { key: 1 }, fast_reg(), SendOp::SendInv { rkey: 1 }] {
        let mut world = World::new();
        let qpns = [0, 1].map(|n: usize| {
            let init = QpInit { owner: Owner::User, ..common::Node::qp_init(QpType::Rc) };
            world.nodes[n].provider.create_qp(QP, init).unwrap()
        });
        world.connect_existing(QP, qpns, Connection::default());
        world.nodes[0].send(1, 1, op, HEAP, 0);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::LocQpOpErr)]);
    }
}

#[test]
fn region_that_goes_away_under_a_read_ends_it_with_an_access_error() {
    let mut world = World::new();
    // One part at a time: then what was not answered is asked for the first time.
    world.connect(1, Connection { rd_atomic: 1, ..Connection::default() });
    let keys = world.nodes[1].register(2, 0x5000, PAGE, 0x20_0000, ALL);
    world.nodes[0].send(1, 1, SendOp::Read { addr: 0x5000, rkey: keys.rkey }, HEAP, 0x20_0000);
    world.run_for(common::carrier::part_of_a_read());
    world.nodes[1].provider.deregister_mr(MrId(2)).unwrap();
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(world.nodes[1].async_events(), [AsyncEvent::QpAccessErr(QP)]);
}

#[test]
fn region_that_goes_away_under_a_write_gets_no_byte_afterwards() {
    let mut world = World::new();
    // In the middle of a message, which channels carry in one go.
    world.carrier = Carrier::Wire;
    world.connect(1, Connection::default());
    world.nodes[0].write(HEAP, &vec![0xaa; 0x20_0000]);
    let keys = world.nodes[1].register(2, 0x5000, PAGE, 0x20_0000, ALL);
    let op = SendOp::Write { addr: 0x5000, rkey: keys.rkey, imm: None };
    world.nodes[0].send(1, 1, op, HEAP, 0x20_0000);
    world.run_for(std::time::Duration::from_micros(21));
    world.nodes[1].provider.deregister_mr(MrId(2)).unwrap();
    let then = world.nodes[1].read(PAGE, 0x20_0000);
    assert!(then.contains(&0xaa) && then.contains(&0));
    world.run();
    assert!(world.nodes[1].read(PAGE, 0x20_0000) == then);
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn error_state_flushes_both_queues_in_order_and_whatever_is_posted_later() {
    let mut world = World::new();
    world.connect(1, Connection { rnr_retry: 7, ..Connection::default() });
    for i in 0..5 {
        world.nodes[0].recv(1, 50 + i, TARGET, 10);
        let mut wr = world.nodes[0].wr(i, SEND, HEAP, 10);
        wr.flags = SendFlags::empty();
        world.nodes[0].post(1, wr);
    }
    world.set_state(0, 1, QpState::Err).unwrap();
    world.nodes[0].send(1, 9, SEND, HEAP, 10);
    world.nodes[0].recv(1, 59, TARGET, 10);
    let flushed = WcStatus::WrFlushErr;
    let expected: Vec<_> = (0..5).chain(50..55).chain([9, 59]).map(|id| (id, flushed)).collect();
    assert_eq!(statuses(&world.nodes[0].completions()), expected);
}

#[test]
fn ring_slot_is_free_before_its_completion_is_told() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    world.nodes[1].recv(1, 7, TARGET, 100);
    let mut silent = world.nodes[0].wr(1, SEND, HEAP, 100);
    silent.flags = SendFlags::empty();
    world.nodes[0].post(1, silent);
    let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
    world.nodes[0].send(1, 2, SendOp::Write { addr, rkey, imm: None }, HEAP, 1);
    world.run();
    let kinds = |node: &common::Node| -> Vec<String> {
        let name = |event: &ProviderEvent| match event {
            ProviderEvent::Completion(completion) => format!("completion {}", completion.wr_id),
            other => format!("{other:?}"),
        };
        node.events.iter().map(name).collect()
    };
    assert_eq!(kinds(&world.nodes[0]), ["SendRetired(QpId(1))", "SendRetired(QpId(1))", "completion 2"]);
    assert_eq!(kinds(&world.nodes[1]), ["RecvRetired(QpId(1))", "completion 7"]);
}

#[test]
fn queue_refuses_what_it_has_no_room_for() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let node = &mut world.nodes[0];
    for i in 0..256 {
        node.recv(1, i, TARGET, 10);
        node.send(1, i, SEND, HEAP, 10);
    }
    let (send, recv) = (node.wr(0, SEND, HEAP, 10), node.recv_wr(0, TARGET, 10));
    assert_eq!(node.provider.post_send(QP, send), Err(Error::Exhausted));
    assert_eq!(node.provider.post_recv(QP, recv), Err(Error::Exhausted));
}

#[test]
fn destroyed_queue_pair_leaves_no_event_and_touches_no_memory() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    world.nodes[1].recv(1, 7, TARGET, 5000);
    world.nodes[0].write(HEAP, &[1; 5000]);
    world.nodes[0].send(1, 1, SEND, HEAP, 5000);
    world.run_for(std::time::Duration::from_micros(2));
    world.nodes[1].provider.destroy_qp(QP).unwrap();
    assert_eq!(world.nodes[1].provider.poll_event(), None);
    world.run_for(std::time::Duration::from_secs(20));
    assert_eq!(world.nodes[1].events, []);
    assert_eq!(world.nodes[1].read(TARGET, 5000), [0; 5000]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(world.nodes[0].provider.destroy_pd(PD), Err(Error::Busy));
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut world = World::new();
    let provider = &mut world.nodes[0].provider;
    provider.create_qp(QP, common::Node::qp_init(QpType::Rc)).unwrap();
    assert_eq!(provider.destroy_cq(common::node::CQ), Err(Error::Busy));
    assert_eq!(provider.destroy_pd(PD), Err(Error::Busy));
    provider.destroy_qp(QP).unwrap();
    provider.destroy_cq(common::node::CQ).unwrap();
    assert_eq!(provider.destroy_pd(PD), Err(Error::Busy));
    provider.deregister_mr(MrId(1)).unwrap();
    provider.destroy_pd(PD).unwrap();
    assert_eq!(provider.destroy_qp(QP), Err(Error::NotFound));
}

#[test]
fn elements_without_length_need_no_key() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let mut recv = world.nodes[1].recv_wr(7, TARGET, 10);
    recv.sges = SgeList::from_slice(&[Sge { addr: 0, length: 0, lkey: 0 }, recv.sges[0]]);
    world.nodes[1].provider.post_recv(QP, recv).unwrap();
    world.nodes[0].write(HEAP, b"0123456789");
    world.nodes[0].send(1, 1, SEND, HEAP, 10);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::Success)]);
    assert_eq!(world.nodes[1].read(TARGET, 10), b"0123456789");
}
