//! Devices that a driver has worked with, in words.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use device_model::doorbell::NoDoorbells;
use device_model::irq::Interrupts;
use device_model::net::{Link, MacAddr};
use device_model::ram::Ram;
use host_io::loopback::Loopback;
use pvrdma::test_utils::{Guest, Machine, MachineConfig};
use pvrdma_driver::{Context, Cq, Driver, Pd, Qp, QpSizes, SendWork};
use pvrdma_spec::attr::QpAttr;
use pvrdma_spec::queue::WrOpcode;
use pvrdma_spec::version;
use roce::{RoceConfig, RoceProvider};
use verbs::Gid;
use vm_memory::GuestAddress;
use vmm_api::{Answer, RdmaDevice};
use zerocopy::FromZeros;

use super::*;
use crate::io::EventBell;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const SIGNALED: u32 = 2;
/// A number that no queue pair has.
const NOBODY: u32 = 0x00_beef;

struct Unheard;

impl Interrupts for Unheard {
    fn signal(&self, _: u16) {}
}

fn link() -> Arc<dyn Link> {
    Arc::new(Loopback::new(1500).unwrap())
}

/// A slot whose network interface nobody drives.
fn slot(name: &str, rdma: Option<Arc<Pvrdma>>) -> SlotView {
    let ram = Arc::new(Ram::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap());
    let nic = Vmxnet3::new(
        vmxnet3::Config::new(MAC),
        ram,
        link(),
        Arc::new(Unheard),
        Arc::new(NoDoorbells),
        Arc::new(EventBell::new().unwrap()),
    );
    SlotView {
        name: name.to_owned(),
        address: Bdf::new(1, 0).unwrap(),
        link: "loopback".to_owned(),
        mtu: 1500,
        nic: Arc::new(nic),
        rdma,
    }
}

/// A machine with a driver that talks to itself.
struct Rig {
    driver: Driver<Guest>,
    pd: Pd,
    cq: Cq,
}

impl Rig {
    fn new() -> Self {
        let config = MachineConfig { device: pvrdma::Config::new(MAC), ..MachineConfig::default() };
        let guest = Machine::boot(config, |ram| {
            Box::new(RoceProvider::new(RoceConfig::new(MAC), ram, link()).unwrap())
        });
        let driver = Driver::probe(guest, version::QP_HANDLE).unwrap();
        driver.bind(1, own_gid().0).unwrap();
        let context = driver.open(1).unwrap();
        let (pd, cq) = Self::queues(&driver, context);
        Self { driver, pd, cq }
    }

    fn queues(driver: &Driver<Guest>, context: Context) -> (Pd, Cq) {
        (driver.create_pd(context).unwrap(), driver.create_cq(context, 64).unwrap())
    }

    /// A queue pair that is connected to number `peer` of the same machine.
    fn connect(&self, peer: u32) -> Qp {
        let sizes = QpSizes { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1 };
        let qp = self.driver.create_qp(self.pd, 2, (&self.cq, &self.cq), None, sizes).unwrap();
        let mut attrs = QpAttr::new_zeroed();
        (attrs.qp_state, attrs.port_num) = (1, 1);
        self.driver.modify_qp(&qp, 1 | 1 << 3 | 1 << 4 | 1 << 5, &attrs).unwrap();
        (attrs.qp_state, attrs.path_mtu, attrs.dest_qp_num) = (2, 3, peer);
        (attrs.ah_attr.ah_flags, attrs.ah_attr.port_num, attrs.ah_attr.dmac) = (1, 1, MAC.0);
        (attrs.ah_attr.grh.dgid, attrs.ah_attr.grh.sgid_index) = (own_gid().0, 1);
        let to_receive = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
        self.driver.modify_qp(&qp, to_receive, &attrs).unwrap();
        (attrs.qp_state, attrs.timeout, attrs.retry_cnt, attrs.sq_psn) = (3, 8, 1, 77);
        self.driver.modify_qp(&qp, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16, &attrs).unwrap();
        qp
    }

    /// Lets time pass until nothing is left to do.
    fn run(&self) {
        let guest = self.driver.platform();
        loop {
            let next = guest.serve();
            match next.deadline {
                _ if next.more => {}
                Some(deadline) => guest.pass((deadline - guest.now()).max(Duration::from_nanos(1))),
                None => return,
            }
        }
    }

    fn describe(&self) -> RdmaDevice {
        rdma::describe(&slot("net0", None), &rdma::look(&self.driver.platform().device, 0))
    }
}

fn own_gid() -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, 1))
}

#[test]
fn connected_queue_pair_is_shown_with_its_peer() {
    let rig = Rig::new();
    let qp = rig.connect(NOBODY);
    let device = rig.describe();
    assert_eq!((device.address.as_str(), device.driver), ("00:01.1", vmm_api::DriverState::Active));
    assert_eq!((device.port.active, device.port.problem, device.port.active_mtu), (true, None, 1024));
    assert_eq!((device.gids[0].index, device.gids[0].gid.as_str()), (1, "::ffff:10.0.0.1"));
    let shown = &device.queue_pairs[0];
    assert_eq!((shown.qpn, shown.state.as_str(), shown.service.as_str()), (qp.qpn, "RTS", "RC"));
    assert_eq!((shown.peer_gid.as_deref(), shown.peer_qpn), (Some("::ffff:10.0.0.1"), Some(NOBODY)));
    assert_eq!((shown.source_gid.as_deref(), shown.send_psn), (Some("::ffff:10.0.0.1"), 77));
    assert_eq!(device.commands["CreateQp"], vmm_api::Calls { succeeded: 1, failed: 0 });
    let used = |kind: &str| device.objects.iter().find(|o| o.kind == kind).map(|o| o.used);
    assert_eq!((used("queue pairs"), used("memory regions")), (Some(1), Some(0)));
}

#[test]
fn failure_comes_with_what_to_do_about_it() {
    let rig = Rig::new();
    let qp = rig.connect(NOBODY);
    assert!(rig.driver.post_send(&qp, &SendWork::new(1, WrOpcode::Send, SIGNALED, &[])));
    rig.run();
    let device = rig.describe();
    let failure = device.queue_pairs[0].failure.as_ref().expect("it failed");
    assert_eq!(
        (device.queue_pairs[0].state.as_str(), failure.cause.as_str()),
        ("ERR", "completion RETRY_EXC_ERR")
    );
    assert!(failure.advice.contains("peer"), "{}", failure.advice);
    assert_eq!((&device.failures[0].failure, device.failures[0].qpn), (failure, qp.qpn));
    assert!(device.failures[0].at_ms > 0);
    assert_eq!(device.completions["RETRY_EXC_ERR"], 1);
    assert!(device.transport["dropped_no_qp"] > 0 && device.transport["ack_timeouts"] > 0);
}

#[test]
fn port_without_address_says_what_is_missing() {
    let rig = Rig::new();
    rig.driver.unbind(1, own_gid().0).unwrap();
    let device = rig.describe();
    assert!(device.port.active && device.port.problem.is_some_and(|problem| problem.contains("address")));
    rig.driver.platform().set_interface(false);
    let device = rig.describe();
    assert!(
        !device.port.active && device.port.problem.is_some_and(|problem| problem.contains("ip link set"))
    );
}

/// A machine that only knows whether it is paused, and when it cannot be saved.
#[derive(Default)]
struct FakeControl {
    paused: AtomicBool,
}

impl Control for FakeControl {
    fn pause(&self) -> Result<(), Error> {
        self.paused.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    fn save(&self, directory: &Path, _: About) -> Result<(), Error> {
        assert!(self.is_paused());
        if directory == "/full" { Err(Error::Failure("no room".into())) } else { Ok(()) }
    }

    fn migrate(self: Arc<Self>, _: &Migrate, _: Arc<Board>) -> Result<Migration, Error> {
        Err(Error::Failure("nowhere to go".into()))
    }
}

#[test]
fn snapshot_leaves_the_machine_as_it_was_unless_it_is_to_end() {
    let config = crate::config::RunOptions { bare: Some("b".into()), ..Default::default() };
    let (sender, events) = channel();
    let inspector = Inspector::new(&config.resolve().unwrap(), Events::new(sender));
    let control = Arc::new(FakeControl::default());
    inspector.enter(vec![], control.clone());
    let save = |to: &str, stop| {
        let wanted = vmm_api::Snapshot { to: to.into(), stop };
        inspector.serve(&Request::Snapshot(wanted)).map_err(|error| error.kind)
    };
    assert!(save("/a", false).is_ok() && !control.is_paused());
    control.pause().unwrap();
    assert!(save("/b", false).is_ok() && control.is_paused(), "it was paused before");
    control.resume();
    assert_eq!(save("/full", true), Err(ErrorKind::Failed));
    assert!(!control.is_paused() && events.try_recv().is_err(), "it failed, so the machine goes on");
    assert!(save("/c", true).is_ok() && control.is_paused());
    assert_eq!(events.try_recv(), Ok(Event::Saved));
}

#[test]
fn requests_reach_the_machine_that_runs_and_no_other() {
    let config = crate::config::RunOptions { bare: Some("b".into()), ..Default::default() };
    let inspector = Inspector::new(&config.resolve().unwrap(), Events::new(channel().0));
    let ask = |request: &Request| inspector.serve(request).map_err(|error| error.kind);
    let show = |slot: &str| Request::RdmaShow(RdmaShow { slot: Some(slot.to_owned()), first_qp: 0 });
    assert_eq!(ask(&Request::VmInfo {}), Err(ErrorKind::NotRunning));

    inspector.enter(vec![slot("net0", None)], Arc::new(FakeControl::default()));
    let Ok(Answer::VmInfo(info)) = ask(&Request::VmInfo {}) else { panic!("no information") };
    assert_eq!((info.cpus, info.memory_bytes, info.slots[0].id.as_str()), (1, 1 << 30, "net0"));
    assert_eq!((info.slots[0].nic.link_up, info.slots[0].nic.interface_up), (true, false));
    assert_eq!(ask(&show("net9")), Err(ErrorKind::NoSuchSlot));
    assert_eq!(ask(&show("net0")), Err(ErrorKind::NoRdma));

    inspector.leave();
    assert_eq!(ask(&show("net0")), Err(ErrorKind::NotRunning));
}

#[test]
fn every_status_has_a_name_of_its_own_and_advice() {
    let explained: Vec<_> =
        advice::STATUSES.iter().map(|status| advice::explain(pvrdma::Cause::Completion(*status))).collect();
    for (index, failure) in explained.iter().enumerate() {
        assert!(explained[..index].iter().all(|other| other.cause != failure.cause));
        assert!(failure.advice.ends_with(['.', '?']), "{}", failure.advice);
    }
}
