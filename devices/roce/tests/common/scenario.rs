//! A list of operations from each side to the other, and an oracle that knows what must come of it.

use std::time::Duration;

use verbs::{Completion, Mtu, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus};

use super::node::{HEAP, Node};
use super::wr::va;
use super::{Connection, Rng, World};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub size: u32,
    pub fence: bool,
    pub signaled: bool,
}

/// Operations that both sides do at the same time on one connection.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub connection: Connection,
    pub ops: Vec<Op>,
    /// Receives that are posted from the start; the others come a few at a time.
    pub early_receives: usize,
    pub seed: u64,
}

impl Scenario {
    /// One operation of each kind and size.
    pub fn every_kind(mtu: Mtu, sizes: &[u32], seed: u64) -> Self {
        let all = Kind::ALL.iter().flat_map(|kind| sizes.iter().map(move |size| (*kind, *size)));
        let ops = all.map(|(kind, size)| Op { kind, size, fence: false, signaled: true });
        let connection = Connection { mtu, ..Connection::default() };
        Self { connection, ops: ops.collect(), early_receives: 2, seed }
    }
}

/// Where things lie in the heap of either node: a slot per operation in each of three areas, and one word for atomics.
#[derive(Clone, Copy)]
struct Layout {
    slot: u64,
    count: u64,
}

impl Layout {
    const WORD: u64 = HEAP;
    const FIRST: u64 = HEAP + 4096;

    fn new(ops: &[Op]) -> Self {
        let slot = ops.iter().map(|op| u64::from(op.size)).max().unwrap_or(0).next_multiple_of(64) + 64;
        Self { slot, count: ops.len() as u64 }
    }

    fn area(self, area: u64, i: usize) -> u64 {
        Self::FIRST + (area * self.count + i as u64) * self.slot
    }

    /// What an operation of this side sends, or where its result goes.
    fn local(self, i: usize) -> u64 {
        self.area(0, i)
    }

    /// What the peer's operation writes or reads here.
    fn target(self, i: usize) -> u64 {
        self.area(1, i)
    }

    /// What receives take.
    fn receive(self, i: usize) -> u64 {
        self.area(2, i)
    }
}

/// The result an operation of one side must have.
struct Expected {
    /// Data its slot at the node `at` must hold.
    at: usize,
    gpa: u64,
    bytes: Vec<u8>,
}

/// What [`check`] says when a side gave up for lack of answers, which a bad enough wire makes it do.
pub const OUT_OF_RETRIES: &str = "a side ran out of retries";

/// Runs a scenario on a fresh pair of nodes and compares all with what must be.
pub fn check(world: &mut World, scenario: &Scenario) -> Result<(), String> {
    world.connect(1, scenario.connection);
    let layout = Layout::new(&scenario.ops);
    let mut rng = Rng::new(scenario.seed);
    let mut expected = vec![];
    for n in 0..2 {
        prepare(world, n, scenario, layout, &mut rng, &mut expected);
    }
    run(world, scenario, layout);
    let told = [0, 1].map(|n: usize| world.nodes[n].completions());
    if told.iter().flatten().any(|c| c.status == WcStatus::RetryExcErr) {
        return Err(OUT_OF_RETRIES.to_owned());
    }
    for (n, completions) in told.into_iter().enumerate() {
        let (sends, receives) =
            completions.into_iter().partition::<Vec<_>, _>(|c| (c.opcode as u32) < WcOpcode::Recv as u32);
        check_sends(n, scenario, &sends)?;
        check_receives(n, scenario, &receives)?;
        check_word(&world.nodes[n], scenario)?;
    }
    for Expected { at, gpa, bytes } in expected {
        if world.nodes[at].read(gpa, bytes.len()) != bytes {
            return Err(format!("data at {gpa:#x} of node {at} is wrong"));
        }
    }
    Ok(())
}

/// Fills the memory that operation list of node `n` uses, and notes what it must lead to.
fn prepare(
    world: &mut World,
    n: usize,
    scenario: &Scenario,
    layout: Layout,
    rng: &mut Rng,
    expected: &mut Vec<Expected>,
) {
    let peer = 1 - n;
    let mut received = 0;
    let mut word = 0u64;
    for (i, op) in scenario.ops.iter().enumerate() {
        let data = rng.bytes(op.size as usize);
        match op.kind {
            Kind::Send | Kind::SendImm => {
                world.nodes[n].write(layout.local(i), &data);
                let gpa = layout.receive(received);
                // One byte after the data must stay as it was.
                expected.push(Expected { at: peer, gpa, bytes: [data, vec![0]].concat() });
            }
            Kind::Write | Kind::WriteImm => {
                world.nodes[n].write(layout.local(i), &data);
                expected.push(Expected { at: peer, gpa: layout.target(i), bytes: [data, vec![0]].concat() });
            }
            Kind::Read => {
                world.nodes[peer].write(layout.target(i), &data);
                expected.push(Expected { at: n, gpa: layout.local(i), bytes: [data, vec![0]].concat() });
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                expected.push(Expected { at: n, gpa: layout.local(i), bytes: word.to_le_bytes().to_vec() });
                word = atomic_result(op.kind, word, i);
            }
        }
        received += usize::from(op.kind.consumes_receive());
    }
}

/// What the word is after an atomic operation: compare-and-swap is made to hit.
fn atomic_result(kind: Kind, word: u64, i: usize) -> u64 {
    match kind {
        Kind::FetchAdd => word.wrapping_add(i as u64 + 1),
        Kind::CompareSwap => word.wrapping_mul(3).wrapping_add(1),
        _ => word,
    }
}

fn run(world: &mut World, scenario: &Scenario, layout: Layout) {
    let consumers = scenario.ops.iter().filter(|op| op.kind.consumes_receive()).count();
    let mut receives = (0..consumers).peekable();
    let mut post = |world: &mut World, count: usize| {
        for i in receives.by_ref().take(count) {
            for node in &mut world.nodes {
                node.recv(1, i as u64, layout.receive(i), layout.slot as u32);
            }
        }
        receives.peek().is_some()
    };
    let mut more = post(world, scenario.early_receives);
    for n in 0..2 {
        let mut word = 0;
        for (i, op) in scenario.ops.iter().enumerate() {
            post_op(world, n, i, *op, word, layout);
            word = atomic_result(op.kind, word, i);
        }
    }
    while more {
        world.run_for(Duration::from_millis(3));
        more = post(world, 2);
    }
    world.run();
}

fn post_op(world: &mut World, n: usize, i: usize, op: Op, word: u64, layout: Layout) {
    let rkey = world.nodes[1 - n].keys.rkey;
    let (target, at_word) = (va(layout.target(i)), va(Layout::WORD));
    let imm = [i as u8, 0, 0, n as u8];
    let send_op = match op.kind {
        Kind::Send => SendOp::Send { imm: None },
        Kind::SendImm => SendOp::Send { imm: Some(imm) },
        Kind::Write => SendOp::Write { addr: target, rkey, imm: None },
        Kind::WriteImm => SendOp::Write { addr: target, rkey, imm: Some(imm) },
        Kind::Read => SendOp::Read { addr: target, rkey },
        Kind::FetchAdd => SendOp::FetchAdd { addr: at_word, rkey, add: i as u64 + 1 },
        Kind::CompareSwap => {
            let swap = atomic_result(op.kind, word, i);
            SendOp::CompareSwap { addr: at_word, rkey, compare: word, swap }
        }
    };
    let atomic = matches!(op.kind, Kind::FetchAdd | Kind::CompareSwap);
    let node = &mut world.nodes[n];
    let mut wr = node.wr(i as u64, send_op, layout.local(i), if atomic { 8 } else { op.size });
    wr.flags.set(SendFlags::FENCE, op.fence);
    wr.flags.set(SendFlags::SIGNALED, op.signaled);
    node.post(1, wr);
}

fn check_sends(n: usize, scenario: &Scenario, sends: &[Completion]) -> Result<(), String> {
    let opcode = |kind| match kind {
        Kind::Send | Kind::SendImm => WcOpcode::Send,
        Kind::Write | Kind::WriteImm => WcOpcode::RdmaWrite,
        Kind::Read => WcOpcode::RdmaRead,
        Kind::FetchAdd => WcOpcode::FetchAdd,
        Kind::CompareSwap => WcOpcode::CompSwap,
    };
    let wanted = (0..).zip(&scenario.ops).filter(|(_, op)| op.signaled);
    let wanted: Vec<_> = wanted.map(|(i, op)| (i, WcStatus::Success, opcode(op.kind))).collect();
    let got: Vec<_> = sends.iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
    if got == wanted { Ok(()) } else { Err(format!("send completions of node {n}: {got:?}")) }
}

fn check_receives(n: usize, scenario: &Scenario, receives: &[Completion]) -> Result<(), String> {
    let consumers = scenario.ops.iter().enumerate().filter(|(_, op)| op.kind.consumes_receive());
    let wanted: Vec<_> = (0u64..)
        .zip(consumers)
        .map(|(wr_id, (i, op))| {
            let imm = if op.kind == Kind::Send { [0; 4] } else { [i as u8, 0, 0, 1 - n as u8] };
            let flags = if op.kind == Kind::Send { WcFlags::empty() } else { WcFlags::WITH_IMM };
            let opcode = if op.kind == Kind::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
            (wr_id, WcStatus::Success, opcode, op.size, imm, flags)
        })
        .collect();
    let got: Vec<_> =
        receives.iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len, c.imm_or_key, c.flags)).collect();
    if got == wanted { Ok(()) } else { Err(format!("receive completions of node {n}: {got:?}")) }
}

fn check_word(node: &Node, scenario: &Scenario) -> Result<(), String> {
    let last = scenario.ops.iter().enumerate().fold(0, |word, (i, op)| atomic_result(op.kind, word, i));
    let found = u64::from_le_bytes(node.read(Layout::WORD, 8).try_into().unwrap_or_default());
    if found == last { Ok(()) } else { Err(format!("the word is {found}, not {last}")) }
}
