//! Work requests, completions and doorbells.

mod common;

use common::{RC, Rig, SMALL, UD, completion_of, recv, send};
use pvrdma::test_utils::{FakeProvider, MachineConfig};
use pvrdma_driver::{Context, QpSizes, Recv, SendWork};
use pvrdma_spec::queue::{AtomicOperands, Av, FastRegOperands, RdmaOperands, Sge, UdOperands, WrOpcode};
use verbs::{Owner, QpId, QpState, SendFlags, SendOp, SrqId, WcStatus};
use zerocopy::FromZeros;

const RDMA: RdmaOperands = RdmaOperands { remote_addr: 0x1234_5678_9abc, rkey: 0x55, reserved: 0 };

const ATOMIC: AtomicOperands =
    AtomicOperands { remote_addr: 0x8000, compare_add: 3, swap: 4, rkey: 0x66, reserved: 0 };

/// The last request the provider got, after posting `work` to a new queue pair of the kernel or of a process.
fn parsed(owner: Owner, work: &SendWork) -> SendOp {
    let rig = Rig::new();
    let process = if owner == Owner::Kernel { rig.kernel() } else { rig.process(1) };
    let qp = process.connected_qp();
    assert!(rig.driver.post_send(&qp, work));
    rig.guest().run();
    rig.fake.with(|state| state.qps[&QpId(qp.handle)].sends.back().expect("request was taken").op.clone())
}

/// C17, C18
#[test]
fn c17_each_opcode_of_a_process_is_understood() {
    let imm = [1, 2, 3, 4];
    let work = |opcode| SendWork::new(1, opcode, 0, &[]);
    let (addr, rkey) = (RDMA.remote_addr, RDMA.rkey);
    let cases = [
        (work(WrOpcode::Send), SendOp::Send { imm: None }),
        (work(WrOpcode::SendImm).extra(imm), SendOp::Send { imm: Some(imm) }),
        (work(WrOpcode::RdmaWrite).operands(&RDMA), SendOp::Write { addr, rkey, imm: None }),
        (
            work(WrOpcode::RdmaWriteImm).operands(&RDMA).extra(imm),
            SendOp::Write { addr, rkey, imm: Some(imm) },
        ),
        (work(WrOpcode::RdmaRead).operands(&RDMA), SendOp::Read { addr, rkey }),
        (
            work(WrOpcode::CompareSwap).operands(&ATOMIC),
            SendOp::CompareSwap { addr: 0x8000, rkey: 0x66, compare: 3, swap: 4 },
        ),
        (work(WrOpcode::FetchAdd).operands(&ATOMIC), SendOp::FetchAdd { addr: 0x8000, rkey: 0x66, add: 3 }),
    ];
    for (work, op) in cases {
        assert_eq!(parsed(Owner::User, &work), op);
        assert_eq!(parsed(Owner::Kernel, &work), op);
    }
}

/// C37
#[test]
fn c37_opcodes_of_the_kernel_are_for_the_kernel() {
    let key = 0x1234_5678u32;
    let inv = SendWork::new(1, WrOpcode::LocalInv, 0, &[]).extra(key.to_le_bytes());
    let send_inv = SendWork::new(1, WrOpcode::SendInv, 0, &[]).extra(key.to_le_bytes());
    assert_eq!(parsed(Owner::Kernel, &inv), SendOp::LocalInv { key });
    assert_eq!(parsed(Owner::Kernel, &send_inv), SendOp::SendInv { rkey: key });
    for opcode in 7..20 {
        let mut work = SendWork::new(1, WrOpcode::Send, 0, &[]);
        work.header.opcode = opcode;
        assert_eq!(parsed(Owner::User, &work), SendOp::Bad(WcStatus::LocQpOpErr), "opcode {opcode}");
    }
    for opcode in [7, 9, 12, 13, 14, 15, 16, u32::MAX] {
        let mut work = SendWork::new(1, WrOpcode::Send, 0, &[]);
        work.header.opcode = opcode;
        assert_eq!(parsed(Owner::Kernel, &work), SendOp::Bad(WcStatus::LocQpOpErr), "opcode {opcode}");
    }
}

#[test]
fn c37_fast_registration_copies_its_page_list_when_it_is_fetched() {
    let rig = Rig::new();
    let kernel = rig.kernel();
    let qp = kernel.connected_qp();
    let buffer = rig.buffer(3 * 4096);
    let operands = FastRegOperands {
        iova_start: 0x10_0010,
        pl_pdir_dma: buffer.dir.root,
        page_shift: 12,
        page_list_len: 3,
        length: 3 * 4096 - 0x10,
        access_flags: 7,
        rkey: 0x4401,
        reserved: 0,
    };
    assert!(rig.driver.post_send(&qp, &SendWork::new(1, WrOpcode::FastReg, 2, &[]).operands(&operands)));
    rig.guest().run();
    rig.fill(buffer.dir.tables[0], 0);
    let op = rig.fake.with(|state| state.qps[&QpId(qp.handle)].sends[0].op.clone());
    let SendOp::FastReg(registration) = op else { panic!("{op:?}") };
    assert_eq!(
        (registration.key, registration.iova, registration.length),
        (0x4401, 0x10_0010, 3 * 4096 - 0x10)
    );
    let mut segments = verbs::Segments::new();
    assert!(registration.pages.resolve(0x10, 1, &mut segments));
    assert_eq!(segments[0].gpa, buffer.pages[0] + 0x10);
}

/// C36
#[test]
fn c36_datagram_carries_its_path() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = rig.driver.create_qp(process.pd, UD, (&process.cq, &process.cq), None, SMALL).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    let mut operands = UdOperands::new_zeroed();
    operands.remote_qpn = 0x77;
    operands.remote_qkey = 0x8888_0001;
    operands.av = Av {
        port_pd: 1 << 24 | process.pd.handle,
        sl_tclass_flowlabel: 0x20 << 20 | 0x1_2345,
        dgid: [7; 16],
        src_path_bits: 0x80,
        gid_index: 2,
        stat_rate: 0,
        hop_limit: 9,
        dmac: [2, 0, 0, 0, 0, 1],
        reserved: [0; 6],
    };
    assert!(
        rig.driver
            .post_send(&qp, &SendWork::new(1, WrOpcode::SendImm, 2, &[]).operands(&operands).extra([1; 4]))
    );
    assert!(rig.driver.post_send(&qp, &SendWork::new(2, WrOpcode::RdmaWrite, 2, &[]).operands(&RDMA)));
    rig.guest().run();
    rig.fake.with(|state| {
        let sends = &state.qps[&QpId(qp.handle)].sends;
        let SendOp::UdSend { to, imm: Some([1, 1, 1, 1]) } = &sends[0].op else {
            panic!("{:?}", sends[0].op)
        };
        assert_eq!((to.qpn.0, to.qkey, to.av.sgid_index, to.av.hop_limit), (0x77, 0x8888_0001, 2, 9));
        assert_eq!((to.av.traffic_class, to.av.flow_label, to.av.sl), (0x20, 0x1_2345, 0));
        assert_eq!(sends[1].op, SendOp::Bad(WcStatus::LocQpOpErr), "datagram queue pairs only send");
    });
}

/// C24
#[test]
fn c24_unsignalled_requests_free_their_slots_silently() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    for round in 0..50 {
        for wr_id in 0..4 {
            let mut work = send(round * 4 + wr_id);
            work.header.send_flags = if wr_id == 3 { 2 } else { 0 };
            assert!(rig.driver.post_send(&qp, &work), "slots were given back");
        }
        rig.guest().run();
        while rig.fake.finish_send(QpId(qp.handle), WcStatus::Success) {}
        rig.guest().run();
        let wr_ids: Vec<_> = process.drain().iter().map(|cqe| cqe.wr_id).collect();
        assert_eq!(wr_ids, [round * 4 + 3]);
    }
}

#[test]
fn c24_queue_pair_that_signals_all_signals_all() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = rig
        .driver
        .create_qp_with(process.pd, RC, (&process.cq, &process.cq), None, SMALL, |request| {
            request.sq_sig_all = 1
        })
        .unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    let mut work = send(1);
    work.header.send_flags = 8 | 1;
    assert!(rig.driver.post_send(&qp, &work));
    rig.guest().run();
    rig.fake.with(|state| {
        let flags = state.qps[&QpId(qp.handle)].sends[0].flags;
        assert_eq!(flags, SendFlags::SIGNALED | SendFlags::FENCE, "the inline bit means nothing");
    });
}

/// C23
#[test]
fn c23_completion_queues_wrap_exactly() {
    let rig = Rig::new();
    let process = rig.process(1);
    for entries in [1, 2, 4096] {
        let cq = rig.driver.create_cq(process.context, entries).unwrap();
        let qp = rig.driver.create_qp(process.pd, RC, (&cq, &cq), None, SMALL).unwrap();
        rig.move_to(&qp, QpState::Rts).unwrap();
        let rounds = u64::from(entries) * 4 + 3;
        let batch = u64::from(entries.min(3));
        let mut expected = 0;
        for start in (0..rounds).step_by(batch as usize) {
            rig.complete_sends(&qp, start..start + batch);
            while let Some(cqe) = rig.driver.poll(&cq) {
                assert_eq!((cqe.wr_id, cqe.qp, cqe.status), (expected, u64::from(qp.handle), 0));
                expected += 1;
            }
        }
        assert!(expected >= rounds);
        rig.driver.destroy_qp(qp, &[&cq]).unwrap();
        rig.driver.destroy_cq(cq).unwrap();
    }
}

/// C21
#[test]
fn c21_destroyed_queue_pair_leaves_no_completion_and_no_writes() {
    let rig = Rig::new();
    let process = rig.process(1);
    let (dying, other) = (process.connected_qp(), process.connected_qp());
    rig.complete_sends(&other, [1]);
    rig.complete_sends(&dying, [2]);
    rig.complete_sends(&other, [3]);
    assert!(rig.driver.post_send(&dying, &send(4)));
    rig.guest().run();
    assert!(rig.fake.finish_send(QpId(dying.handle), WcStatus::Success));
    rig.driver.destroy_qp(dying, &[&process.cq]).unwrap();
    rig.guest().run();
    let seen: Vec<_> = process.drain().iter().map(|cqe| (cqe.wr_id, cqe.qp)).collect();
    assert_eq!(seen, [(1, u64::from(other.handle)), (3, u64::from(other.handle))]);
    rig.guest().check_free_pages();
}

#[test]
fn queue_pair_that_was_reset_starts_over() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    for round in 0..3 {
        rig.complete_sends(&qp, [1, 2, 3]);
        assert!(rig.driver.post_recv(&qp, &recv(round)));
        rig.guest().run();
        rig.move_to(&qp, QpState::Reset).unwrap();
        process.drain();
        rig.guest().run();
        assert!(rig.fake.with(|state| state.qps[&QpId(qp.handle)].recvs.is_empty()));
        rig.move_to(&qp, QpState::Rts).unwrap();
        rig.guest().run();
        assert!(rig.fake.with(|state| state.qps[&QpId(qp.handle)].recvs.is_empty()), "old requests are gone");
    }
}

#[test]
fn requests_posted_too_early_are_taken_once_the_state_allows() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    assert!(rig.driver.post_send(&qp, &send(1)));
    assert!(rig.driver.post_recv(&qp, &recv(2)));
    rig.guest().run();
    let taken = || {
        rig.fake.with(|state| {
            let fake = &state.qps[&QpId(qp.handle)];
            (fake.sends.len(), fake.recvs.len())
        })
    };
    assert_eq!(taken(), (0, 0));
    rig.move_to(&qp, QpState::Init).unwrap();
    rig.guest().run();
    assert_eq!(taken(), (0, 1));
    rig.move_to(&qp, QpState::Err).unwrap();
    rig.guest().run();
    assert_eq!(taken(), (1, 1), "they are flushed");
}

/// C33, C35
#[test]
fn c35_shared_receive_completes_with_the_receiving_queue_pair() {
    let rig = Rig::new();
    let process = rig.process(1);
    let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
    let qps = [process.try_qp(Some(&srq)).unwrap(), process.try_qp(Some(&srq)).unwrap()];
    for round in 0..20 {
        assert!(rig.driver.post_srq_recv(&srq, &recv(round)), "slots were given back");
        rig.guest().run();
        let qp = &qps[round as usize % 2];
        assert!(rig.fake.finish_recv(QpId(qp.handle), WcStatus::Success, false));
        rig.guest().run();
        let cqe = rig.driver.poll(&process.cq).unwrap();
        assert_eq!((cqe.wr_id, cqe.qp, cqe.opcode), (round, u64::from(qp.handle), 128));
    }
    for qp in qps {
        rig.driver.destroy_qp(qp, &[&process.cq]).unwrap();
    }
    rig.driver.destroy_srq(srq).unwrap();
    assert!(rig.fake.with(|state| state.srqs.is_empty()));
}

/// C60
#[test]
fn c60_completion_fields_lie_where_the_guest_reads_them() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    rig.fake.report(verbs::ProviderEvent::Completion(completion_of(&qp, &process.cq)));
    rig.guest().run();
    let cqe = rig.driver.poll(&process.cq).unwrap();
    assert_eq!((cqe.imm_data, cqe.src_qp, cqe.byte_len), ([1, 2, 3, 4], 9, 5));
    assert_eq!((cqe.wc_flags, cqe.network_hdr_type, cqe.port_num), (1 | 64, 2, 1));
    assert_eq!((cqe.smac, cqe.slid, cqe.vendor_err), ([0; 6], 0, 0));
}

#[test]
fn doorbells_work_caught_and_as_register_writes() {
    for doorbells in [0, 1, 4096] {
        let config = MachineConfig { doorbells, groups: 1, ..MachineConfig::default() };
        let rig = Rig::with(config, FakeProvider::LIMITS, 20);
        let process = rig.process(5);
        let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
        let qps = [process.connected_qp(), process.connected_qp(), process.try_qp(Some(&srq)).unwrap()];
        rig.guest().run();
        for qp in &qps[..2] {
            assert!(rig.driver.post_recv(qp, &recv(1)));
            assert!(rig.guest().is_woken());
            rig.guest().run();
            rig.complete_sends(qp, [2]);
        }
        assert!(rig.driver.post_srq_recv(&srq, &recv(3)));
        assert!(rig.guest().is_woken());
        rig.guest().run();
        rig.fake.with(|state| {
            assert_eq!(state.qps[&QpId(qps[0].handle)].recvs.len(), 1);
            assert_eq!(state.qps[&QpId(qps[1].handle)].recvs.len(), 1);
            assert_eq!(state.srqs[&SrqId(srq.handle)].1.len(), 1);
        });
        assert_eq!(process.drain().len(), 2);
        let before = rig.guest().caught_polls();
        assert_eq!(process.drain().len(), 0);
        assert_eq!(rig.guest().caught_polls() - before, u64::from(doorbells > 0));
        assert!(!rig.guest().is_woken(), "an empty poll wakes nobody");
    }
}

#[test]
fn one_write_may_ring_for_both_directions() {
    let rig = Rig::new();
    let kernel = rig.kernel();
    let qp = kernel.connected_qp();
    assert!(qp.send.push(rig.guest(), &qp.buffer, zerocopy::IntoBytes::as_bytes(&send(1).header)));
    assert!(qp.recv.push(rig.guest(), &qp.buffer, zerocopy::IntoBytes::as_bytes(&recv(2).header)));
    pvrdma_driver::Platform::ring(rig.guest(), 0, 0, 3 << 30 | qp.handle);
    rig.guest().run();
    rig.fake.with(|state| {
        let fake = &state.qps[&QpId(qp.handle)];
        assert_eq!((fake.sends.len(), fake.recvs.len()), (1, 1));
    });
}

#[test]
fn long_lists_arrive_whole() {
    let rig = Rig::new();
    let pd = rig.driver.create_pd(Context::KERNEL).unwrap();
    let cq = rig.driver.create_cq(Context::KERNEL, 4).unwrap();
    let max = rig.driver.caps().max_sge;
    let sizes = QpSizes { send_wr: 32, recv_wr: 64, send_sge: max, recv_sge: max };
    let qp = rig.driver.create_qp(pd, RC, (&cq, &cq), None, sizes).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    let sges: Vec<_> = (0..max).map(|n| Sge { addr: u64::from(n) << 12, length: n, lkey: n + 1 }).collect();
    for count in 0..=max as usize {
        assert!(rig.driver.post_send(&qp, &SendWork::new(count as u64, WrOpcode::Send, 0, &sges[..count])));
        assert!(rig.driver.post_recv(&qp, &Recv::new(count as u64, &sges[..count])));
    }
    rig.guest().run();
    rig.fake.with(|state| {
        let fake = &state.qps[&QpId(qp.handle)];
        for count in 0..=max as usize {
            let lists = [&fake.sends[count].sges, &fake.recvs[count].sges];
            for list in lists {
                let got: Vec<_> = list.iter().map(|s| (s.addr, s.length, s.lkey)).collect();
                let put: Vec<_> = sges[..count].iter().map(|s| (s.addr, s.length, s.lkey)).collect();
                assert_eq!(got, put);
            }
        }
    });
}

/// A message must not arrive before the receive request that was posted for it, however much there is to send.
#[test]
fn receives_are_taken_before_sends() {
    let rig = Rig::new();
    let process = rig.process(1);
    let sizes = QpSizes { send_wr: 1024, recv_wr: 4, send_sge: 1, recv_sge: 1 };
    let busy = rig.driver.create_qp(process.pd, RC, (&process.cq, &process.cq), None, sizes).unwrap();
    rig.move_to(&busy, QpState::Rts).unwrap();
    let other = process.connected_qp();
    rig.guest().run();
    for wr_id in 0..1000 {
        assert!(rig.driver.post_send(&busy, &send(wr_id)));
    }
    assert!(rig.driver.post_recv(&other, &recv(1)));
    assert!(rig.guest().serve().more);
    rig.fake.with(|state| {
        assert_eq!(state.qps[&QpId(other.handle)].recvs.len(), 1);
        assert!(state.qps[&QpId(busy.handle)].sends.len() < 1000);
    });
}

/// Doorbells and commands go different ways: by the time a queue pair may receive, it has what the guest posted before.
#[test]
fn receives_posted_before_a_queue_pair_receives_are_in_time() {
    let rig = Rig::new();
    let process = rig.process(1);
    let own = process.try_qp(None).unwrap();
    let srq = rig.driver.create_srq(process.pd, 64, 1).unwrap();
    let sharing = process.try_qp(Some(&srq)).unwrap();
    for qp in [&own, &sharing] {
        rig.move_to(qp, QpState::Init).unwrap();
    }
    // More than are taken from a ring at a time.
    (0..40).for_each(|wr_id| assert!(rig.driver.post_srq_recv(&srq, &recv(wr_id))));
    (0..5).for_each(|wr_id| assert!(rig.driver.post_recv(&own, &recv(wr_id))));
    for qp in [&own, &sharing] {
        rig.move_to(qp, QpState::Rtr).unwrap();
    }
    let taken = || {
        rig.fake
            .with(|state| (state.qps[&QpId(own.handle)].recvs.len(), state.srqs[&SrqId(srq.handle)].1.len()))
    };
    assert_eq!(taken(), (5, 40), "and nobody answered a doorbell");
    rig.guest().run();
    assert_eq!(taken(), (5, 40));
}
