//! A hostile guest: every input ends in an error that stays with its cause, and the device works on.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{RC, Rig, SMALL, UD, recv, send};
use pci::Device;
use pvrdma::test_utils::{FakeProvider, MachineConfig};
use pvrdma_driver::{Platform, Recv, SendWork};
use pvrdma_spec::command::{CreateCq, CreateCqResponse, Opcode};
use pvrdma_spec::queue::{FastRegOperands, RdmaOperands, Sge, UdOperands, WrOpcode};
use pvrdma_spec::register::{BAR_MSIX, BAR_REGISTERS, BAR_UAR, Register};
use pvrdma_spec::{PAGE_SIZE, version};
use verbs::{QpId, QpState, SendOp, WcStatus};
use zerocopy::{FromZeros, IntoBytes};

/// An address that is not RAM in a machine of the usual size: where its doorbell pages might be.
const MMIO: u64 = 0xfe00_0000;

#[test]
fn h9_too_many_elements_fail_the_request_alone() {
    let rig = Rig::new();
    let process = rig.process(1);
    let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
    let qp = process.connected_qp();
    for num_sge in [SMALL.send_sge + 1, 5, 33, 1 << 28, u32::MAX] {
        let mut work = send(1);
        work.header.num_sge = num_sge;
        assert!(rig.driver.post_send(&qp, &work));
        let mut work = Recv::new(2, &[]);
        work.header.num_sge = num_sge;
        assert!(rig.driver.post_recv(&qp, &work));
        assert!(rig.driver.post_srq_recv(&srq, &work));
        assert!(rig.driver.post_send(&qp, &send(3)));
        rig.guest().run();
        rig.fake.with(|state| {
            let fake = state.qps.get_mut(&QpId(qp.handle)).unwrap();
            let (bad, good) = (fake.sends.pop_front().unwrap(), fake.sends.pop_front().unwrap());
            assert_eq!((bad.op, bad.sges.len()), (SendOp::Bad(WcStatus::LocQpOpErr), 0));
            assert_eq!((good.op, good.sges.len()), (SendOp::Send { imm: None }, 1));
            assert_eq!(fake.recvs.pop_front().unwrap().bad, Some(WcStatus::LocQpOpErr));
            let shared = state.srqs.get_mut(&verbs::SrqId(srq.handle)).unwrap().1.pop_front().unwrap();
            assert_eq!(shared.bad, Some(WcStatus::LocQpOpErr));
            for event in [
                verbs::ProviderEvent::SendRetired(QpId(qp.handle)),
                verbs::ProviderEvent::SendRetired(QpId(qp.handle)),
                verbs::ProviderEvent::RecvRetired(QpId(qp.handle)),
                verbs::ProviderEvent::SrqRetired(verbs::SrqId(srq.handle)),
            ] {
                state.events.push_back(event);
            }
        });
        rig.guest().run();
    }
    rig.check_alive();
}

/// C56 as well.
#[test]
fn h10_impossible_indices_break_the_queue_and_nothing_else() {
    let n = SMALL.send_wr;
    for tail in [2 * n, n + 1, u32::MAX, 0x8000_0000, 2 * n + 1] {
        let rig = Rig::new();
        let process = rig.process(1);
        let (qp, srq) = (process.connected_qp(), rig.driver.create_srq(process.pd, n, 1).unwrap());
        let other = process.connected_qp();
        qp.send.set_tail(rig.guest(), &qp.buffer, tail);
        rig.driver.platform().ring(1, 0, 1 << 30 | qp.handle);
        srq.ring.set_tail(rig.guest(), &srq.buffer, tail);
        rig.driver.platform().ring(1, 8, 1 << 30 | srq.handle);
        rig.guest().run();
        assert_eq!(rig.driver.query_qp(&qp).unwrap().qp_state, QpState::Err as u32, "tail {tail:#x}");
        let mut events =
            [rig.driver.next_event(), rig.driver.next_event()].map(|e| e.map(|e| (e.kind, e.info)));
        events.sort();
        assert_eq!(events, [Some((1, qp.handle)), Some((14, srq.handle))], "tail {tail:#x}");
        rig.driver.platform().ring(1, 0, 1 << 30 | qp.handle);
        rig.guest().run();
        assert_eq!(rig.driver.next_event(), None, "told once");
        rig.complete_sends(&other, [1]);
        assert_eq!(process.drain().len(), 1);
        rig.check_alive();
    }
}

#[test]
fn h10_index_that_moves_backwards_breaks_the_queue() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    assert!(rig.driver.post_recv(&qp, &recv(1)));
    assert!(rig.driver.post_recv(&qp, &recv(2)));
    rig.guest().run();
    qp.recv.set_tail(rig.guest(), &qp.buffer, 1);
    rig.driver.platform().ring(1, 0, 1 << 31 | qp.handle);
    rig.guest().run();
    assert_eq!(rig.driver.next_event().map(|event| event.kind), Some(1));
    rig.check_alive();
}

#[test]
fn h10_impossible_consumer_index_fails_the_completion_queue() {
    for head in [128, u32::MAX, 0x8000_0000] {
        let rig = Rig::new();
        let process = rig.process(1);
        let qp = process.connected_qp();
        process.cq.ring.set_head(rig.guest(), &process.cq.buffer, head);
        rig.complete_sends(&qp, [1]);
        let event = rig.driver.next_event().unwrap();
        assert_eq!((event.kind, event.info), (0, process.cq.handle), "head {head:#x}");
        rig.check_alive();
    }
    let rig = Rig::new();
    let process = rig.process(1);
    process.cq.ring.set_head(rig.guest(), &process.cq.buffer, 5);
    rig.driver.arm(&process.cq, false);
    assert_eq!(rig.driver.next_event().map(|event| event.kind), Some(0), "arming looks at it, too");
    rig.check_alive();
}

/// Another CPU rewrites requests, indices and page directories while the device reads them.
#[test]
fn h11_memory_that_changes_under_the_device_breaks_only_its_owner() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let buffer = rig.buffer(16 * PAGE_SIZE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guest = rig.guest();
            let mut word = 0u32;
            while !stop.load(Ordering::Relaxed) {
                word = word.wrapping_mul(1_664_525).wrapping_add(12345);
                guest.store(qp.buffer.address(PAGE_SIZE + 8), word);
                guest.store(qp.buffer.address(PAGE_SIZE + 16), word >> 28);
                guest.store(buffer.dir.tables[0] + u64::from(word >> 28) * 8 + 4, word & 1);
            }
        });
        for wr_id in 0..2000 {
            if rig.driver.post_send(&qp, &send(wr_id)) {
                rig.guest().run();
                rig.fake.finish_send(QpId(qp.handle), WcStatus::Success);
                rig.guest().run();
            }
            if let Ok(mr) = rig.driver.register(process.pd, 1, 0, 16 * PAGE_SIZE, &buffer.dir) {
                rig.driver.deregister(mr).unwrap();
            }
            process.drain();
        }
        stop.store(true, Ordering::Relaxed);
    });
    rig.check_alive();
}

#[test]
fn h11_capabilities_rewritten_by_the_guest_change_nothing() {
    let rig = Rig::new();
    rig.guest().write(rig.driver.region, &[0xff; 280]);
    let process = rig.process(1);
    let mut request = CreateCq::new_zeroed();
    request.ctx_handle = process.context.handle;
    (request.cqe, request.nchunks, request.pdir_dma) = (1 << 20, 1 << 15, process.cq.buffer.dir.root);
    assert!(rig.driver.ask::<_, CreateCqResponse>(Opcode::CreateCq, &request).is_err());
    rig.check_alive();
}

/// Objects go while other CPUs ring for them and the I/O thread is at work.
#[test]
fn h14_destroying_under_doorbells_and_traffic_is_safe() {
    let config = MachineConfig { doorbells: 3, ..MachineConfig::default() };
    let rig = Rig::with(config, FakeProvider::LIMITS, version::QP_HANDLE);
    let process = rig.process(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for offset in [0, 4, 8] {
            let (guest, stop) = (rig.guest(), &stop);
            scope.spawn(move || {
                let mut handle = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    handle = (handle + 1) % 40;
                    guest.ring(1, offset, 1 << 30 | handle);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rig.guest().serve();
                for qp in 0..40 {
                    rig.fake.finish_send(QpId(qp), WcStatus::Success);
                }
            }
        });
        for round in 0..300 {
            let qp = process.connected_qp();
            let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
            assert!(rig.driver.post_send(&qp, &send(round)));
            assert!(rig.driver.post_srq_recv(&srq, &recv(round)));
            rig.driver.destroy_qp(qp, &[&process.cq]).unwrap();
            rig.driver.destroy_srq(srq).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    rig.check_alive();
}

#[test]
fn h15_doorbells_of_strangers_are_counted_and_ignored() {
    let rig = Rig::with(MachineConfig { doorbells: 0, ..MachineConfig::default() }, FakeProvider::LIMITS, 20);
    let (owner, thief) = (rig.process(1), rig.process(2));
    let qp = owner.connected_qp();
    let srq = rig.driver.create_srq(owner.pd, 4, 1).unwrap();
    rig.complete_sends(&owner.connected_qp(), [9]);
    rig.guest().run();
    assert!(qp.send.push(rig.guest(), &qp.buffer, send(1).header.as_bytes()));
    assert!(srq.ring.push(rig.guest(), &srq.buffer, recv(1).header.as_bytes()));
    let before = rig.guest().device.counters().bad_doorbells;
    for page in [0, thief.context.page, 3, 1023] {
        rig.guest().ring(page, 0, 3 << 30 | qp.handle);
        rig.guest().ring(page, 4, 1 << 30 | owner.cq.handle);
        rig.guest().ring(page, 4, 1 << 29 | owner.cq.handle);
        rig.guest().ring(page, 8, 1 << 30 | srq.handle);
    }
    rig.guest().run();
    assert_eq!(rig.guest().device.counters().bad_doorbells - before, 16);
    assert_eq!(rig.driver.next_notification(), None);
    rig.fake.with(|state| {
        assert_eq!(state.qps[&QpId(qp.handle)].sends.len(), 0);
        assert_eq!(state.srqs[&verbs::SrqId(srq.handle)].1.len(), 0);
    });
    for handle in (0..1 << 24).step_by(997) {
        for offset in [0, 4, 8] {
            rig.guest().ring(1, offset, 3 << 30 | handle);
        }
    }
    rig.guest().run();
    rig.check_alive();
}

#[test]
fn h16_accesses_of_every_size_and_place_are_tolerated() {
    let rig = Rig::new();
    let device = &rig.guest().device;
    for bar in [BAR_MSIX, BAR_REGISTERS, BAR_UAR, 3, 5, 255] {
        for len in 1..=8usize {
            for offset in (0..64).chain([0x80, 0xff, 0x100, 0xff8, 4 << 20, u64::MAX - 8]) {
                let mut data = [0xee; 8];
                device.read(bar, offset, &mut data[..len]);
                let register = bar == BAR_REGISTERS && len == 4 && Register::at(offset).is_some();
                assert!(register || data[..len].iter().all(|byte| *byte == 0), "bar {bar} {offset:#x}+{len}");
                if !register {
                    device.write(bar, offset, &[0xff; 8][..len]);
                }
            }
        }
    }
    device.write(BAR_REGISTERS, Register::Version.offset(), &[0xff; 4]);
    assert_eq!(rig.guest().read_register(Register::Version), version::QP_HANDLE);
    rig.guest().run();
    rig.check_alive();
}

#[test]
fn h18_forged_registrations_give_a_process_nothing() {
    let rig = Rig::new();
    let (process, kernel) = (rig.process(1), rig.kernel());
    let buffer = rig.buffer(PAGE_SIZE);
    let good = FastRegOperands {
        iova_start: 0,
        pl_pdir_dma: buffer.dir.root,
        page_shift: 12,
        page_list_len: 1,
        length: 4096,
        access_flags: 7,
        rkey: 0x100,
        reserved: 0,
    };
    let posted = |process: &common::Process<'_>, operands: &FastRegOperands| {
        let qp = process.connected_qp();
        let work = SendWork::new(1, WrOpcode::FastReg, 2, &[]).operands(operands);
        assert!(rig.driver.post_send(&qp, &work));
        rig.guest().run();
        let op = rig.fake.with(|state| state.qps[&QpId(qp.handle)].sends[0].op.clone());
        rig.driver.destroy_qp(qp, &[]).unwrap();
        op
    };
    assert_eq!(posted(&process, &good), SendOp::Bad(WcStatus::LocQpOpErr));
    assert!(matches!(posted(&kernel, &good), SendOp::FastReg(_)));
    for (name, operands) in [
        ("all pages", FastRegOperands { page_list_len: u32::MAX, ..good }),
        ("129 pages", FastRegOperands { page_list_len: 129, ..good }),
        ("no pages", FastRegOperands { page_list_len: 0, ..good }),
        ("page shift 0", FastRegOperands { page_shift: 0, ..good }),
        ("page shift 11", FastRegOperands { page_shift: 11, ..good }),
        ("page shift 63", FastRegOperands { page_shift: 63, ..good }),
        ("page shift past 32 bits", FastRegOperands { page_shift: u32::MAX, ..good }),
        ("pages larger than memory", FastRegOperands { page_shift: 30, ..good }),
        ("no bytes", FastRegOperands { length: 0, ..good }),
        ("more bytes than pages", FastRegOperands { length: 4097, ..good }),
        ("more bytes than pages after the offset", FastRegOperands { iova_start: 1, ..good }),
        ("directory outside memory", FastRegOperands { pl_pdir_dma: MMIO, ..good }),
        ("directory not aligned", FastRegOperands { pl_pdir_dma: buffer.dir.root + 8, ..good }),
    ] {
        assert_eq!(posted(&kernel, &operands), SendOp::Bad(WcStatus::MwBindErr), "{name}");
    }
    rig.check_alive();
}

#[test]
fn h20_impossible_datagram_addresses_fail_the_request_alone() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = rig.driver.create_qp(process.pd, UD, (&process.cq, &process.cq), None, SMALL).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    let changes: [&dyn Fn(&mut UdOperands); 5] = [
        &|ud| ud.av.gid_index = 16,
        &|ud| ud.av.gid_index = 255,
        &|ud| ud.av.port_pd = 0,
        &|ud| ud.av.port_pd = 255 << 24,
        &|ud| ud.remote_qpn = 1 << 24,
    ];
    for change in changes {
        let mut operands = UdOperands::new_zeroed();
        operands.av.port_pd = 1 << 24;
        change(&mut operands);
        assert!(rig.driver.post_send(&qp, &SendWork::new(1, WrOpcode::Send, 2, &[]).operands(&operands)));
        rig.guest().run();
        rig.fake.with(|state| {
            let op = state.qps.get_mut(&QpId(qp.handle)).unwrap().sends[0].op.clone();
            assert_eq!(op, SendOp::Bad(WcStatus::LocQpOpErr));
        });
        assert!(rig.fake.finish_send(QpId(qp.handle), WcStatus::LocQpOpErr));
        rig.guest().run();
    }
    let statuses: Vec<_> = process.drain().iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [2; 5]);
    rig.check_alive();
}

/// Completion queue, device rings and slots laid over one another.
#[test]
fn h26_rings_that_overlap_confuse_only_their_owner() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    for target in [
        qp.buffer.pages[0],
        rig.driver.region,
        rig.driver.command_slot,
        rig.driver.events.pages[0],
        rig.driver.notifications.pages[1],
        process.cq.buffer.dir.root,
    ] {
        let directory = rig.buffer(PAGE_SIZE);
        rig.fill(directory.dir.tables[0], target);
        let mut request = CreateCq::new_zeroed();
        request.ctx_handle = process.context.handle;
        (request.cqe, request.nchunks, request.pdir_dma) = (64, 2, directory.dir.root);
        let Ok(created) = rig.driver.ask::<_, CreateCqResponse>(Opcode::CreateCq, &request) else { continue };
        rig.guest().ring(1, 4, 1 << 30 | created.cq_handle);
        for wr_id in 0..100 {
            rig.fake.report(verbs::ProviderEvent::Completion(verbs::Completion {
                wr_id,
                cq: verbs::CqId(created.cq_handle),
                qp: QpId(qp.handle),
                status: WcStatus::Success,
                opcode: verbs::WcOpcode::Send,
                byte_len: u32::MAX,
                imm_or_key: [0xff; 4],
                src_qp: verbs::Qpn(0),
                flags: verbs::WcFlags::all(),
                pkey_index: 0,
                network_hdr_type: 0,
                solicited: true,
            }));
        }
        rig.guest().run();
    }
    rig.check_recovers();
}

#[test]
fn h27_requests_without_end_are_taken_in_bounded_batches() {
    let rig = Rig::new();
    let kernel = rig.kernel();
    let sizes = pvrdma_driver::QpSizes { send_wr: 1024, recv_wr: 1024, send_sge: 1, recv_sge: 1 };
    let qp = rig.driver.create_qp(kernel.pd, RC, (&kernel.cq, &kernel.cq), None, sizes).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    let zero = SendWork::new(0, WrOpcode::RdmaWrite, 0, &[]).operands(&RdmaOperands::new_zeroed());
    for _ in 0..1024 {
        assert!(rig.driver.post_send(&qp, &zero));
    }
    let taken = || rig.fake.with(|state| state.qps[&QpId(qp.handle)].sends.len());
    let mut batches = 0;
    while rig.guest().serve().more {
        batches += 1;
        assert!(taken() <= batches * 200, "one batch takes a bounded number");
    }
    assert_eq!(taken(), 1024);
    assert!(batches > 4);
    rig.check_alive();
}

#[test]
fn h29_broken_device_rings_silence_only_themselves() {
    for head in [0x7ff, 1024, 2048, u32::MAX] {
        let rig = Rig::new();
        let process = rig.process(1);
        let qp = process.connected_qp();
        let (events, notifications) = (rig.driver.events.pages[0], rig.driver.notifications.pages[0]);
        rig.guest().store(events + 12, head);
        rig.guest().store(notifications + 12, head);
        for wr_id in 0..8 {
            rig.driver.arm(&process.cq, false);
            rig.fake.report_async(verbs::AsyncEvent::CommEst(QpId(qp.handle)));
            rig.complete_sends(&qp, [wr_id]);
        }
        assert_eq!(process.drain().len(), 8, "completions go on");
        assert_eq!(rig.guest().run().deadline, None, "the device does not retry for ever");
        assert!(rig.guest().device.counters().broken_rings > 0, "head {head:#x}");
        rig.check_alive();
    }
}

#[test]
fn h33_flood_of_register_accesses_from_all_cpus_does_no_harm() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    std::thread::scope(|scope| {
        for cpu in 0..3u32 {
            let guest = rig.guest();
            scope.spawn(move || {
                for round in 0..3000u32 {
                    guest.ring(cpu, u64::from(round % 3) * 4, round.rotate_left(30));
                    guest.read_register(Register::Err);
                }
            });
        }
        for wr_id in 0..200 {
            rig.complete_sends(&qp, [wr_id]);
            assert_eq!(process.drain().len(), 1);
        }
    });
    rig.check_alive();
}

#[test]
fn h17_foreign_keys_are_the_providers_to_refuse_and_reach_it_unchanged() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let sges = [
        Sge { addr: u64::MAX, length: u32::MAX, lkey: 0 },
        Sge { addr: 0, length: u32::MAX, lkey: u32::MAX },
    ];
    assert!(rig.driver.post_send(&qp, &SendWork::new(1, WrOpcode::Send, 2, &sges)));
    rig.guest().run();
    rig.fake.with(|state| {
        let got: Vec<_> =
            state.qps[&QpId(qp.handle)].sends[0].sges.iter().map(|s| (s.addr, s.length, s.lkey)).collect();
        assert_eq!(got, [(u64::MAX, u32::MAX, 0), (0, u32::MAX, u32::MAX)]);
    });
    rig.check_alive();
}
