//! A bound driver over a device whose provider does what the test says.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod wire;

use pvrdma::test_utils::{Fake, FakeProvider, Guest, Machine, MachineConfig};
use pvrdma_driver::{Buffer, Context, Cq, Driver, Error, Pd, Qp, QpSizes, Srq};
use pvrdma_spec::attr::QpAttr;
use pvrdma_spec::queue::{Cqe, Sge};
use pvrdma_spec::version;
use verbs::{Limits, QpId, QpState};
use zerocopy::FromZeros;

/// `IB_QP_STATE`
pub const STATE: u32 = 1;
/// RC
pub const RC: u8 = 2;
/// UD
pub const UD: u8 = 4;
/// GSI
pub const GSI: u8 = 1;

/// Sizes small enough to wrap around quickly.
pub const SMALL: QpSizes = QpSizes { send_wr: 4, recv_wr: 8, send_sge: 2, recv_sge: 1 };

/// What makes a good request a bad one.
pub type Change<'a, T> = &'a dyn Fn(&mut T);

/// A driver, its machine and the provider behind the device.
pub struct Rig {
    pub driver: Driver<Guest>,
    pub fake: Fake,
}

impl Rig {
    /// A rig of the usual sizes with a current driver.
    pub fn new() -> Self {
        Self::with(MachineConfig::default(), FakeProvider::LIMITS, version::QP_HANDLE)
    }

    /// A rig with other sizes or another driver.
    pub fn with(config: MachineConfig, limits: Limits, driver_version: u32) -> Self {
        let (guest, fake) = machine(config, limits);
        Self { driver: Driver::probe(guest, driver_version).expect("driver binds"), fake }
    }

    /// The machine.
    pub fn guest(&self) -> &Guest {
        self.driver.platform()
    }

    /// A process with doorbell page `page`.
    pub fn process(&self, page: u32) -> Process<'_> {
        let context = self.driver.open(page).expect("context opens");
        Process::new(self, context)
    }

    /// The kernel.
    pub fn kernel(&self) -> Process<'_> {
        Process::new(self, Context::KERNEL)
    }

    /// Proves that the device still works: a command, and a send that completes.
    pub fn check_alive(&self) {
        assert_eq!(self.driver.query_port().expect("device answers").state, 4);
        let process = self.kernel();
        let qp = process.connected_qp();
        assert!(self.driver.post_send(&qp, &send(77)));
        self.guest().run();
        assert!(
            self.fake.finish_send(QpId(qp.handle), verbs::WcStatus::Success),
            "the device took the request"
        );
        self.guest().run();
        let cqe = self.driver.poll(&process.cq).expect("the request completes");
        assert_eq!((cqe.wr_id, cqe.status), (77, 0));
        self.driver.destroy_qp(qp, &[&process.cq]).expect("queue pair goes");
        process.close();
        self.guest().check_free_pages();
    }
}

impl Rig {
    /// Binds another driver to a machine that was maltreated, and proves that all is well.
    pub fn check_recovers(&self) {
        let driver = Driver::probe(self.guest().clone(), version::QP_HANDLE).expect("driver binds again");
        Self { driver, fake: self.fake.clone() }.check_alive();
    }
}

/// A machine alone.
pub fn machine(config: MachineConfig, limits: Limits) -> (Guest, Fake) {
    let (provider, fake) = FakeProvider::new(limits);
    (Machine::boot(config, |_| Box::new(provider)), fake)
}

/// A context with a protection domain and a completion queue.
pub struct Process<'a> {
    pub rig: &'a Rig,
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
}

impl<'a> Process<'a> {
    fn new(rig: &'a Rig, context: Context) -> Self {
        let pd = rig.driver.create_pd(context).expect("protection domain comes");
        let cq = rig.driver.create_cq(context, 64).expect("completion queue comes");
        Self { rig, context, pd, cq }
    }

    /// A reliable queue pair in the reset state.
    pub fn try_qp(&self, srq: Option<&Srq>) -> Result<Qp, Error> {
        self.rig.driver.create_qp(self.pd, RC, (&self.cq, &self.cq), srq, SMALL)
    }

    /// A reliable queue pair that may send.
    pub fn connected_qp(&self) -> Qp {
        let qp = self.try_qp(None).expect("queue pair comes");
        self.rig.move_to(&qp, QpState::Rts).expect("queue pair moves");
        qp
    }

    /// Destroys what is in it, but queue pairs, and closes it.
    pub fn close(self) {
        let driver = &self.rig.driver;
        driver.destroy_cq(self.cq).expect("completion queue goes");
        driver.destroy_pd(self.pd).expect("protection domain goes");
        if self.context != Context::KERNEL {
            driver.close(self.context).expect("context closes");
        }
    }

    /// All completions that wait.
    pub fn drain(&self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.rig.driver.poll(&self.cq)).collect()
    }
}

impl Rig {
    /// Moves a queue pair, by state alone.
    pub fn move_to(&self, qp: &Qp, state: QpState) -> Result<(), Error> {
        let mut attrs = QpAttr::new_zeroed();
        attrs.qp_state = state as u32;
        self.driver.modify_qp(qp, STATE, &attrs)
    }

    /// Posts, takes and finishes `count` signalled sends.
    pub fn complete_sends(&self, qp: &Qp, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            assert!(self.driver.post_send(qp, &send(wr_id)), "send ring has room");
            self.guest().run();
            assert!(self.fake.finish_send(QpId(qp.handle), verbs::WcStatus::Success));
        }
        self.guest().run();
    }

    /// A buffer.
    pub fn buffer(&self, bytes: u64) -> Buffer {
        Buffer::new(self.guest(), bytes)
    }

    /// Writes the same entry in all of a page of a page directory.
    pub fn fill(&self, page: u64, entry: u64) {
        for index in 0..512 {
            pvrdma_driver::Platform::write(self.guest(), page + index * 8, &entry.to_le_bytes());
        }
    }
}

/// A signalled send of one byte.
pub fn send(wr_id: u64) -> pvrdma_driver::SendWork {
    let sge = Sge { addr: 0x1000, length: 1, lkey: 0x100 };
    pvrdma_driver::SendWork::new(wr_id, pvrdma_spec::queue::WrOpcode::Send, 2, &[sge])
}

/// A receive of sixteen bytes.
pub fn recv(wr_id: u64) -> pvrdma_driver::Recv {
    pvrdma_driver::Recv::new(wr_id, &[Sge { addr: 0x2000, length: 16, lkey: 0x100 }])
}

/// A completion of a datagram.
pub fn completion_of(qp: &Qp, cq: &Cq) -> verbs::Completion {
    verbs::Completion {
        wr_id: 1,
        cq: verbs::CqId(cq.handle),
        qp: verbs::QpId(qp.handle),
        status: verbs::WcStatus::Success,
        opcode: verbs::WcOpcode::Recv,
        byte_len: 5,
        imm_or_key: [1, 2, 3, 4],
        src_qp: verbs::Qpn(9),
        flags: verbs::WcFlags::GRH | verbs::WcFlags::WITH_NETWORK_HDR_TYPE,
        pkey_index: 0,
        network_hdr_type: 2,
        solicited: false,
    }
}
