//! Drivers, devices and engines together: bytes in the memory of one guest come out in the memory of the other.

mod common;

use common::RC;
use common::wire::{HEAP, Node, VA, World};
use pvrdma_driver::{Buffer, Context, Mr, Qp, QpSizes, Recv, SendWork};
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::attr::QpAttr;
use pvrdma_spec::queue::{AtomicOperands, Av, FastRegOperands, RdmaOperands, Sge, UdOperands, WrOpcode};
use pvrdma_spec::register::Vector;
use verbs::WcStatus;
use zerocopy::FromZeros;

const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const OK: u32 = WcStatus::Success as u32;

fn rdma(node: &Node, offset: u64) -> RdmaOperands {
    RdmaOperands { remote_addr: VA + offset, rkey: node.mr.rkey, reserved: 0 }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

fn post(node: &Node, qp: &Qp, work: &SendWork) {
    assert!(node.driver.post_send(qp, work), "send ring has room");
}

fn post_recv(node: &Node, qp: &Qp, wr_id: u64, sges: &[Sge]) {
    assert!(node.driver.post_recv(qp, &Recv::new(wr_id, sges)), "receive ring has room");
}

/// C17
#[test]
fn c17_send_of_every_size_arrives_on_both_kinds_of_address() {
    for row in [0, 1] {
        let world = World::new();
        let qps = world.connect(row);
        let [a, b] = &world.nodes;
        for (n, len) in [0, 1, 1023, 1024, 1025, 4096, 100_000, 1 << 20].into_iter().enumerate() {
            let data = pattern(len);
            a.write(3, &data);
            b.write(1 << 20, &vec![0xee; len + 1]);
            post_recv(b, &qps[1], 100, &[b.sge(1 << 20, len as u32)]);
            let imm = [n as u8, 2, 3, 4];
            post(
                a,
                &qps[0],
                &SendWork::new(200, WrOpcode::SendImm, SIGNALED, &[a.sge(3, len as u32)]).extra(imm),
            );
            world.run();
            assert_eq!(a.statuses(), [(200, OK)]);
            let received = b.completions();
            assert_eq!(received.len(), 1);
            assert_eq!((received[0].byte_len as usize, received[0].imm_data), (len, imm));
            assert_eq!(
                (received[0].opcode, received[0].wc_flags, received[0].qp),
                (128, 2, qps[1].handle.into())
            );
            assert_eq!(b.read(1 << 20, len + 1), [data, vec![0xee]].concat());
        }
    }
}

#[test]
fn c17_write_and_read_move_bytes_between_scattered_pages() {
    let world = World::new();
    let qps = world.connect(1);
    let [a, b] = &world.nodes;
    let data = pattern(1_500_000);
    a.write(0x123, &data);
    let parts = [a.sge(0x123, 1), a.sge(0x124, 500_000), a.sge(0x124 + 500_000, 999_999)];
    post(a, &qps[0], &SendWork::new(1, WrOpcode::RdmaWrite, 0, &parts).operands(&rdma(b, 0x777)));
    post(
        a,
        &qps[0],
        &SendWork::new(2, WrOpcode::RdmaWriteImm, SIGNALED, &[]).operands(&rdma(b, 0)).extra([9; 4]),
    );
    post_recv(b, &qps[1], 3, &[]);
    world.run();
    assert_eq!(a.statuses(), [(2, OK)]);
    let received = b.completions();
    assert_eq!((received[0].wr_id, received[0].opcode, received[0].imm_data), (3, 129, [9; 4]));
    assert_eq!(b.read(0x777, data.len()), data);
    b.write(0x777, &data.iter().map(|byte| !byte).collect::<Vec<_>>());
    let target = [a.sge(0, 1000), a.sge(5000, 1_499_000)];
    post(a, &qps[0], &SendWork::new(4, WrOpcode::RdmaRead, SIGNALED, &target).operands(&rdma(b, 0x777)));
    world.run();
    assert_eq!(a.statuses(), [(4, OK)]);
    let read = [a.read(0, 1000), a.read(5000, 1_499_000)].concat();
    assert!(read.iter().zip(&data).all(|(read, data)| *read == !data));
}

/// C18
#[test]
fn c18_atomics_work_and_misaligned_ones_do_not() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, b] = &world.nodes;
    b.write(64, &40u64.to_le_bytes());
    let mut operands =
        AtomicOperands { remote_addr: VA + 64, compare_add: 2, swap: 0, rkey: b.mr.rkey, reserved: 0 };
    post(a, &qps[0], &SendWork::new(1, WrOpcode::FetchAdd, SIGNALED, &[a.sge(0, 8)]).operands(&operands));
    (operands.compare_add, operands.swap) = (42, 99);
    post(a, &qps[0], &SendWork::new(2, WrOpcode::CompareSwap, SIGNALED, &[a.sge(8, 8)]).operands(&operands));
    world.run();
    assert_eq!(a.statuses(), [(1, OK), (2, OK)]);
    assert_eq!((a.read(0, 8), a.read(8, 8)), (40u64.to_le_bytes().to_vec(), 42u64.to_le_bytes().to_vec()));
    assert_eq!(b.read(64, 8), 99u64.to_le_bytes());
    operands.remote_addr += 1;
    post(a, &qps[0], &SendWork::new(3, WrOpcode::FetchAdd, SIGNALED, &[a.sge(0, 8)]).operands(&operands));
    world.run();
    assert_eq!(a.statuses(), [(3, WcStatus::RemInvReqErr as u32)]);
}

/// One device, a queue pair connected to itself, as `ibv_rc_pingpong` on one host.
#[test]
fn device_talks_to_itself() {
    let world = World::new();
    let [a, _] = &world.nodes;
    let (left, right) = (a.create_rc(None), a.create_rc(None));
    a.connect(&left, a.path(a, 1), right.qpn);
    a.connect(&right, a.path(a, 1), left.qpn);
    for round in 0..100u8 {
        a.write(0, &[round; 2000]);
        post_recv(a, &right, 1, &[a.sge(PAGE_SIZE, 2000)]);
        post(a, &left, &SendWork::new(2, WrOpcode::Send, SIGNALED, &[a.sge(0, 2000)]));
        world.run();
        assert_eq!(a.completions().len(), 2);
        assert_eq!(a.read(PAGE_SIZE, 2000), [round; 2000]);
    }
    let own = a.create_rc(None);
    a.connect(&own, a.path(a, 0), own.qpn);
    post_recv(a, &own, 1, &[a.sge(PAGE_SIZE, 10)]);
    post(a, &own, &SendWork::new(2, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]));
    world.run();
    assert_eq!(a.completions().iter().map(|cqe| cqe.status).collect::<Vec<_>>(), [OK, OK]);
}

/// C36
#[test]
fn c36_datagrams_arrive_behind_their_header() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let (from, to) = (a.create_ud(0x11), b.create_ud(0x22));
    for row in [0, 1] {
        let path = a.path(b, row);
        let mut operands = UdOperands::new_zeroed();
        (operands.remote_qpn, operands.remote_qkey) = (to.qpn, 0x22);
        operands.av = Av {
            port_pd: 1 << 24 | a.pd.handle,
            dgid: path.grh.dgid,
            gid_index: row,
            hop_limit: 3,
            dmac: path.dmac,
            ..Av::new_zeroed()
        };
        a.write(0, b"a datagram");
        post_recv(b, &to, 1, &[b.sge(0, 200)]);
        let mut wrong = operands;
        wrong.remote_qkey = 0x23;
        post(a, &from, &SendWork::new(2, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]).operands(&wrong));
        post(a, &from, &SendWork::new(3, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]).operands(&operands));
        world.run();
        assert_eq!(a.statuses(), [(2, OK), (3, OK)]);
        let received = b.completions();
        assert_eq!(received.len(), 1, "the one with the wrong key is dropped");
        let cqe = &received[0];
        assert_eq!((cqe.byte_len, cqe.src_qp, cqe.status), (50, from.qpn, OK));
        assert_eq!((cqe.wc_flags & 1, cqe.network_hdr_type), (1, if row == 0 { 2 } else { 1 }));
        assert_eq!(b.read(40, 10), b"a datagram");
        let dgid = &b.read(0, 40)[24..];
        assert_eq!(
            if row == 0 { dgid } else { &dgid[12..] },
            if row == 0 { &path.grh.dgid } else { &path.grh.dgid[12..] }
        );
    }
}

/// C22
#[test]
fn c22_error_flushes_every_request_once_and_in_order() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, _] = &world.nodes;
    let mut attrs = QpAttr::new_zeroed();
    attrs.qp_state = 6;
    a.driver.modify_qp(&qps[0], 1, &attrs).unwrap();
    for wr_id in 0..64 {
        post_recv(a, &qps[0], wr_id, &[a.sge(0, 10)]);
        post(a, &qps[0], &SendWork::new(100 + wr_id, WrOpcode::Send, 0, &[a.sge(0, 10)]));
    }
    world.run();
    let flushed = a.statuses();
    let flush = WcStatus::WrFlushErr as u32;
    let of = |from: u64| {
        flushed.iter().filter(|(id, _)| (from..from + 100).contains(id)).copied().collect::<Vec<_>>()
    };
    assert_eq!(of(0), (0..64).map(|id| (id, flush)).collect::<Vec<_>>());
    assert_eq!(of(100), (100..164).map(|id| (id, flush)).collect::<Vec<_>>());
}

/// C16, H26
#[test]
fn c16_memory_is_out_of_reach_once_it_is_deregistered() {
    let world = World::new();
    let qps = world.connect(1);
    let [a, b] = &world.nodes;
    let target = Buffer::new(b.guest(), 256 * PAGE_SIZE);
    let mr = b.driver.register(b.pd, 7, VA, 256 * PAGE_SIZE, &target.dir).unwrap();
    let operands = RdmaOperands { remote_addr: VA, rkey: mr.rkey, reserved: 0 };
    a.write(0, &pattern(1 << 20));
    post(
        a,
        &qps[0],
        &SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 1 << 20)]).operands(&operands),
    );
    for node in [a, b, a, b] {
        node.guest().serve();
    }
    b.driver.deregister(mr).unwrap();
    target.free(b.guest());
    world.run();
    assert_eq!(a.statuses(), [(1, WcStatus::RemAccessErr as u32)]);
    b.guest().check_free_pages();
}

/// C21
#[test]
fn c21_queue_pair_destroyed_in_flight_is_silent() {
    let world = World::new();
    let [a, b] = &world.nodes;
    for delay in 0..12 {
        let [left, right] = world.connect(1);
        post_recv(b, &right, 5, &[b.sge(0, 1 << 20)]);
        post(a, &left, &SendWork::new(1, WrOpcode::Send, SIGNALED, &[a.sge(0, 1 << 20)]));
        post(
            a,
            &left,
            &SendWork::new(2, WrOpcode::RdmaRead, SIGNALED, &[a.sge(0, 1 << 20)]).operands(&rdma(b, 0)),
        );
        for _ in 0..delay {
            a.guest().serve();
            b.guest().serve();
        }
        a.driver.destroy_qp(left, &[&a.cq]).unwrap();
        assert_eq!(a.completions(), []);
        b.driver.destroy_qp(right, &[&b.cq]).unwrap();
        world.run();
        assert_eq!((a.completions(), b.completions()), (vec![], vec![]));
        a.guest().check_free_pages();
        b.guest().check_free_pages();
    }
}

/// C33, C34
#[test]
fn c33_shared_receive_queue_serves_several_and_tells_of_its_limit_once() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let srq = b.driver.create_srq(b.pd, 16, 2).unwrap();
    let pairs = [(); 2].map(|()| {
        let qps = [a.create_rc(None), b.create_rc(Some(&srq))];
        world.join(&qps, 1);
        qps
    });
    for wr_id in 0..16 {
        assert!(b.driver.post_srq_recv(&srq, &Recv::new(wr_id, &[b.sge(wr_id * 100, 100)])));
    }
    world.run();
    b.driver.set_srq_limit(&srq, 12).unwrap();
    for n in 0..10 {
        let qp = &pairs[n % 2][0];
        a.write(0, &[n as u8; 100]);
        post(a, qp, &SendWork::new(1, WrOpcode::Send, SIGNALED, &[a.sge(0, 100)]));
        world.run();
        let received = b.completions();
        assert_eq!((received[0].wr_id, received[0].qp), (n as u64, pairs[n % 2][1].handle.into()));
        assert_eq!(b.read(n as u64 * 100, 100), [n as u8; 100]);
    }
    let events: Vec<_> =
        std::iter::from_fn(|| b.driver.next_event()).filter(|event| event.kind == 15).collect();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].info, b.driver.query_srq(&srq).unwrap().srq_limit), (srq.handle, 0));
}

/// C26
#[test]
fn c26_solicited_bit_of_the_sender_wakes_the_receiver() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, b] = &world.nodes;
    for wr_id in 0..2 {
        post_recv(b, &qps[1], wr_id, &[b.sge(0, 10)]);
    }
    b.driver.arm(&b.cq, true);
    post(a, &qps[0], &SendWork::new(1, WrOpcode::Send, 0, &[a.sge(0, 10)]));
    world.run();
    assert_eq!(b.guest().take_interrupts(Vector::Completion), 0);
    post(a, &qps[0], &SendWork::new(2, WrOpcode::Send, SOLICITED, &[a.sge(0, 10)]));
    world.run();
    assert_eq!(b.guest().take_interrupts(Vector::Completion), 1);
    assert_eq!(b.driver.next_notification(), Some(b.cq.handle));
}

/// A kernel's queue pair with a region for fast registrations, connected to a process of the other node.
fn kernel_pair(world: &World) -> ([Qp; 2], Mr, pvrdma_driver::Cq) {
    let [a, b] = &world.nodes;
    let pd = b.driver.create_pd(Context::KERNEL).unwrap();
    let cq = b.driver.create_cq(Context::KERNEL, 64).unwrap();
    let sizes = QpSizes { send_wr: 16, recv_wr: 16, send_sge: 1, recv_sge: 1 };
    let qp = b.driver.create_qp(pd, RC, (&cq, &cq), None, sizes).unwrap();
    let mr = b.driver.alloc_fast_reg(pd, 128).unwrap();
    let qps = [a.create_rc(None), qp];
    world.join(&qps, 1);
    (qps, mr, cq)
}

/// C37
#[test]
fn c37_fast_registered_memory_is_reachable_until_invalidated() {
    let world = World::new();
    let (qps, mr, cq) = kernel_pair(&world);
    let [a, b] = &world.nodes;
    let status = |operands: &RdmaOperands| {
        post(
            a,
            &qps[0],
            &SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 100)]).operands(operands),
        );
        world.run();
        a.statuses()
    };
    a.write(0, &pattern(100));
    let key = mr.rkey & !0xff | 0x42;
    let registration = FastRegOperands {
        iova_start: 0x5000_0ff0,
        pl_pdir_dma: b.heap.dir.root,
        page_shift: 12,
        page_list_len: 2,
        length: 4096,
        access_flags: 7,
        rkey: key,
        reserved: 0,
    };
    post(b, &qps[1], &SendWork::new(1, WrOpcode::FastReg, SIGNALED, &[]).operands(&registration));
    world.run();
    assert_eq!(b.driver.poll(&cq).map(|cqe| (cqe.opcode, cqe.status)), Some((8, OK)));
    let target = RdmaOperands { remote_addr: 0x5000_0ff0, rkey: key, reserved: 0 };
    assert_eq!(status(&target), [(1, OK)]);
    assert_eq!(b.read(0xff0, 100), pattern(100));
    post(b, &qps[1], &SendWork::new(2, WrOpcode::LocalInv, SIGNALED, &[]).extra(key.to_le_bytes()));
    world.run();
    assert_eq!(b.driver.poll(&cq).map(|cqe| (cqe.opcode, cqe.status)), Some((7, OK)));
    assert_eq!(status(&target), [(1, WcStatus::RemAccessErr as u32)]);
}

/// H17
#[test]
fn h17_keys_that_are_not_the_posters_are_refused() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let other_pd = a.driver.create_pd(a.context).unwrap();
    let foreign = a.driver.register(other_pd, 15, VA, HEAP, &a.heap.dir).unwrap();
    let kernel_pd = a.driver.create_pd(Context::KERNEL).unwrap();
    let everything = a.driver.register_all(kernel_pd, 15).unwrap();
    let frmr = a.driver.alloc_fast_reg(kernel_pd, 4).unwrap();
    let elements = [
        ("another domain's", Sge { addr: VA, length: 8, lkey: foreign.lkey }),
        ("none", Sge { addr: VA, length: 8, lkey: 0 }),
        ("the kernel's", Sge { addr: a.heap.pages[0], length: 8, lkey: everything.lkey }),
        ("an unregistered region's", Sge { addr: VA, length: 8, lkey: frmr.lkey }),
        ("its own, beyond the end", Sge { addr: VA + HEAP - 7, length: 8, lkey: a.mr.lkey }),
        ("its own, before the start", Sge { addr: VA - 1, length: 8, lkey: a.mr.lkey }),
        ("its own, wrapping", Sge { addr: u64::MAX - 3, length: 8, lkey: a.mr.lkey }),
        ("its own, another variant", Sge { addr: VA, length: 8, lkey: a.mr.lkey ^ 1 }),
    ];
    for (name, element) in elements {
        let qps = world.connect(0);
        post_recv(b, &qps[1], 9, &[b.sge(0, 100)]);
        post(a, &qps[0], &SendWork::new(1, WrOpcode::Send, SIGNALED, &[element]));
        world.run();
        assert_eq!(a.statuses(), [(1, WcStatus::LocProtErr as u32)], "{name}");
        assert_eq!(b.completions(), [], "{name}");
        let [left, right] = qps;
        a.driver.destroy_qp(left, &[&a.cq]).unwrap();
        b.driver.destroy_qp(right, &[&b.cq]).unwrap();
    }
    let qps = world.connect(0);
    let huge = [Sge { addr: VA, length: u32::MAX, lkey: a.mr.lkey }; 4];
    post(a, &qps[0], &SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &huge).operands(&rdma(b, 0)));
    world.run();
    assert!(matches!(a.statuses()[..], [(1, 1 | 4)]), "length or protection error");
}

/// H26: a receive buffer that is the queue's own ring.
#[test]
fn h26_messages_into_ones_own_rings_hurt_only_oneself() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let victim = world.connect(0);
    let own = [&victim[1].buffer, &b.cq.buffer];
    for buffer in own {
        let qps = world.connect(1);
        let pages = buffer.pages.len() as u64;
        let mr = b.driver.register(b.pd, 15, 0, pages * PAGE_SIZE, &buffer.dir).unwrap();
        let operands = RdmaOperands { remote_addr: 0, rkey: mr.rkey, reserved: 0 };
        a.write(0, &vec![0xff; 2 * PAGE_SIZE as usize]);
        let work = SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 2 * PAGE_SIZE as u32)]);
        post(a, &qps[0], &work.operands(&operands));
        world.run();
        b.guest().device.rang(0);
        b.guest().device.rang(1);
        b.guest().device.rang(2);
        b.guest().device.rang(3);
        world.run();
    }
    assert_eq!(a.driver.query_port().unwrap().state, 4);
    assert_eq!(b.driver.query_port().unwrap().state, 4);
    let cq = b.driver.create_cq(b.context, 16).unwrap();
    let sizes = QpSizes { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1 };
    let fresh = b.driver.create_qp(b.pd, RC, (&cq, &cq), None, sizes).unwrap();
    let left = a.create_rc(None);
    world.join(&[left, fresh], 1);
}

/// H27: a queue pair that floods itself, served in bounded batches, and that can be stopped.
#[test]
fn h27_storms_end_with_their_queue_pair() {
    let world = World::new();
    let [a, _] = &world.nodes;
    let own = a.create_rc(None);
    a.connect(&own, a.path(a, 1), own.qpn);
    for round in 0..500 {
        for _ in 0..8 {
            a.driver
                .post_send(&own, &SendWork::new(round, WrOpcode::RdmaWrite, 0, &[]).operands(&rdma(a, 0)));
            a.driver.post_send(&own, &SendWork::new(round, WrOpcode::Send, 0, &[]));
        }
        a.guest().serve();
    }
    a.driver.query_port().unwrap();
    a.driver.destroy_qp(own, &[&a.cq]).unwrap();
    world.run();
    assert_eq!(a.completions(), []);
}

/// C46
#[test]
fn c46_receiver_that_never_posts_exhausts_the_retries() {
    let world = World::new();
    let qps = world.connect(1);
    let [a, b] = &world.nodes;
    post(a, &qps[0], &SendWork::new(1, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]));
    post(a, &qps[0], &SendWork::new(2, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]));
    world.run();
    assert_eq!(a.statuses(), [(1, WcStatus::RnrRetryExcErr as u32), (2, WcStatus::WrFlushErr as u32)]);
    let [left, right] = qps;
    b.driver.destroy_qp(right, &[&b.cq]).unwrap();
    let path = a.path(b, 1);
    a.driver.modify_qp(&left, 1, &QpAttr::new_zeroed()).unwrap();
    a.connect(&left, path, 0x12345);
    post(a, &left, &SendWork::new(3, WrOpcode::Send, SIGNALED, &[a.sge(0, 10)]));
    world.run();
    assert_eq!(a.statuses(), [(3, WcStatus::RetryExcErr as u32)]);
}
