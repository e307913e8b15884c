//! Two devices and a wire under virtual time.
//!
//! Everything a test needs to speak verbs at two [`RoceProvider`]s whose frames pass through a wire that can lose, double
//! and reorder them. No clock, no thread: [`World::run`] moves frames and time until nothing is left to do.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "shared by test binaries")]

pub mod carrier;
pub mod edit;
pub mod node;
pub mod scenario;
pub mod wire;
pub mod wr;

use std::collections::BTreeMap;
use std::time::Duration;

use device_model::time::Instant;
use verbs::{Access, Mtu, Provider, QpAttr, QpAttrMask, QpId, QpState, Qpn, SendOp};

pub use carrier::Carrier;
pub use node::Node;
pub use wire::{Faults, Rng, WireFault};

/// Time a frame takes.
const FLIGHT: Duration = Duration::from_micros(5);
/// A test that takes longer than this in virtual time is stuck.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a pair of queue pairs is connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub mtu: Mtu,
    pub psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub access: Access,
    /// Which GID rows connect: 0 is IPv4, 1 is IPv6.
    pub gid_index: u8,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            psn: 0xff_fff0,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            access: Access::all(),
            gid_index: 0,
        }
    }
}

/// Two nodes, the wire between them, and the time.
pub struct World {
    pub nodes: [Node; 2],
    pub now: Instant,
    pub faults: Faults,
    pub hooks: Vec<WireFault>,
    pub carrier: Carrier,
    wires: carrier::Wires,
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sequence: u64,
    /// Frames to this node arrive no earlier than that.
    stalled: Option<(usize, Instant)>,
    /// All frames that were sent, when recording.
    pub recording: Option<Vec<Vec<u8>>>,
}

impl World {
    pub fn new() -> Self {
        Self {
            nodes: [Node::new(1), Node::new(2)],
            now: Instant::from_nanos(1),
            faults: Faults::none(),
            hooks: Vec::new(),
            carrier: Carrier::default(),
            wires: carrier::Wires::default(),
            in_flight: BTreeMap::new(),
            sequence: 0,
            stalled: None,
            recording: None,
        }
    }

    /// Two nodes with one connection, number 1.
    pub fn connected(how: Connection) -> Self {
        let mut world = Self::new();
        world.connect(1, how);
        world
    }

    /// A WRITE to `offset` of node 1's memory.
    pub fn write_op(&self, offset: u64) -> SendOp {
        SendOp::Write { addr: wr::va(offset), rkey: self.nodes[1].keys.rkey, imm: None }
    }

    /// Creates an RC queue pair with number `id` on both nodes and connects them.
    pub fn connect(&mut self, id: u32, how: Connection) {
        let qpns = [0, 1].map(|n: usize| self.nodes[n].create_rc(QpId(id)));
        self.connect_existing(QpId(id), qpns, how);
    }

    pub fn connect_existing(&mut self, id: QpId, qpns: [Qpn; 2], how: Connection) {
        let now = self.now;
        for (n, peer) in [(0, 1), (1, 0)] {
            let gids = [self.nodes[0].gids(), self.nodes[1].gids()];
            let mac = self.nodes[peer].mac;
            let gid = gids[peer][usize::from(how.gid_index)];
            self.nodes[n].bring_up(now, id, qpns[peer], gid, mac, how);
        }
    }

    pub fn modify(&mut self, n: usize, qp: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<(), verbs::Error> {
        self.nodes[n].provider.modify_qp(self.now, QpId(qp), attr, mask)
    }

    pub fn set_state(&mut self, n: usize, qp: u32, state: QpState) -> Result<(), verbs::Error> {
        self.modify(n, qp, &QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// Holds back what is on its way to a node.
    pub fn stall(&mut self, n: usize, span: Duration) {
        self.stalled = Some((n, self.now + span));
    }

    /// Time passes until `until`, and a node misses what would reach it meanwhile.
    pub fn miss(&mut self, n: usize, until: Instant) {
        self.in_flight.retain(|(at, _), (to, _)| *to != n || *at > until);
        self.now = self.now.max(until);
    }

    /// Runs until nothing is in flight and no deadline is left.
    pub fn run(&mut self) {
        let give_up = self.now + PATIENCE;
        self.run_until(give_up);
        assert!(self.now < give_up, "the test is stuck");
    }

    /// Runs for a span of virtual time, or until nothing is left.
    pub fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
    }

    /// Does what is due, then moves to the next time at which something happens and delivers what arrives then. Returns
    /// `false` when that is after `end`, or nothing is left.
    pub fn step(&mut self, end: Instant) -> bool {
        self.work();
        let frame = self.in_flight.keys().next().map(|(at, _)| *at);
        let record = self.wires.depart(self.now + FLIGHT);
        let timers = self.nodes.iter().filter_map(|node| node.provider.next_deadline());
        let Some(next) = timers.chain(frame).chain(record).min() else { return false };
        if next > end {
            self.now = end;
            return false;
        }
        self.now = self.now.max(next);
        self.deliver();
        self.wires.arrive(self.now);
        true
    }

    /// Lets both nodes do what is due now, and takes what they send.
    fn work(&mut self) {
        self.wires.tend(&mut self.carrier, &mut self.nodes);
        self.work_once();
        if !matches!(self.carrier, Carrier::Wire) {
            // Who waited for room may have it now.
            self.work_once();
        }
    }

    fn work_once(&mut self) {
        for n in 0..2 {
            let mut rounds = 0;
            while self.nodes[n].provider.advance(self.now) {
                rounds += 1;
                assert!(rounds < 1_000_000, "a device never comes to rest");
                self.collect(n);
            }
            self.collect(n);
        }
    }

    fn collect(&mut self, n: usize) {
        self.nodes[n].collect_events();
        for frame in self.nodes[n].link.take_sent() {
            if let Some(recording) = &mut self.recording {
                recording.push(frame.clone());
            }
            let mut frames = vec![frame];
            for hook in &mut self.hooks {
                frames = frames.into_iter().flat_map(|frame| hook(n, frame)).collect();
            }
            for frame in frames {
                for delay in self.faults.delays(FLIGHT) {
                    self.sequence += 1;
                    let to = 1 - n;
                    let held = self.stalled.filter(|(stalled, _)| *stalled == to).map(|(_, until)| until);
                    let at = held.map_or(self.now + delay, |until| until.max(self.now + delay));
                    self.in_flight.insert((at, self.sequence), (to, frame.clone()));
                }
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            let node = &mut self.nodes[to];
            if node.provider.claims(&frame) {
                node.provider.receive(self.now, &frame);
            }
            node.collect_events();
        }
    }
}
