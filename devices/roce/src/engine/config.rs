//! Tunables of an engine.

use std::time::Duration;

use verbs::{Limits, Mtu};

use super::mr::MAX_MR;

/// Most queue pairs: their number is part of the number on the wire.
pub(super) const MAX_QP: u32 = 65_535;
/// Longest message in bytes (IBTA 9.7.4.1.4).
pub(super) const MAX_MESSAGE: u32 = 1 << 31;

/// How an engine behaves where the specification leaves a choice.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is advertised and enforced.
    pub limits: Limits,
    /// Chooses keys and queue pair numbers; nobody else should know it.
    pub secret: u64,
    /// Most unacknowledged packets of a queue pair.
    pub window_packets: u32,
    /// Most unacknowledged bytes of a queue pair, in full packets; a window is never less than 16 packets.
    pub window_bytes: u32,
    /// Bytes asked for by one READ request packet; longer READs are asked for in several. Multiple of all path MTUs.
    pub read_chunk: u32,
    /// Shortest time to wait for an acknowledgement, whatever the queue pair asks for: a software peer needs to be scheduled.
    pub min_ack_timeout: Duration,
    /// Silence after which a queue pair asks whether an acknowledgement was lost; twice as long each time.
    pub probe_after: Duration,
    /// Shortest time between two congestion notifications of a queue pair.
    pub cnp_interval: Duration,
    /// Packets a queue pair may send before another one has its turn.
    pub burst: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: LIMITS,
            secret: 0,
            window_packets: 512,
            window_bytes: 512 << 10,
            read_chunk: 256 << 10,
            min_ack_timeout: Duration::from_millis(1),
            probe_after: Duration::from_millis(10),
            cnp_interval: Duration::from_micros(50),
            burst: 16,
        }
    }
}

const LIMITS: Limits = Limits {
    max_qp: MAX_QP,
    max_qp_wr: 16_384,
    max_sge: 16,
    max_cq: 65_536,
    max_cqe: 1 << 20,
    max_mr: MAX_MR,
    max_mr_size: 1 << 40,
    max_pd: 65_536,
    max_srq: 65_536,
    max_srq_wr: 16_384,
    max_srq_sge: 16,
    max_dest_rd_atomic: 16,
    max_rd_atomic: 16,
    gid_table_len: 128,
    max_fast_reg_pages: 128,
    max_msg_size: MAX_MESSAGE,
    active_mtu: Mtu::B4096,
};
