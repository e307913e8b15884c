//! Bringing the device up and down: registers, shared region, versions, interrupts.

mod common;

use common::{RC, Rig, SMALL, machine};
use device_model::net::MacAddr;
use pci::{BarKind, Device};
use pvrdma::test_utils::{FakeProvider, Machine, MachineConfig};
use pvrdma::{Config, ConfigError};
use pvrdma_driver::{Context, Driver, Error, Platform};
use pvrdma_spec::command::{Opcode, QueryPkey, QueryPkeyResponse};
use pvrdma_spec::register::{Control, Register, Vector};
use pvrdma_spec::{PCI_DEVICE, PCI_VENDOR, version};
use zerocopy::FromZeros;

#[test]
fn function_is_what_the_driver_looks_for() {
    let rig = Rig::new();
    let device = &rig.guest().device;
    let identity = device.identity();
    assert_eq!((identity.vendor, identity.device), (PCI_VENDOR, PCI_DEVICE));
    assert_eq!((identity.subsystem_vendor, identity.subsystem), (0x15ad, 0x0820));
    assert_eq!((identity.class, identity.revision), ([0x02, 0x80, 0], 1));
    let bars = device.bars();
    assert_eq!(bars.iter().map(|bar| bar.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(bars[..2].iter().all(|bar| bar.kind == BarKind::Memory32), "resource 2 must be BAR 2");
    assert_eq!(bars[2].size, u64::from(rig.driver.caps().max_uar) * 4096);
    assert_eq!(device.msix().unwrap().vectors, 3);
}

/// C1, C5
#[test]
fn c5_capabilities_are_filled_in_when_the_region_is_written() {
    let rig = Rig::new();
    let caps = rig.driver.caps();
    assert_eq!(caps.node_guid, MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]).eui64());
    assert!(caps.max_uar.is_power_of_two() && caps.max_qp <= 65535);
    assert!(caps.max_qp_wr.is_power_of_two() && caps.max_sge.is_power_of_two());
    assert_eq!((caps.gid_types, caps.mode, caps.phys_port_cnt), (2, 0, 1));
    assert_eq!(caps.device_cap_flags & 1 << 15, 0, "no local DMA key");
    let port = rig.driver.query_port().unwrap();
    assert_eq!((port.state, port.phys_state, port.pkey_tbl_len), (4, 5, 1));
    assert!(port.gid_tbl_len <= caps.gid_tbl_len, "the driver's table has the capabilities' size");
    let mut request = QueryPkey::new_zeroed();
    request.port_num = 1;
    let response: QueryPkeyResponse = rig.driver.ask(Opcode::QueryPkey, &request).unwrap();
    assert_eq!(response.pkey, 0xffff);
    request.index = 1;
    assert!(rig.driver.ask::<_, QueryPkeyResponse>(Opcode::QueryPkey, &request).is_err());
}

/// C3
#[test]
fn c3_hundred_reloads_leak_nothing_and_handles_start_over() {
    let mut rig = Rig::new();
    let free = rig.guest().free_pages();
    let mut handles = None;
    for _ in 0..100 {
        let kernel = rig.kernel();
        let qp = kernel.connected_qp();
        let now = (kernel.pd.handle, kernel.cq.handle, qp.handle);
        assert_eq!(*handles.get_or_insert(now), now);
        rig.driver.destroy_qp(qp, &[&kernel.cq]).unwrap();
        kernel.close();
        assert_eq!(rig.guest().free_pages(), free);
        let Rig { driver, fake } = rig;
        let guest = driver.remove();
        assert_eq!(guest.registered_doorbells(), 0);
        rig = Rig { driver: Driver::probe(guest, version::QP_HANDLE).unwrap(), fake };
    }
    rig.check_alive();
}

/// C4
#[test]
fn c4_reset_with_live_objects_drops_them_all_and_touches_memory_no_more() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    assert!(rig.driver.post_send(&qp, &common::send(1)));
    assert!(rig.guest().registered_doorbells() > 0);
    rig.guest().write_register(Register::Ctl, Control::Reset as u32);
    assert_eq!(rig.guest().registered_doorbells(), 0);
    assert_eq!(rig.guest().device.objects(), pvrdma::ObjectCounts::default());
    assert_eq!(rig.fake.with(|state| (state.resets, state.qps.len())), (1, 0));
    qp.buffer.free(rig.guest());
    rig.guest().run();
    rig.guest().check_free_pages();
}

/// C8
#[test]
fn c8_each_driver_version_gets_the_layout_it_knows() {
    for driver_version in 17..=20 {
        let rig = Rig::with(MachineConfig::default(), FakeProvider::LIMITS, driver_version);
        let process = rig.process(3);
        let qp = process.try_qp(None).unwrap();
        if driver_version < version::QP_HANDLE {
            assert_eq!(qp.qpn, qp.handle, "one number is both, version {driver_version}");
        } else {
            assert_ne!(qp.qpn, qp.handle);
        }
        assert!(qp.handle > 1 || driver_version == version::QP_HANDLE && qp.handle == 1);
        rig.driver.destroy_qp(qp, &[&process.cq]).unwrap();
        let kernel = rig.kernel();
        let gsi =
            rig.driver.create_qp(kernel.pd, common::GSI, (&kernel.cq, &kernel.cq), None, SMALL).unwrap();
        assert_eq!(gsi.qpn, 1);
        rig.driver.destroy_qp(gsi, &[&kernel.cq]).unwrap();
    }
}

#[test]
fn driver_older_than_the_interface_is_refused() {
    let (guest, _) = machine(MachineConfig::default(), FakeProvider::LIMITS);
    assert_eq!(Driver::probe(guest, 16).map(|_| ()), Err(Error::Unsupported));
}

/// C40
#[test]
fn c40_new_region_while_active_is_an_implicit_reset() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    assert!(rig.driver.post_send(&qp, &common::send(1)));
    let second = Driver::probe(rig.guest().clone(), version::QP_HANDLE).unwrap();
    assert_eq!(rig.fake.with(|state| state.qps.len()), 0);
    qp.buffer.free(rig.guest());
    rig.guest().run();
    let rig = Rig { driver: second, fake: rig.fake.clone() };
    rig.check_alive();
}

/// C41
#[test]
fn c41_nothing_happens_while_bus_mastering_is_off() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    rig.driver.arm(&process.cq, false);
    rig.guest().device.set_bus_master(false);
    assert!(rig.driver.post_send(&qp, &common::send(5)));
    rig.guest().run();
    assert!(
        !rig.fake.finish_send(verbs::QpId(qp.handle), verbs::WcStatus::Success),
        "request stays in the ring"
    );
    rig.guest().device.set_link(false);
    assert!(matches!(rig.driver.query_port(), Err(Error::Device(_))), "commands fail");
    for vector in Vector::ALL {
        assert_eq!(rig.guest().take_interrupts(vector), 0);
    }
    rig.guest().device.set_bus_master(true);
    rig.guest().run();
    assert!(
        !rig.fake.finish_send(verbs::QpId(qp.handle), verbs::WcStatus::Success),
        "what was there before is gone"
    );
    assert!(matches!(rig.driver.query_port(), Err(Error::Device(_))), "commands still fail");
    rig.guest().device.set_link(true);
    let guest = rig.guest().clone();
    let rig = Rig { driver: Driver::probe(guest, version::QP_HANDLE).unwrap(), fake: rig.fake.clone() };
    rig.check_alive();
}

/// C42
#[test]
fn c42_function_reset_returns_to_power_on() {
    let rig = Rig::new();
    let _process = rig.process(1);
    rig.guest().write_register(Register::Imr, u32::MAX);
    rig.guest().write_register(Register::MacLow, 0);
    rig.guest().device.reset();
    assert_eq!(rig.guest().read_register(Register::Imr), 0);
    assert_eq!(rig.guest().read_register(Register::MacLow), 0x1200_5452);
    assert_eq!(rig.guest().read_register(Register::MacHigh), 0x5634);
    assert_ne!(rig.guest().read_register(Register::Err), 0);
    let guest = rig.guest().clone();
    guest.device.set_bus_master(true);
    let rig = Rig { driver: Driver::probe(guest, version::QP_HANDLE).unwrap(), fake: rig.fake.clone() };
    rig.check_alive();
}

/// C6, C7
#[test]
fn c7_interrupt_comes_for_commands_with_a_response_and_for_no_other() {
    let rig = Rig::new();
    let driver = &rig.driver;
    let responses = || rig.guest().take_interrupts(Vector::Response);
    driver.bind(0, [1; 16]).unwrap();
    driver.unbind(0, [1; 16]).unwrap();
    let process = rig.process(1);
    let srq = driver.create_srq(process.pd, 8, 1).unwrap();
    driver.set_srq_limit(&srq, 2).unwrap();
    driver.destroy_srq(srq).unwrap();
    let qp = process.try_qp(None).unwrap();
    driver.destroy_qp(qp, &[]).unwrap();
    process.close();
    // Platform::wait_response has taken exactly one for each command with a response.
    assert_eq!(responses(), 0);
    for number in [7, 21, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let mut request = [0; 184];
        request[8..12].copy_from_slice(&number.to_le_bytes());
        assert!(matches!(driver.post(&request), Err(Error::Device(_))), "command {number:#x}");
        assert_eq!(responses(), 0);
        driver.query_port().unwrap();
    }
}

#[test]
fn response_repeats_the_key_of_its_request() {
    let rig = Rig::new();
    let mut request = [0; 184];
    request[..8].copy_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
    request[16] = 1;
    rig.driver.post(&request).unwrap();
    let mut header = [0; 16];
    rig.guest().read(rig.driver.response_slot, &mut header);
    assert_eq!(header[..8], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(header[8..12], 0x8000_0000u32.to_le_bytes());
}

/// C31
#[test]
fn c31_masked_causes_are_delivered_when_unmasked() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    rig.driver.arm(&process.cq, false);
    rig.guest().read_register(Register::Icr);
    rig.guest().write_register(Register::Imr, u32::MAX);
    rig.complete_sends(&qp, [1]);
    rig.guest().device.set_link(false);
    let mut request = [0; 184];
    request[16] = 1;
    rig.driver.post(&request).unwrap();
    let taken = || Vector::ALL.map(|vector| rig.guest().take_interrupts(vector));
    assert_eq!(taken(), [0, 0, 0]);
    assert_eq!(rig.guest().read_register(Register::Icr), 7);
    assert_eq!(rig.guest().read_register(Register::Icr), 0);
    rig.guest().write_register(Register::Imr, 0);
    assert_eq!(taken(), [1, 1, 1]);
}

/// C12
#[test]
fn c12_link_changes_are_told_once_each() {
    let rig = Rig::new();
    rig.guest().device.set_link(true);
    assert_eq!(rig.driver.next_event(), None, "it was up already");
    for (up, kind, state) in [(false, 10, 1), (true, 9, 4)] {
        rig.guest().device.set_link(up);
        rig.guest().device.set_link(up);
        assert_eq!(rig.guest().take_interrupts(Vector::Async), 1);
        let event = rig.driver.next_event().unwrap();
        assert_eq!((event.kind, event.info), (kind, 1));
        assert_eq!(rig.driver.next_event(), None);
        assert_eq!(rig.driver.query_port().unwrap().state, state);
    }
    rig.driver.control(Control::Unquiesce as u32).unwrap();
    rig.check_alive();
}

/// The driver raises the events itself; the device only answers rightly.
#[test]
fn c12_port_is_down_while_the_interface_is() {
    let rig = Rig::new();
    for (up, state) in [(false, 1), (true, 4)] {
        rig.guest().set_interface(up);
        assert_eq!(rig.driver.query_port().unwrap().state, state);
    }
    assert_eq!(rig.driver.next_event(), None);
}

/// Packets come and go while the port is up, and at no other time.
#[test]
fn the_provider_follows_the_port() {
    let rig = Rig::new();
    let carries = || {
        rig.guest().run();
        rig.fake.with(|state| state.port_up)
    };
    assert!(carries());
    for (link, interface) in [(true, false), (false, true), (false, false), (true, true)] {
        rig.guest().device.set_link(link);
        rig.guest().set_interface(interface);
        assert_eq!(carries(), link && interface);
    }
    rig.guest().set_interface(false);
    rig.guest().device.look_at_interface();
    assert!(!rig.fake.with(|state| state.port_up));
}

#[test]
fn events_the_driver_ignored_are_recalled_when_the_interface_comes_up() {
    let rig = Rig::new();
    rig.guest().device.set_link(false);
    assert_eq!(rig.guest().take_interrupts(Vector::Async), 1);
    rig.driver.control(Control::Unquiesce as u32).unwrap();
    assert_eq!(rig.guest().take_interrupts(Vector::Async), 1);
    rig.driver.next_event().unwrap();
    rig.driver.control(Control::Unquiesce as u32).unwrap();
    assert_eq!(rig.guest().take_interrupts(Vector::Async), 0);
}

/// The kernel's own management client: sizes that Linux uses.
#[test]
fn c11_management_queue_pair_comes_up() {
    let rig = Rig::new();
    let pd = rig.driver.create_pd(Context::KERNEL).unwrap();
    let mr = rig.driver.register_all(pd, 1).unwrap();
    let cq = rig.driver.create_cq(Context::KERNEL, 1024).unwrap();
    let sizes = pvrdma_driver::QpSizes { send_wr: 128, recv_wr: 512, send_sge: 2, recv_sge: 1 };
    let qp = rig.driver.create_qp(pd, common::GSI, (&cq, &cq), None, sizes).unwrap();
    assert!(rig.driver.create_qp(pd, common::GSI, (&cq, &cq), None, sizes).is_err(), "there is only one");
    rig.move_to(&qp, verbs::QpState::Init).unwrap();
    rig.driver.arm(&cq, false);
    for wr_id in 0..512 {
        assert!(rig.driver.post_recv(&qp, &common::recv(wr_id)));
    }
    rig.guest().run();
    rig.fake.with(|state| {
        let fake = &state.qps[&verbs::QpId(qp.handle)];
        assert_eq!((fake.recvs.len(), fake.init.owner), (512, verbs::Owner::Kernel));
        assert_eq!(state.mrs.values().next().unwrap().kind, verbs::MrKind::Dma);
    });
    rig.driver.destroy_qp(qp, &[&cq]).unwrap();
    rig.driver.deregister(mr).unwrap();
    rig.driver.destroy_cq(cq).unwrap();
    rig.driver.destroy_pd(pd).unwrap();
    let process = rig.process(1);
    let user = rig.driver.create_qp(process.pd, common::GSI, (&process.cq, &process.cq), None, SMALL);
    assert!(user.is_err(), "a process has no management queue pair");
    assert!(rig.driver.create_qp(process.pd, RC, (&process.cq, &process.cq), None, SMALL).is_ok());
}

#[test]
fn h24_devices_that_come_and_go_leave_nothing_behind() {
    for doorbell_pages in [0, 1000].into_iter().cycle().take(100) {
        let device = Config { doorbell_pages, ..MachineConfig::default().device };
        let (provider, fake) = FakeProvider::new(FakeProvider::LIMITS);
        let config = MachineConfig { device, ..MachineConfig::default() };
        let failed = Machine::try_boot(config, |_| Box::new(provider));
        assert_eq!(failed.err(), Some(ConfigError::DoorbellPages(doorbell_pages)));
        assert!(fake.is_alone(), "a device that never was has no provider");
    }
    for _ in 0..100 {
        let rig = Rig::new();
        let process = rig.process(1);
        let _qp = process.connected_qp();
        assert!(rig.guest().registered_doorbells() > 0);
        rig.guest().device.reset();
        assert_eq!(rig.guest().registered_doorbells(), 0);
        let fake = rig.fake.clone();
        drop(process);
        // The rig has a handle of its own.
        let Rig { driver, fake: other } = rig;
        drop((driver, other));
        assert!(fake.is_alone(), "the device let go of its provider");
    }
}
