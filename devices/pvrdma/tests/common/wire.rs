//! Two machines whose devices do real RDMA over a wire, under virtual time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device_model::net::{Link, MacAddr};
use pvrdma::Config;
use pvrdma::test_utils::{Guest, Machine, MachineConfig};
use pvrdma_driver::{Buffer, Context, Cq, Driver, Mr, Pd, Qp, QpSizes, Srq};
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::attr::{AhAttr, QpAttr};
use pvrdma_spec::queue::{Cqe, Sge};
use pvrdma_spec::version;
use roce::{RoceConfig, RoceProvider};
use verbs::Gid;
use zerocopy::FromZeros;

use super::{RC, UD};

/// Virtual time after which a test is stuck.
const PATIENCE: Duration = Duration::from_secs(100);
/// Virtual address of a node's buffer; its own pages are elsewhere and scattered.
pub const VA: u64 = 0x7f00_1234_5000;
/// Bytes of a node's buffer: more than one table of a page directory.
pub const HEAP: u64 = 600 * PAGE_SIZE;

/// Frames on their way to one end.
type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end of the wire.
struct End {
    out: Queue,
}

impl Link for End {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let frame = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.out.lock().unwrap().push_back(frame);
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        1500
    }
}

/// A machine with a driver, a process with some memory, and queues.
pub struct Node {
    pub driver: Driver<Guest>,
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub heap: Buffer,
    pub mr: Mr,
    mac: MacAddr,
    inbox: Queue,
}

impl Node {
    fn new(number: u8, inbox: Queue, out: Queue) -> Self {
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, number]);
        let config = MachineConfig { device: Config::new(mac), ram: 32 << 20, ..MachineConfig::default() };
        let link = Arc::new(End { out });
        let guest = Machine::boot(config, |ram| {
            Box::new(RoceProvider::new(RoceConfig::new(mac), ram, link).expect("wire carries packets"))
        });
        let driver = Driver::probe(guest, version::QP_HANDLE).expect("driver binds");
        driver.bind(0, link_local(mac).0).expect("address binds");
        driver.bind(1, ipv4(number).0).expect("address binds");
        let context = driver.open(1).expect("context opens");
        let pd = driver.create_pd(context).expect("protection domain comes");
        let cq = driver.create_cq(context, 256).expect("completion queue comes");
        let heap = Buffer::new(driver.platform(), HEAP);
        let mr = driver.register(pd, 15, VA, HEAP, &heap.dir).expect("memory registers");
        Self { driver, context, pd, cq, heap, mr, mac, inbox }
    }

    /// An element of the heap.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: VA + offset, length, lkey: self.mr.lkey }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.heap.write(self.driver.platform(), offset, bytes);
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.heap.read(self.driver.platform(), offset, &mut bytes);
        bytes
    }

    /// All completions that wait.
    pub fn completions(&self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.driver.poll(&self.cq)).collect()
    }

    /// Names and statuses of all completions that wait.
    pub fn statuses(&self) -> Vec<(u64, u32)> {
        self.completions().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    pub fn guest(&self) -> &Guest {
        self.driver.platform()
    }

    /// A reliable queue pair in the reset state.
    pub fn create_rc(&self, srq: Option<&Srq>) -> Qp {
        let sizes = QpSizes { send_wr: 64, recv_wr: 64, send_sge: 4, recv_sge: 4 };
        self.driver.create_qp(self.pd, RC, (&self.cq, &self.cq), srq, sizes).expect("queue pair comes")
    }

    /// A datagram queue pair that may send and receive.
    pub fn create_ud(&self, qkey: u32) -> Qp {
        let sizes = QpSizes { send_wr: 64, recv_wr: 64, send_sge: 4, recv_sge: 4 };
        let qp =
            self.driver.create_qp(self.pd, UD, (&self.cq, &self.cq), None, sizes).expect("queue pair comes");
        self.bring_up_ud(&qp, qkey);
        qp
    }

    pub fn bring_up_ud(&self, qp: &Qp, qkey: u32) {
        let mut attrs = QpAttr::new_zeroed();
        (attrs.qp_state, attrs.port_num, attrs.qkey) = (1, 1, qkey);
        self.driver.modify_qp(qp, 1 | 1 << 4 | 1 << 5 | 1 << 6, &attrs).expect("to init");
        attrs.qp_state = 2;
        self.driver.modify_qp(qp, 1, &attrs).expect("to receive");
        attrs.qp_state = 3;
        self.driver.modify_qp(qp, 1 | 1 << 16, &attrs).expect("to send");
    }

    /// The path to a node from GID row `row` to its own of the same row.
    pub fn path(&self, to: &Self, row: u8) -> AhAttr {
        let mut path = AhAttr::new_zeroed();
        path.grh.dgid = if row == 0 { link_local(to.mac).0 } else { ipv4(to.mac.0[5]).0 };
        (path.grh.sgid_index, path.grh.hop_limit) = (row, 64);
        (path.ah_flags, path.port_num, path.dmac) = (1, 1, to.mac.0);
        path
    }

    /// Connects a queue pair to number `peer` at the other end of `path`.
    pub fn connect(&self, qp: &Qp, path: AhAttr, peer: u32) {
        let mut attrs = QpAttr::new_zeroed();
        (attrs.qp_state, attrs.port_num, attrs.qp_access_flags) = (1, 1, 15);
        self.driver.modify_qp(qp, 1 | 1 << 3 | 1 << 4 | 1 << 5, &attrs).expect("to init");
        (attrs.qp_state, attrs.path_mtu, attrs.dest_qp_num, attrs.ah_attr) = (2, 3, peer, path);
        (attrs.rq_psn, attrs.max_dest_rd_atomic, attrs.min_rnr_timer) = (0xff_fff0, 4, 1);
        self.driver
            .modify_qp(qp, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20, &attrs)
            .expect("to receive");
        (attrs.qp_state, attrs.sq_psn, attrs.timeout, attrs.retry_cnt) = (3, 0xff_fff0, 8, 3);
        (attrs.rnr_retry, attrs.max_rd_atomic) = (3, 4);
        self.driver
            .modify_qp(qp, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16, &attrs)
            .expect("to send");
    }
}

fn link_local(mac: MacAddr) -> Gid {
    let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[8..].copy_from_slice(&mac.eui64());
    Gid(gid)
}

fn ipv4(number: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, number))
}

/// Two nodes and the wire between them.
pub struct World {
    pub nodes: [Node; 2],
}

impl World {
    pub fn new() -> Self {
        let (left, right) = (Queue::default(), Queue::default());
        Self { nodes: [Node::new(1, left.clone(), right.clone()), Node::new(2, right, left)] }
    }

    /// A queue pair at each end, connected to each other by GID row `row`.
    pub fn connect(&self, row: u8) -> [Qp; 2] {
        let [a, b] = &self.nodes;
        let qps = [a.create_rc(None), b.create_rc(None)];
        self.join(&qps, row);
        qps
    }

    /// Connects two queue pairs, one at each end.
    pub fn join(&self, qps: &[Qp; 2], row: u8) {
        let [a, b] = &self.nodes;
        a.connect(&qps[0], a.path(b, row), qps[1].qpn);
        b.connect(&qps[1], b.path(a, row), qps[0].qpn);
    }

    /// Serves both devices once and moves the frames that wait.
    pub fn step(&self) {
        for node in &self.nodes {
            self.deliver(node);
            node.guest().serve();
        }
    }

    /// Serves both devices, moves frames and lets time pass until nothing is left to do.
    pub fn run(&self) {
        let start = self.nodes[0].guest().now();
        while self.nodes[0].guest().now() < start + PATIENCE {
            let mut busy = false;
            let mut deadline = None;
            for node in &self.nodes {
                busy |= self.deliver(node);
                let next = node.guest().serve();
                busy |= next.more;
                deadline = deadline.into_iter().chain(next.deadline).min();
            }
            if busy || self.nodes.iter().any(|node| !node.inbox.lock().unwrap().is_empty()) {
                continue;
            }
            let Some(deadline) = deadline else { return };
            let wait = deadline - self.nodes[0].guest().now();
            self.nodes.iter().for_each(|node| node.guest().pass(wait.max(Duration::from_nanos(1))));
        }
        panic!("The devices never come to rest");
    }

    /// Serves both devices and takes away what is on its way to node `to`.
    pub fn intercept(&self, to: usize) -> Vec<Vec<u8>> {
        self.nodes.iter().for_each(|node| while node.guest().serve().more {});
        std::mem::take(&mut *self.nodes[to].inbox.lock().unwrap()).into()
    }

    /// Hands a node the frames that have arrived.
    fn deliver(&self, node: &Node) -> bool {
        let frames = std::mem::take(&mut *node.inbox.lock().unwrap());
        for frame in &frames {
            assert!(node.guest().receive(frame), "only RoCE is on this wire");
        }
        !frames.is_empty()
    }
}
