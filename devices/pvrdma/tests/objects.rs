//! Commands that create, change and destroy objects.

mod common;

use std::collections::BTreeSet;

use common::{RC, Rig, SMALL, UD};
use pvrdma::test_utils::{FakeProvider, MachineConfig};
use pvrdma_driver::{Context, Error, QpSizes};
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::attr::{AhAttr, QpAttr};
use verbs::{Access, Gid, MrId, MrKind, Mtu, Owner, QpId, QpState, Segments};
use zerocopy::FromZeros;

/// Where each byte of a region lies, as the provider was told.
fn segments(rig: &Rig, mr: u32, offset: u64, len: u32) -> Vec<(u64, u32)> {
    rig.fake.with(|state| {
        let MrKind::Pages(pages) = &state.mrs[&MrId(mr)].kind else { panic!("region has pages") };
        let mut out = Segments::new();
        assert!(pages.resolve(offset, len, &mut out));
        out.iter().map(|segment| (segment.gpa, segment.len)).collect()
    })
}

/// C9
#[test]
fn c9_gids_are_bound_at_any_row_in_any_order() {
    let rig = Rig::new();
    let len = rig.driver.caps().gid_tbl_len;
    let gid = |index: u32| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, index as u8];
    for index in (0..len).rev() {
        rig.driver.bind(index, gid(index)).unwrap();
    }
    rig.fake.with(|state| {
        assert_eq!(state.gids.len() as u32, len);
        assert_eq!(state.gids[&0], Gid(gid(0)));
    });
    rig.driver.bind(len - 1, gid(0)).unwrap();
    rig.driver.unbind(0, gid(5)).unwrap();
    rig.driver.unbind(len - 1, gid(0)).unwrap();
    rig.driver.unbind(len - 1, gid(0)).unwrap();
    assert_eq!(rig.fake.with(|state| state.gids.get(&0).copied()), Some(Gid(gid(0))), "another row's unbind");
    assert_eq!(rig.fake.with(|state| state.gids.len() as u32), len - 1);
    for index in [len, 255, 256, u32::MAX] {
        assert!(rig.driver.bind(index, gid(9)).is_err());
        assert!(rig.driver.unbind(index, gid(9)).is_err());
    }
    rig.check_alive();
}

/// C13, C14
#[test]
fn c13_regions_of_every_shape_resolve_to_their_bytes() {
    let rig = Rig::new();
    let process = rig.process(1);
    let buffer = rig.buffer(514 * PAGE_SIZE);
    for (offset, length) in [
        (0, 1),
        (0, 4096),
        (0, 4097),
        (1, 4096),
        (4095, 2),
        (4095, 1),
        (77, 513 * PAGE_SIZE),
        (0, 514 * PAGE_SIZE),
    ] {
        let start = 0x7fff_0000_0000 + offset;
        let mr = rig.driver.register(process.pd, 7, start, length, &buffer.dir).unwrap();
        let init = rig.fake.with(|state| state.mrs[&MrId(mr.handle)].clone());
        assert_eq!((init.iova, init.length), (start, length));
        assert_eq!(init.access, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
        for at in [0, length / 2, length - 1] {
            assert_eq!(segments(&rig, mr.handle, offset + at, 1), [(buffer.address(offset + at), 1)]);
        }
        rig.driver.deregister(mr).unwrap();
    }
    assert_eq!(rig.guest().device.objects().memory_regions, 0);
}

#[test]
fn c13_region_of_a_gigabyte_is_the_largest() {
    let rig = Rig::new();
    let process = rig.process(1);
    let page = rig.buffer(PAGE_SIZE);
    let table = rig.buffer(PAGE_SIZE);
    rig.fill(table.pages[0], page.pages[0]);
    rig.fill(page.dir.root, table.pages[0]);
    let gigabyte = 1 << 30;
    let mr = rig.driver.register(process.pd, 1, PAGE_SIZE, gigabyte, &page.dir).unwrap();
    assert_eq!(segments(&rig, mr.handle, gigabyte - 1, 1), [(page.pages[0] + 4095, 1)]);
    assert_eq!(rig.guest().device.objects().page_list_bytes, (1 << 20) + ring_bytes(&process));
    rig.driver.deregister(mr).unwrap();
    assert!(rig.driver.register(process.pd, 1, PAGE_SIZE, gigabyte + 1, &page.dir).is_err());
    assert!(rig.driver.register(process.pd, 1, PAGE_SIZE + 1, gigabyte, &page.dir).is_err());
    rig.check_alive();
}

fn ring_bytes(process: &common::Process<'_>) -> usize {
    process.cq.buffer.pages.len() * 4
}

/// C15
#[test]
fn c15_optional_access_bits_are_ignored_and_unsupported_ones_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let buffer = rig.buffer(PAGE_SIZE);
    // Windows can be allowed, which does no harm: there are none to bind.
    let mr = rig.driver.register(process.pd, 1 | 1 << 4 | 1 << 20 | 1 << 29, 0, 1, &buffer.dir).unwrap();
    assert_eq!(rig.fake.with(|state| state.mrs[&MrId(mr.handle)].access), Access::LOCAL_WRITE);
    for bit in [5, 6] {
        assert!(rig.driver.register(process.pd, 1 | 1 << bit, 0, 1, &buffer.dir).is_err(), "bit {bit}");
    }
}

#[test]
fn regions_of_the_kernel_are_for_the_kernel() {
    let rig = Rig::new();
    let (process, kernel) = (rig.process(1), rig.kernel());
    assert!(rig.driver.register_all(process.pd, 1).is_err());
    assert!(rig.driver.alloc_fast_reg(process.pd, 16).is_err());
    rig.driver.register_all(kernel.pd, 1).unwrap();
    let mr = rig.driver.alloc_fast_reg(kernel.pd, 128).unwrap();
    assert_eq!(
        rig.fake.with(|state| state.mrs[&MrId(mr.handle)].kind.clone()),
        MrKind::FastReg { max_pages: 128 }
    );
    assert!(rig.driver.alloc_fast_reg(kernel.pd, 129).is_err());
    assert!(rig.driver.alloc_fast_reg(kernel.pd, 0).is_err());
}

/// C19, C20
#[test]
fn c20_attributes_arrive_as_set_and_come_back() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    let mut attrs = QpAttr::new_zeroed();
    attrs.qp_state = 2;
    attrs.path_mtu = 3;
    attrs.dest_qp_num = 0xab_cdef;
    attrs.rq_psn = 0xff12_3456;
    attrs.max_dest_rd_atomic = 16;
    attrs.min_rnr_timer = 12;
    attrs.ah_attr.grh.dgid = [9; 16];
    attrs.ah_attr.grh.sgid_index = 3;
    attrs.ah_attr.grh.hop_limit = 64;
    attrs.ah_attr.grh.traffic_class = 0x20;
    attrs.ah_attr.grh.flow_label = 0xf_fffe;
    attrs.ah_attr.sl = 5;
    attrs.ah_attr.ah_flags = 1;
    attrs.ah_attr.port_num = 1;
    attrs.ah_attr.dmac = [2, 0, 0, 0, 0, 9];
    let mask = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
    rig.driver.modify_qp(&qp, mask, &attrs).unwrap();
    rig.fake.with(|state| {
        let attr = state.qps[&QpId(qp.handle)].attr;
        assert_eq!((attr.state, attr.path_mtu, attr.dest_qpn.0), (QpState::Rtr, Mtu::B1024, 0xab_cdef));
        assert_eq!((attr.rq_psn, attr.av.sgid_index, attr.av.sl), (0x12_3456, 3, 5));
    });
    let read = rig.driver.query_qp(&qp).unwrap();
    let expected_path = AhAttr { reserved: 0, ..attrs.ah_attr };
    assert_eq!((read.qp_state, read.cur_qp_state, read.path_mtu), (2, 2, 3));
    assert_eq!((read.rq_psn, read.min_rnr_timer, read.max_dest_rd_atomic), (0x12_3456, 12, 16));
    assert_eq!(read.ah_attr, expected_path);
    assert_eq!(read.cap.max_send_wr, SMALL.send_wr);
    assert_eq!((read.cap.max_recv_wr, read.cap.max_inline_data), (SMALL.recv_wr, 0));
}

#[test]
fn c19_refused_transition_is_an_error_in_the_response() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    rig.fake.with(|state| state.fail_next = Some(verbs::Error::Transition));
    assert_eq!(rig.move_to(&qp, QpState::Rts), Err(Error::Response(22)));
    assert_eq!(rig.driver.query_qp(&qp).unwrap().qp_state, 0);
}

/// C43
#[test]
fn c43_every_limit_is_reached_exactly_and_left_again() {
    let rig =
        Rig::with(MachineConfig { ram: 64 << 20, ..MachineConfig::default() }, FakeProvider::LIMITS, 20);
    let (driver, caps) = (&rig.driver, *rig.driver.caps());
    fn fill<T>(max: u32, mut create: impl FnMut() -> Result<T, Error>) -> Vec<T> {
        let all: Vec<T> = (0..max).map(|_| create().expect("limit is not reached yet")).collect();
        assert!(matches!(create(), Err(Error::Device(12))), "limit of {max} is reached");
        all
    }
    for _ in 0..2 {
        let pds = fill(caps.max_pd, || driver.create_pd(Context::KERNEL));
        let cqs = fill(caps.max_cq, || driver.create_cq(Context::KERNEL, 1));
        let buffer = rig.buffer(PAGE_SIZE);
        let mrs = fill(caps.max_mr, || driver.register(pds[0], 1, 0, 1, &buffer.dir));
        let srqs = fill(caps.max_srq, || driver.create_srq(pds[0], 1, 1));
        let sizes = QpSizes { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1 };
        let gsi = driver.create_qp(pds[0], common::GSI, (&cqs[0], &cqs[0]), None, sizes).unwrap();
        let qps = fill(caps.max_qp - 1, || driver.create_qp(pds[0], UD, (&cqs[0], &cqs[1]), None, sizes));
        assert!(qps.iter().all(|qp| qp.handle < caps.max_qp && qp.handle != 0));
        assert!(cqs.iter().all(|cq| cq.handle < caps.max_cq));
        assert!(srqs.iter().all(|srq| srq.handle < caps.max_srq));
        assert!(pds.iter().all(|pd| pd.handle < 1 << 24));
        for qp in qps.into_iter().chain([gsi]) {
            driver.destroy_qp(qp, &[]).unwrap();
        }
        srqs.into_iter().for_each(|srq| driver.destroy_srq(srq).unwrap());
        mrs.into_iter().for_each(|mr| driver.deregister(mr).unwrap());
        cqs.into_iter().for_each(|cq| driver.destroy_cq(cq).unwrap());
        pds.into_iter().for_each(|pd| driver.destroy_pd(pd).unwrap());
        buffer.free(rig.guest());
        assert_eq!(rig.guest().device.objects(), pvrdma::ObjectCounts::default());
    }
    rig.check_alive();
}

#[test]
fn c43_every_doorbell_page_but_the_kernels_can_have_a_context() {
    let rig = Rig::new();
    let pages = rig.driver.caps().max_uar;
    let contexts: Vec<_> = (1..pages).map(|page| rig.driver.open(page).unwrap()).collect();
    assert!(contexts.iter().all(|context| context.handle != 0));
    assert!(rig.driver.open(1).is_err(), "the page has an owner");
    contexts.into_iter().for_each(|context| rig.driver.close(context).unwrap());
    for page in [0, pages, u32::MAX] {
        assert!(rig.driver.open(page).is_err(), "page {page}");
    }
    rig.check_alive();
}

/// C44
#[test]
fn c44_closing_a_context_reaps_what_the_guest_lost_track_of() {
    let rig = Rig::new();
    let kernel = rig.kernel();
    let before = rig.guest().device.objects();
    for _ in 0..1000 {
        let process = rig.process(7);
        let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
        let qp = process.try_qp(Some(&srq)).unwrap();
        let other = process.connected_qp();
        let mr = rig.driver.register(process.pd, 1, 0, 1, &process.cq.buffer.dir).unwrap();
        assert_ne!(mr.lkey, 0);
        rig.driver.close(process.context).unwrap();
        assert_eq!(rig.guest().device.objects(), before);
        for buffer in [process.cq.buffer, srq.buffer, qp.buffer, other.buffer] {
            buffer.free(rig.guest());
        }
    }
    rig.fake.with(|state| assert_eq!((state.qps.len(), state.mrs.len(), state.pds.len()), (0, 0, 1)));
    kernel.close();
    rig.check_alive();
}

/// C45
#[test]
fn c45_handles_are_not_reused_soon() {
    let rig = Rig::new();
    let process = rig.process(1);
    let mut seen = BTreeSet::new();
    for _ in 1..rig.driver.caps().max_qp {
        let qp = process.try_qp(None).unwrap();
        assert!(seen.insert(qp.handle), "all others come first");
        assert_ne!(qp.handle, 0, "user space takes 0 for none");
        assert!(qp.qpn > 1);
        rig.driver.destroy_qp(qp, &[]).unwrap();
    }
}

/// C34
#[test]
fn c34_limit_is_set_queried_and_spent() {
    let rig = Rig::new();
    let process = rig.process(1);
    let srq = rig.driver.create_srq(process.pd, 8, 2).unwrap();
    rig.driver.set_srq_limit(&srq, 3).unwrap();
    let attr = rig.driver.query_srq(&srq).unwrap();
    assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (8, 2, 3));
    assert!(rig.driver.set_srq_limit(&srq, 9).is_err());
    rig.fake.report_async(verbs::AsyncEvent::SrqLimitReached(verbs::SrqId(srq.handle)));
    rig.guest().run();
    let event = rig.driver.next_event().unwrap();
    assert_eq!((event.kind, event.info), (15, srq.handle));
}

#[test]
fn queue_pair_is_created_as_asked_and_on_whose_behalf() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = rig.driver.create_qp(process.pd, RC, (&process.cq, &process.cq), None, SMALL).unwrap();
    rig.fake.with(|state| {
        let init = state.qps[&QpId(qp.handle)].init;
        assert_eq!((init.owner, init.pd.0), (Owner::User, process.pd.handle));
        assert_eq!((init.cap.max_send_wr, init.cap.max_recv_wr), (4, 8));
        assert_eq!((init.cap.max_send_sge, init.cap.max_recv_sge), (2, 1));
        assert_eq!(init.qpn, None);
    });
}
