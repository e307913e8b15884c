//! What must come of requests, by the verbs alone. The model knows memory, queues and completions, and nothing of packets:
//! what it asks of an engine is asked of any RDMA device.
//!
//! Requests of one queue pair take effect in order. So the model carries each out when it is posted, in memory of its own,
//! and keeps it in a log until the device says that it is done; then the device's memory must hold what the model's holds.

mod ending;
mod observe;

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use verbs::{AsyncEvent, CqId, QpId, Qpn, SrqId, WcFlags, WcOpcode, WcStatus};

use crate::area::{Area, Pieces, gather, scatter, total};

/// Place of the word that all queue pairs count on.
pub const COUNTER: usize = 0;
/// Bytes of an atomic operation.
const WORD: usize = 8;

/// What the end of a send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    Immediate([u8; 4]),
    Invalidate(u32),
}

/// What a request does. Places are in the peer's area.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Send(Extra),
    Write {
        at: usize,
        imm: Option<[u8; 4]>,
    },
    Read {
        at: usize,
    },
    Add {
        at: usize,
        add: u64,
    },
    Swap {
        at: usize,
        compare: u64,
        swap: u64,
    },
    /// Adds to the word that all queue pairs add to.
    Count {
        add: u64,
    },
    FastReg,
    LocalInv,
    /// Must end with this status.
    Doomed(WcStatus, WcOpcode),
    /// A send that no receive has room for.
    TooLong,
}

impl Action {
    /// How it must end, if it cannot succeed.
    pub const fn fate(self) -> Option<WcStatus> {
        match self {
            Self::Doomed(status, _) => Some(status),
            Self::TooLong => Some(WcStatus::RemInvReqErr),
            _ => None,
        }
    }

    const fn opcode(self) -> WcOpcode {
        match self {
            Self::Send(_) | Self::TooLong => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::Add { .. } | Self::Count { .. } => WcOpcode::FetchAdd,
            Self::Swap { .. } => WcOpcode::CompSwap,
            Self::FastReg => WcOpcode::FastRegMr,
            Self::LocalInv => WcOpcode::LocalInv,
            Self::Doomed(_, opcode) => opcode,
        }
    }
}

/// A posted send work request.
#[derive(Clone, Debug)]
pub struct Request {
    pub wr_id: u64,
    pub action: Action,
    /// Local memory.
    pub pieces: Pieces,
    pub signaled: bool,
    pub solicited: bool,
    /// It reaches the peer's memory by a fast-registration key.
    pub via_fast: bool,
}

/// A request whose end is not known, with what it changes.
#[derive(Debug)]
struct Entry {
    request: Request,
    number: u64,
    /// Bytes that it puts in the peer's area.
    remote: Option<(usize, Vec<u8>)>,
    /// Bytes that it puts in its own pieces.
    result: Option<Vec<u8>>,
    is_message: bool,
}

impl Entry {
    fn remote_range(&self) -> Option<Range<usize>> {
        self.remote.as_ref().map(|(at, bytes)| *at..at + bytes.len())
    }
}

/// What the peer must be told of a request that takes a receive.
#[derive(Debug)]
struct Message {
    number: u64,
    opcode: WcOpcode,
    len: usize,
    /// What its receive must hold; nothing of a write.
    data: Vec<u8>,
    imm_or_key: [u8; 4],
    flags: WcFlags,
    solicited: bool,
    /// The receive must end like this.
    status: WcStatus,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct End {
    pub node: usize,
    pub qp: QpId,
    pub qpn: Qpn,
    /// Its peer, by position among all ends.
    pub peer: usize,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub pool: usize,
    /// Part of the peer's area that it works on.
    pub target: Range<usize>,
}

/// What one end has asked of the other.
#[derive(Debug)]
struct Stream {
    end: End,
    log: VecDeque<Entry>,
    messages: VecDeque<Message>,
    posted: u64,
    retired: u64,
    /// Requests before this number have reached the peer's receives.
    delivered: u64,
    /// Requests that ended unfinished.
    unfinished: Vec<Entry>,
    failed: bool,
    receives_flushed: bool,
}

/// A queue of receives, of one queue pair or shared.
#[derive(Debug)]
pub struct Pool {
    pub node: usize,
    pub srq: Option<SrqId>,
    pub users: usize,
    pub waiting: VecDeque<(u64, Pieces)>,
}

/// What else may happen.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The wire may be so bad that a queue pair runs out of retries.
    pub gives_up: bool,
    /// Requests that wait long for a receive may fail.
    pub runs_out_of_receives: bool,
    /// A refusal, which is said once and by a queue pair that says nothing after it, may be lost or come too early.
    pub loses_refusals: bool,
}

pub struct Model {
    tolerance: Tolerance,
    /// Memory as it is once all that is known to be done is done.
    shadow: [Vec<u8>; 2],
    /// Memory as it is once all that was posted is done.
    ahead: [Vec<u8>; 2],
    streams: Vec<Stream>,
    pub pools: Vec<Pool>,
    /// Originals and summands of the word all count on.
    counts: [Vec<(u64, u64)>; 2],
    events: Vec<(usize, AsyncEvent)>,
    pub completions: u64,
    /// Statuses that were seen.
    pub statuses: HashSet<WcStatus>,
}

type Check = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Check {
    if got == wanted { Ok(()) } else { Err(format!("{what} is {got:?} and should be {wanted:?}")) }
}

impl Model {
    pub fn new(tolerance: Tolerance, areas: &[Area; 2], ends: Vec<End>, pools: Vec<Pool>) -> Self {
        let stream = |end| Stream {
            end,
            log: VecDeque::new(),
            messages: VecDeque::new(),
            posted: 0,
            retired: 0,
            delivered: 0,
            unfinished: vec![],
            failed: false,
            receives_flushed: false,
        };
        let memory = || [0, 1].map(|n: usize| vec![0; areas[n].len()]);
        Self {
            tolerance,
            shadow: memory(),
            ahead: memory(),
            streams: ends.into_iter().map(stream).collect(),
            pools,
            counts: [vec![], vec![]],
            events: vec![],
            completions: 0,
            statuses: HashSet::new(),
        }
    }

    /// The program wrote to its own memory.
    pub fn store(&mut self, node: usize, at: usize, bytes: &[u8]) {
        for memory in [&mut self.shadow[node], &mut self.ahead[node]] {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Takes over what memory holds where no single content is right.
    fn adopt(&mut self, node: usize, range: Range<usize>, areas: &[Area; 2]) {
        let bytes = areas[node].read(range.clone());
        self.store(node, range.start, &bytes);
    }

    pub fn outstanding(&self, end: usize) -> usize {
        self.streams[end].log.len()
    }

    pub fn failed(&self, end: usize) -> bool {
        self.streams[end].failed
    }

    pub fn any_failed(&self) -> bool {
        self.streams.iter().any(|stream| stream.failed)
    }

    /// Whether an unfinished request uses local memory in this range.
    pub fn uses(&self, end: usize, range: &Range<usize>) -> bool {
        let overlaps = |piece: &Range<usize>| piece.start < range.end && range.start < piece.end;
        self.streams[end].log.iter().any(|entry| entry.request.pieces.iter().any(overlaps))
    }

    /// Whether an unfinished request reaches its peer by a fast-registration key.
    pub fn uses_fast_key(&self, end: usize) -> bool {
        self.streams[end].log.iter().any(|entry| entry.request.via_fast)
    }

    /// Whether an unfinished READ looks at this part of the peer's memory: who changes it must wait for that.
    pub fn is_being_read(&self, end: usize, range: &Range<usize>) -> bool {
        self.streams[end].log.iter().any(|entry| match entry.request.action {
            Action::Read { at } => at < range.end && range.start < at + total(&entry.request.pieces),
            _ => false,
        })
    }

    /// Where the result of the newest unfinished READ goes.
    pub fn last_read(&self, end: usize) -> Option<Pieces> {
        let reads = self.streams[end].log.iter().rev();
        let mut reads = reads.filter(|entry| matches!(entry.request.action, Action::Read { .. }));
        reads.next().map(|entry| entry.request.pieces.clone())
    }

    /// The word at a place of the peer, once all that was posted is done.
    pub fn word(&self, end: usize, at: usize) -> u64 {
        let node = self.peer_node(end);
        u64::from_le_bytes(self.ahead[node][at..at + WORD].try_into().unwrap())
    }

    /// Messages on their way to a pool of receives.
    pub fn expected(&self, pool: usize) -> usize {
        let to = |stream: &&Stream| self.streams[stream.end.peer].end.pool == pool;
        self.streams.iter().filter(to).map(|stream| stream.messages.len()).sum()
    }

    fn peer_node(&self, end: usize) -> usize {
        self.streams[self.streams[end].end.peer].end.node
    }

    /// A request was posted: it takes effect.
    pub fn post(&mut self, end: usize, request: Request) {
        let (node, peer) = (self.streams[end].end.node, self.peer_node(end));
        let len = total(&request.pieces);
        let data = gather(&self.ahead[node], &request.pieces, len);
        let old = |at: usize| self.word(end, at);
        let word = |value: u64| value.to_le_bytes().to_vec();
        let (remote, result) = match request.action {
            Action::Write { at, .. } => (Some((at, data.clone())), None),
            Action::Read { at } => (None, Some(self.ahead[peer][at..at + len].to_vec())),
            Action::Add { at, add } => (Some((at, word(old(at).wrapping_add(add)))), Some(word(old(at)))),
            Action::Swap { at, compare, swap } => {
                let new = if old(at) == compare { swap } else { old(at) };
                (Some((at, word(new))), Some(word(old(at))))
            }
            _ => (None, None),
        };
        if let Some((at, bytes)) = &remote {
            self.ahead[peer][*at..at + bytes.len()].copy_from_slice(bytes);
        }
        if let Some(bytes) = &result {
            scatter(&mut self.ahead[node], &request.pieces, bytes);
        }
        let stream = &mut self.streams[end];
        let message = message(&request, stream.posted, data);
        let is_message = message.is_some();
        stream.messages.extend(message);
        stream.log.push_back(Entry { request, number: stream.posted, remote, result, is_message });
        stream.posted += 1;
    }
}

/// What a request tells the peer that receives it.
fn message(request: &Request, number: u64, data: Vec<u8>) -> Option<Message> {
    let len = data.len();
    let nothing = ([0; 4], WcFlags::empty());
    let (opcode, data, (imm_or_key, flags)) = match request.action {
        Action::Send(Extra::Nothing) | Action::TooLong => (WcOpcode::Recv, data, nothing),
        Action::Send(Extra::Immediate(imm)) => (WcOpcode::Recv, data, (imm, WcFlags::WITH_IMM)),
        Action::Send(Extra::Invalidate(key)) => {
            (WcOpcode::Recv, data, (key.to_le_bytes(), WcFlags::WITH_INVALIDATE))
        }
        Action::Write { imm: Some(imm), .. } => (WcOpcode::RecvRdmaWithImm, vec![], (imm, WcFlags::WITH_IMM)),
        _ => return None,
    };
    let fails = matches!(request.action, Action::TooLong);
    let status = if fails { WcStatus::LocLenErr } else { WcStatus::Success };
    let solicited = request.solicited;
    Some(Message { number, opcode, len, data, imm_or_key, flags, solicited, status })
}
