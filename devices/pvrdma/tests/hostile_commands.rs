//! A hostile guest: every input ends in an error that stays with its cause, and the device works on.

mod common;

use common::{Change, RC, Rig, SMALL, machine};
use pci::Device;
use pvrdma::test_utils::{FakeProvider, Guest, MachineConfig};
use pvrdma_driver::{Driver, Error, Platform};
use pvrdma_spec::attr::QpAttr;
use pvrdma_spec::command::{
    CreateBind, CreateCq, CreateCqResponse, CreateMr, CreateQp, CreateSrq, HandleRequest, HandleResponse,
    Opcode,
};
use pvrdma_spec::register::{Control, Register, Vector};
use pvrdma_spec::shared::{RingPageInfo, SharedRegion};
use pvrdma_spec::{PAGE_SIZE, version};
use verbs::QpState;
use zerocopy::{FromZeros, IntoBytes};

/// An address that is not RAM in a machine of the usual size: where its doorbell pages might be.
const MMIO: u64 = 0xfe00_0000;

/// Writes a shared region's address.
fn hand_over(guest: &Guest, address: u64) {
    guest.write_register(Register::DsrLow, address as u32);
    guest.write_register(Register::DsrHigh, (address >> 32) as u32);
}

/// A request at every moment at which none may be executed.
#[test]
fn h1_request_without_region_is_refused() {
    let (guest, fake) = machine(MachineConfig::default(), FakeProvider::LIMITS);
    let request = || {
        guest.write_register(Register::Request, 0);
        assert_ne!(guest.read_register(Register::Err), 0);
        assert_eq!(guest.take_interrupts(Vector::Response), 0);
    };
    request();
    hand_over(&guest, MMIO);
    request();
    let driver = Driver::probe(guest.clone(), version::QP_HANDLE).unwrap();
    driver.control(Control::Reset as u32).unwrap();
    request();
    let rig = Rig { driver: Driver::probe(guest.clone(), version::QP_HANDLE).unwrap(), fake };
    guest.device.set_bus_master(false);
    request();
    guest.device.set_bus_master(true);
    request();
    let rig = Rig { driver: Driver::probe(guest.clone(), version::QP_HANDLE).unwrap(), fake: rig.fake };
    rig.driver.query_port().unwrap();
    hand_over(&guest, MMIO);
    request();
    rig.check_recovers();
}

#[test]
fn h1_request_before_activation_is_refused() {
    let rig = Rig::new();
    hand_over(rig.guest(), rig.driver.region);
    assert_eq!(rig.guest().read_register(Register::Err), 0);
    assert!(matches!(rig.driver.query_port(), Err(Error::Device(_))));
    rig.driver.control(Control::Activate as u32).unwrap();
    rig.driver.query_port().unwrap();
    rig.check_alive();
}

#[test]
fn h2_region_anywhere_but_in_ram_is_refused() {
    let rig = Rig::new();
    let end = 16 << 20;
    for address in [MMIO, end, end - 8, end - 272, rig.driver.region + 4, 1 << 52, u64::MAX, u64::MAX - 7, 1]
    {
        hand_over(rig.guest(), address);
        assert_ne!(rig.guest().read_register(Register::Err), 0, "{address:#x}");
        assert!(rig.driver.control(Control::Activate as u32).is_err());
    }
    rig.check_recovers();
}

/// Changes the shared region of a bound driver, hands it over again and says whether it was taken.
fn taken_after(rig: &Rig, change: impl FnOnce(&mut SharedRegion)) -> bool {
    let mut region = SharedRegion::new_zeroed();
    rig.guest().read(rig.driver.region, region.as_mut_bytes());
    change(&mut region);
    rig.guest().write(rig.driver.region, region.as_bytes());
    hand_over(rig.guest(), rig.driver.region);
    let taken = rig.guest().read_register(Register::Err) == 0;
    assert_eq!(rig.driver.control(Control::Activate as u32).is_ok(), taken);
    taken
}

#[test]
fn h3_ring_sizes_are_bounded() {
    for num_pages in [0, 1, 2, 3, 4, 5, 513, 1 << 31, u32::MAX] {
        let rig = Rig::new();
        let good = (2..=4).contains(&num_pages);
        assert_eq!(
            taken_after(&rig, |region| region.async_ring_pages.num_pages = num_pages),
            good,
            "{num_pages}"
        );
        let rig = Rig::new();
        assert_eq!(
            taken_after(&rig, |region| region.cq_ring_pages.num_pages = num_pages),
            good,
            "{num_pages}"
        );
        rig.check_recovers();
    }
}

#[test]
fn h4_page_directories_that_lead_nowhere_are_refused() {
    let rig = Rig::new();
    let directory = rig.buffer(PAGE_SIZE).dir.root;
    for pdir_dma in [MMIO, 16 << 20, 1, u64::MAX, 1 << 60, rig.driver.region] {
        let info = RingPageInfo { num_pages: 4, reserved: 0, pdir_dma };
        assert!(!taken_after(&rig, |region| region.cq_ring_pages = info), "{pdir_dma:#x}");
    }
    // A directory of itself is RAM all the way down: absurd, but only the guest's own ring suffers.
    rig.fill(directory, directory);
    let info = RingPageInfo { num_pages: 4, reserved: 0, pdir_dma: directory };
    assert!(taken_after(&rig, |region| region.cq_ring_pages = info));
    rig.check_recovers();
}

#[test]
fn h4_entries_that_turn_bad_halfway_leave_nothing_behind() {
    let rig = Rig::new();
    let process = rig.process(1);
    let before = rig.guest().device.objects();
    let buffer = rig.buffer(8 * PAGE_SIZE);
    for (entry, bad) in [(7, MMIO), (3, 0x1001), (0, u64::MAX), (5, 1 << 56), (7, 16 << 20)] {
        let at = buffer.dir.tables[0] + entry * 8;
        rig.guest().write(at, &bad.to_le_bytes());
        assert!(rig.driver.register(process.pd, 1, 0, 8 * PAGE_SIZE, &buffer.dir).is_err());
        let mut request = CreateCq::new_zeroed();
        request.ctx_handle = process.context.handle;
        (request.cqe, request.nchunks, request.pdir_dma) = (256, 8, buffer.dir.root);
        let created = rig.driver.ask::<_, CreateCqResponse>(Opcode::CreateCq, &request);
        assert_eq!(created.is_err(), entry < 5, "a queue needs five pages");
        if let Ok(created) = created {
            let mut request = HandleRequest::new_zeroed();
            request.handle = created.cq_handle;
            rig.driver.tell(Opcode::DestroyCq, &request).unwrap();
        }
        rig.guest().write(at, &buffer.pages[entry as usize].to_le_bytes());
    }
    assert_eq!(rig.guest().device.objects(), before);
    rig.check_alive();
}

#[test]
fn h5_completion_queues_of_impossible_sizes_are_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let buffer = rig.buffer(8 * PAGE_SIZE);
    let create = |cqe, nchunks| {
        let mut request = CreateCq::new_zeroed();
        request.ctx_handle = process.context.handle;
        (request.cqe, request.nchunks, request.pdir_dma) = (cqe, nchunks, buffer.dir.root);
        rig.driver.ask::<_, CreateCqResponse>(Opcode::CreateCq, &request)
    };
    for cqe in [0, 3, 100, 8192, 1 << 31, u32::MAX] {
        assert!(create(cqe, 8).is_err(), "{cqe} entries");
    }
    for nchunks in [0, 1, 2, u32::MAX, 262_145] {
        assert!(create(128, nchunks).is_err(), "{nchunks} pages");
    }
    assert!(create(128, 3).is_ok());
    rig.check_alive();
}

#[test]
fn h6_queue_pairs_of_impossible_sizes_are_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let cqs = (&process.cq, &process.cq);
    let create = |change: &dyn Fn(&mut CreateQp)| {
        let qp = rig.driver.create_qp_with(process.pd, RC, cqs, None, SMALL, change)?;
        rig.driver.destroy_qp(qp, &[])
    };
    create(&|_| {}).unwrap();
    let before = rig.guest().device.objects();
    let cases: [(&str, Change<CreateQp>); 22] = [
        ("send chunks past the total", &|r| r.send_chunks = r.total_chunks + 1),
        ("all chunks for sends", &|r| r.send_chunks = r.total_chunks),
        ("no send chunks", &|r| r.send_chunks = 0),
        ("most send chunks", &|r| r.send_chunks = u16::MAX),
        ("no chunks", &|r| r.total_chunks = 0),
        ("one chunk", &|r| r.total_chunks = 1),
        ("ring larger than its chunks", &|r| r.max_send_wr = 1024),
        ("product past 32 bits", &|r| (r.max_send_wr, r.max_send_sge) = (1024, 1 << 24)),
        ("too many sends", &|r| r.max_send_wr = 1 << 31),
        ("all sends", &|r| r.max_send_wr = u32::MAX),
        ("no sends", &|r| r.max_send_wr = 0),
        ("no receives", &|r| r.max_recv_wr = 0),
        ("all receives", &|r| r.max_recv_wr = u32::MAX),
        ("no elements", &|r| r.max_send_sge = 0),
        ("2^31 elements", &|r| r.max_send_sge = 1 << 31),
        ("all elements", &|r| r.max_recv_sge = u32::MAX),
        ("type 0", &|r| r.qp_type = 0),
        ("type 3", &|r| r.qp_type = 3),
        ("type 255", &|r| r.qp_type = 255),
        ("shared queue that is not there", &|r| (r.is_srq, r.srq_handle) = (1, 7)),
        ("completion queue that is not there", &|r| r.send_cq_handle = 31),
        ("completion queue past the table", &|r| r.recv_cq_handle = u32::MAX),
    ];
    for (name, change) in cases {
        assert!(create(change).is_err(), "{name}");
        assert_eq!(rig.guest().device.objects(), before, "{name}");
    }
    rig.check_alive();
}

#[test]
fn h6_queues_of_another_context_are_refused() {
    let rig = Rig::new();
    let (process, other) = (rig.process(1), rig.process(2));
    let srq = rig.driver.create_srq(other.pd, 4, 1).unwrap();
    assert!(rig.driver.create_qp(process.pd, RC, (&other.cq, &process.cq), None, SMALL).is_err());
    assert!(rig.driver.create_qp(process.pd, RC, (&process.cq, &process.cq), Some(&srq), SMALL).is_err());
    rig.check_alive();
}

#[test]
fn h7_regions_whose_numbers_disagree_are_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let buffer = rig.buffer(4 * PAGE_SIZE);
    let create = |change: &dyn Fn(&mut CreateMr)| {
        let mut request = CreateMr::new_zeroed();
        (request.pd_handle, request.pdir_dma) = (process.pd.handle, buffer.dir.root);
        (request.start, request.length, request.nchunks, request.access_flags) = (0x1000, 0x4000, 4, 1);
        change(&mut request);
        rig.driver.create_mr(&request).and_then(|mr| rig.driver.deregister(mr))
    };
    create(&|_| {}).unwrap();
    create(&|r| r.access_flags = 0xfff0_000f).unwrap();
    // A right to bind memory windows, of which there are none.
    create(&|r| r.access_flags = 1 | 1 << 4).unwrap();
    let cases: [(&str, Change<CreateMr>); 14] = [
        ("pages too few", &|r| r.nchunks = 3),
        ("pages too many", &|r| r.nchunks = 5),
        ("pages too few for the offset", &|r| r.start = 0x1001),
        ("no pages", &|r| r.nchunks = 0),
        ("all pages", &|r| r.nchunks = u32::MAX),
        ("no bytes", &|r| r.length = 0),
        ("no bytes and no pages", &|r| (r.length, r.nchunks) = (0, 0)),
        ("all bytes", &|r| r.length = u64::MAX),
        ("wraps", &|r| (r.start, r.length, r.nchunks) = (u64::MAX - 0xfff, 0x2000, 2)),
        ("just wraps", &|r| (r.start, r.length, r.nchunks) = (u64::MAX - 0xfff, 0x1001, 2)),
        ("page count that truncates", &|r| (r.length, r.nchunks) = (0x1000_0000_0000 + 0x4000, 4)),
        ("access of all bits", &|r| r.access_flags = u32::MAX),
        ("both kinds at once", &|r| r.flags = 3),
        ("flags of no meaning", &|r| r.flags = 0x8000_0000),
    ];
    for (name, change) in cases {
        assert!(create(change).is_err(), "{name}");
    }
    assert_eq!(rig.guest().device.objects().memory_regions, 0);
    rig.check_alive();
}

#[test]
fn h8_slots_may_overlap_the_region_and_answers_stay_inside_them() {
    let rig = Rig::new();
    let region = rig.driver.region;
    assert!(taken_after(&rig, |shared| (shared.cmd_slot_dma, shared.resp_slot_dma) = (region, region + 8)));
    for number in 0..64u32 {
        let mut request = [0xff; 184];
        request[8..12].copy_from_slice(&number.to_le_bytes());
        rig.guest().write(region, &request);
        rig.guest().write_register(Register::Request, 0);
    }
    rig.guest().take_interrupts(Vector::Response);
    for slot in [MMIO, 16 << 20, (16 << 20) - 100, u64::MAX - 10] {
        assert!(!taken_after(&rig, |shared| shared.cmd_slot_dma = slot), "{slot:#x}");
        assert!(!taken_after(&rig, |shared| (shared.cmd_slot_dma, shared.resp_slot_dma) = (region, slot)));
    }
    rig.check_recovers();
}

/// H12, H13
#[test]
fn h12_handles_that_name_nothing_are_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    let _others: Vec<_> = (0..3).map(|_| process.try_qp(None).unwrap()).collect();
    let before = rig.guest().device.objects();
    let opcodes = [
        Opcode::DestroyPd,
        Opcode::DestroyMr,
        Opcode::DestroyCq,
        Opcode::DestroyQp,
        Opcode::DestroyUc,
        Opcode::DestroySrq,
        Opcode::QuerySrq,
    ];
    for opcode in opcodes {
        for handle in [0, 16, 32, 63, 64, 128, 1024, 1 << 24, 1 << 31, u32::MAX] {
            let exists = opcode == Opcode::DestroyCq && handle == process.cq.handle;
            let mut request = HandleRequest::new_zeroed();
            request.handle = handle;
            let refused = rig.driver.ask::<_, HandleResponse>(opcode, &request);
            assert!(matches!(refused, Err(Error::Device(_))), "{opcode:?} of {handle}");
            assert!(!exists || refused == Err(Error::Device(16)), "it is in use");
        }
    }
    for handle in [0, 64, u32::MAX] {
        let mut stranger =
            rig.driver.create_qp(process.pd, RC, (&process.cq, &process.cq), None, SMALL).unwrap();
        let real = std::mem::replace(&mut stranger.handle, handle);
        assert!(rig.driver.query_qp(&stranger).is_err());
        assert_eq!(rig.move_to(&stranger, QpState::Init), Err(Error::Response(2)));
        stranger.handle = real;
        rig.driver.destroy_qp(stranger, &[]).unwrap();
    }
    assert_eq!(rig.guest().device.objects(), before);
    rig.driver.query_qp(&qp).unwrap();
    rig.check_alive();
}

#[test]
fn h13_objects_go_once_and_not_while_they_are_used() {
    let rig = Rig::new();
    let process = rig.process(1);
    let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
    let qp = process.try_qp(Some(&srq)).unwrap();
    let mr = rig.driver.register(process.pd, 1, 0, 1, &process.cq.buffer.dir).unwrap();
    let destroy = |opcode, handle| {
        let mut request = HandleRequest::new_zeroed();
        request.handle = handle;
        rig.driver.tell(opcode, &request)
    };
    let busy = Err(Error::Device(16));
    assert_eq!(destroy(Opcode::DestroyPd, process.pd.handle), busy);
    assert_eq!(destroy(Opcode::DestroyCq, process.cq.handle), busy);
    assert_eq!(destroy(Opcode::DestroySrq, srq.handle), busy);
    for (opcode, handle) in [
        (Opcode::DestroyQp, qp.handle),
        (Opcode::DestroySrq, srq.handle),
        (Opcode::DestroyMr, mr.handle),
        (Opcode::DestroyCq, process.cq.handle),
        (Opcode::DestroyPd, process.pd.handle),
        (Opcode::DestroyUc, process.context.handle),
    ] {
        assert_eq!(destroy(opcode, handle), Ok(()), "{opcode:?}");
        assert_eq!(destroy(opcode, handle), Err(Error::Device(2)), "{opcode:?} again");
    }
    rig.check_alive();
}

#[test]
fn h19_impossible_gid_rows_and_types_are_refused() {
    let rig = Rig::new();
    let bind = |change: &dyn Fn(&mut CreateBind)| {
        let mut request = CreateBind::new_zeroed();
        (request.new_gid, request.gid_type) = ([3; 16], 2);
        change(&mut request);
        rig.driver.tell(Opcode::CreateBind, &request)
    };
    for index in [16, 255, 256, u32::MAX] {
        assert!(bind(&|request| request.index = index).is_err(), "row {index}");
    }
    for gid_type in [0, 1, 3, 255] {
        assert!(bind(&|request| request.gid_type = gid_type).is_err(), "type {gid_type}");
    }
    assert!(bind(&|request| request.new_gid = [0; 16]).is_err());
    bind(&|request| request.index = 4).unwrap();
    bind(&|request| request.index = 5).unwrap();
    rig.driver.unbind(4, [3; 16]).unwrap();
    rig.fake.with(|state| assert_eq!(state.gids.keys().copied().collect::<Vec<_>>(), [5]));
    rig.check_alive();
}

#[test]
fn h22_attributes_out_of_range_are_refused_and_change_nothing() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    let cases: [(&str, u32, Change<QpAttr>); 17] = [
        ("mask of all bits", u32::MAX, &|_| {}),
        ("mask of an unknown bit", 1 << 21, &|_| {}),
        ("state 7", 1, &|a| a.qp_state = 7),
        ("state 255", 1, &|a| a.qp_state = 255),
        ("current state", 1 << 1, &|a| a.cur_qp_state = u32::MAX),
        ("MTU 0", 1 << 8, &|a| a.path_mtu = 0),
        ("MTU 255", 1 << 8, &|a| a.path_mtu = 255),
        ("peer number", 1 << 20, &|a| a.dest_qp_num = 1 << 24),
        ("P_Key row", 1 << 4, &|a| a.pkey_index = 1),
        ("port 2", 1 << 5, &|a| a.port_num = 2),
        ("time-out", 1 << 9, &|a| a.timeout = 32),
        ("retries", 1 << 10, &|a| a.retry_cnt = 8),
        ("RNR retries", 1 << 11, &|a| a.rnr_retry = 8),
        ("RNR timer", 1 << 15, &|a| a.min_rnr_timer = 32),
        ("reads as requester", 1 << 13, &|a| a.max_rd_atomic = 255),
        ("reads as responder", 1 << 17, &|a| a.max_dest_rd_atomic = 17),
        ("path without route", 1 << 7, &|a| a.ah_attr.port_num = 1),
    ];
    for (name, mask, change) in cases {
        let mut attrs = QpAttr::new_zeroed();
        change(&mut attrs);
        assert_eq!(rig.driver.modify_qp(&qp, mask, &attrs), Err(Error::Response(22)), "{name}");
    }
    let mut attrs = QpAttr::new_zeroed();
    (attrs.ah_attr.ah_flags, attrs.ah_attr.port_num, attrs.ah_attr.grh.sgid_index) = (1, 1, 16);
    assert_eq!(rig.driver.modify_qp(&qp, 1 << 7, &attrs), Err(Error::Response(22)));
    assert_eq!(rig.driver.query_qp(&qp).unwrap().qp_state, 0);
    rig.check_alive();
}

/// Page lists cost host memory, and regions over the same pages cost it again.
#[test]
fn h23_page_lists_are_bounded_in_total() {
    let mut config = MachineConfig::default();
    config.device.page_list_budget = 3 << 20;
    let rig = Rig::with(config, FakeProvider::LIMITS, version::QP_HANDLE);
    let process = rig.process(1);
    let (page, table) = (rig.buffer(PAGE_SIZE), rig.buffer(PAGE_SIZE));
    rig.fill(table.pages[0], page.pages[0]);
    rig.fill(page.dir.root, table.pages[0]);
    let register = || rig.driver.register(process.pd, 1, 0, 1 << 30, &page.dir);
    let regions = [register().unwrap(), register().unwrap()];
    assert_eq!(register().map(|_| ()), Err(Error::Device(12)));
    assert!(rig.driver.register(process.pd, 1, 0, 1, &table.dir).is_ok(), "small ones fit");
    for region in regions {
        rig.driver.deregister(region).unwrap();
        rig.driver.deregister(register().unwrap()).unwrap();
    }
    rig.check_alive();
}

#[test]
fn h25_control_values_out_of_order_are_harmless() {
    let rig = Rig::new();
    for value in [3, 4, 255, u32::MAX] {
        assert!(rig.driver.control(value).is_err());
        rig.driver.query_port().unwrap();
    }
    rig.driver.control(Control::Activate as u32).unwrap();
    rig.driver.control(Control::Activate as u32).unwrap();
    rig.check_alive();
    rig.driver.control(Control::Reset as u32).unwrap();
    rig.driver.control(Control::Reset as u32).unwrap();
    for value in [Control::Activate, Control::Unquiesce] {
        assert!(rig.driver.control(value as u32).is_err(), "there is no region");
    }
    rig.check_recovers();
}

#[test]
fn h25_requests_of_other_values_do_nothing() {
    let rig = Rig::new();
    for value in [1, 2, u32::MAX] {
        rig.guest().write_register(Register::Request, value);
        assert_ne!(rig.guest().read_register(Register::Err), 0);
        assert_eq!(rig.guest().take_interrupts(Vector::Response), 0);
    }
    rig.check_alive();
}

/// Every way in which the provider can refuse a creation leaves nothing behind.
#[test]
fn h28_failed_creations_leave_nothing_behind() {
    let rig = Rig::new();
    let process = rig.process(1);
    let srq = rig.driver.create_srq(process.pd, 4, 1).unwrap();
    let buffer = rig.buffer(PAGE_SIZE);
    let before = (rig.guest().device.objects(), rig.guest().registered_doorbells(), rig.guest().free_pages());
    for error in [verbs::Error::Exhausted, verbs::Error::Host(5), verbs::Error::Unsupported("test")] {
        let fail = || rig.fake.with(|state| state.fail_next = Some(error));
        fail();
        assert!(rig.driver.create_pd(process.context).is_err());
        fail();
        assert!(rig.driver.create_cq(process.context, 64).is_err());
        fail();
        assert!(rig.driver.create_srq(process.pd, 64, 1).is_err());
        fail();
        assert!(process.try_qp(None).is_err());
        fail();
        assert!(process.try_qp(Some(&srq)).is_err());
        fail();
        assert!(rig.driver.register(process.pd, 1, 0, 1, &buffer.dir).is_err());
        fail();
        assert!(rig.driver.bind(0, [1; 16]).is_err());
        let after =
            (rig.guest().device.objects(), rig.guest().registered_doorbells(), rig.guest().free_pages());
        assert_eq!(after, before, "{error}");
    }
    rig.driver.destroy_srq(srq).unwrap();
    process.close();
    rig.check_alive();
}

#[test]
fn h28_shared_receive_queues_of_impossible_sizes_are_refused() {
    let rig = Rig::new();
    let process = rig.process(1);
    let buffer = rig.buffer(4 * PAGE_SIZE);
    let create = |change: &dyn Fn(&mut CreateSrq)| {
        let mut request = CreateSrq::new_zeroed();
        (request.pd_handle, request.pdir_dma, request.nchunks) = (process.pd.handle, buffer.dir.root, 2);
        (request.attrs.max_wr, request.attrs.max_sge) = (8, 1);
        change(&mut request);
        rig.driver.ask::<_, HandleResponse>(Opcode::CreateSrq, &request)
    };
    let changes: [&dyn Fn(&mut CreateSrq); 9] = [
        &|r| r.attrs.max_wr = 0,
        &|r| r.attrs.max_wr = u32::MAX,
        &|r| r.attrs.max_sge = 0,
        &|r| r.attrs.max_sge = 1 << 31,
        &|r| r.attrs.srq_limit = 9,
        &|r| r.nchunks = 1,
        &|r| r.nchunks = u32::MAX,
        &|r| r.srq_type = 1,
        &|r| r.pd_handle = 0,
    ];
    for change in changes {
        assert!(create(change).is_err());
    }
    create(&|_| {}).unwrap();
    rig.check_alive();
}
