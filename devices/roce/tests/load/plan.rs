//! What a load is made of, chosen by a seed.

use std::ops::Range;
use std::time::Duration;

use roce::engine::Config;
use verbs::Mtu;

use crate::common::{Carrier, Connection, Faults, Rng};

/// Most ends of connections.
pub const MAX_ENDS: usize = 8;
/// Bytes of a slot: room for a message and the gaps between its pieces.
pub const SLOT: usize = 8192;
/// Longest message.
pub const MAX_MESSAGE: usize = SLOT - 256;
/// Slots of an end's requests, and of a pool's receives.
pub const SLOTS: usize = 12;
/// Bytes of the part of its peer's memory that an end works on.
pub const TARGET: usize = 8 * 4096;

const PAGE: usize = 4096;
const RING: usize = SLOTS * SLOT;
/// First byte after what ends and pools use.
const DATAGRAMS: usize = PAGE + MAX_ENDS * (2 * RING + TARGET);
/// Bytes of an area: a page for the shared word, then what belongs to each end, then to datagrams.
pub const AREA: usize = DATAGRAMS + 2 * RING;

/// Slot `i` of the requests of an end, in its own node's area.
pub const fn request_slot(end: usize, i: usize) -> usize {
    PAGE + end * (2 * RING + TARGET) + i * SLOT
}

/// Slot `i` of the receives of a pool.
pub const fn receive_slot(pool: usize, i: usize) -> usize {
    request_slot(pool, SLOTS + i)
}

/// The part of its peer's area that an end works on.
pub const fn target(end: usize) -> Range<usize> {
    let start = request_slot(end, 2 * SLOTS);
    start..start + TARGET
}

/// Slot `i` of the datagrams a node sends.
pub const fn outgoing_mail(i: usize) -> usize {
    DATAGRAMS + i * SLOT
}

/// Slot `i` of the datagrams a node receives.
pub const fn incoming_mail(i: usize) -> usize {
    DATAGRAMS + RING + i * SLOT
}

/// How bad the wire is, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    /// Frames that a congested router marks.
    pub marks: u64,
    /// Channels are beside it, and one comes or goes in this many percent of steps; none goes for 0.
    pub direct: Option<u64>,
    /// Nothing passes any more from the middle of the load on.
    pub dies: bool,
}

impl Wire {
    pub const GOOD: Self =
        Self { loss: 0, duplication: 0, reordering: 0, marks: 0, direct: None, dies: false };

    pub const fn is_good(self) -> bool {
        self.loss + self.duplication + self.reordering == 0 && self.direct.is_none() && !self.dies
    }

    /// Whether a queue pair may run out of retries.
    pub const fn is_terrible(self) -> bool {
        self.loss >= 10 || self.dies
    }

    pub fn carrier(self, seed: u64) -> Carrier {
        match self.direct {
            None => Carrier::Wire,
            Some(0) => Carrier::Direct,
            Some(percent) => Carrier::Changing(percent, Rng::new(seed)),
        }
    }

    pub fn faults(self, seed: u64) -> Faults {
        let Self { loss, duplication, reordering, .. } = self;
        Faults { loss, duplication, reordering, rng: Rng::new(seed) }
    }
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub wire: Wire,
    /// Nodes at both ends of each connection; some connect a node to itself.
    pub connections: Vec<[usize; 2]>,
    pub connection: Connection,
    pub config: Config,
    /// Whether all ends of each node take their receives from one queue.
    pub shared_receives: [bool; 2],
    pub datagrams: bool,
    pub rounds: u32,
    /// In this round this end posts a request that must fail.
    pub doom: Option<(u32, usize)>,
}

impl Plan {
    pub fn new(seed: u64, wire: Wire) -> Self {
        let mut rng = Rng::new(seed);
        let mtu = Mtu::ALL[rng.below(5) as usize];
        let connections: Vec<_> = (0..1 + rng.below(MAX_ENDS as u64 / 2))
            .map(|_| if rng.percent(15) { [rng.below(2) as usize; 2] } else { [0, 1] })
            .collect();
        let connection = Connection {
            mtu,
            psn: (0xff_ff00 + rng.below(0x200) as u32) & 0xff_ffff,
            timeout: 8 + rng.below(4) as u8,
            retry_cnt: if wire.loss >= 10 { 7 } else { 4 + rng.below(4) as u8 },
            rnr_retry: if rng.percent(15) { rng.below(3) as u8 } else { 7 },
            min_rnr_timer: 1 + rng.below(12) as u8,
            rd_atomic: 1 + rng.below(8) as u8,
            gid_index: rng.below(2) as u8,
            ..Connection::default()
        };
        let config = Config {
            window_packets: 16 + rng.below(100) as u32,
            read_chunk: 4096 << rng.below(3),
            probe_after: Duration::from_millis(1 + rng.below(10)),
            burst: 1 + rng.below(16) as u32,
            ..Config::default()
        };
        let rounds = 60;
        let ends = 2 * connections.len() as u64;
        let doom = rng.percent(20).then(|| (rounds / 2, rng.below(ends) as usize));
        let shared_receives = [rng.percent(40), rng.percent(40)];
        let datagrams = rng.percent(70);
        Self { seed, wire, connections, connection, config, shared_receives, datagrams, rounds, doom }
    }
}
