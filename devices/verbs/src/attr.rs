//! Queue pair attributes.

use device_model::net::MacAddr;
use serde::{Deserialize, Serialize};

use crate::{Access, Gid, Mtu, Qpn};

/// Queue pair state, with the values of `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpState {
    /// Reset.
    #[default]
    Reset = 0,
    /// Initialised: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

impl QpState {
    /// Decodes the verbs value, 0 to 6.
    pub const fn from_verbs(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }
}

bitflags::bitflags! {
    /// Which attributes a modification sets, with the values of `enum ib_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path; not supported.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state; not supported.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`; not supported.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
    }
}

impl QpAttrMask {
    /// What a reliable connection needs on its way from RESET to INIT.
    pub const RC_INIT: Self = Self::STATE.union(Self::PKEY_INDEX).union(Self::PORT).union(Self::ACCESS_FLAGS);
    /// What it needs from INIT to RTR.
    pub const RC_RTR: Self = Self::STATE
        .union(Self::AV)
        .union(Self::PATH_MTU)
        .union(Self::DEST_QPN)
        .union(Self::RQ_PSN)
        .union(Self::MAX_DEST_RD_ATOMIC)
        .union(Self::MIN_RNR_TIMER);
    /// What it needs from RTR to RTS.
    pub const RC_RTS: Self = Self::STATE
        .union(Self::TIMEOUT)
        .union(Self::RETRY_CNT)
        .union(Self::RNR_RETRY)
        .union(Self::SQ_PSN)
        .union(Self::MAX_QP_RD_ATOMIC);
}

/// A path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// Peer.
    pub dgid: Gid,
    /// Row of the own GID table to send from.
    pub sgid_index: u8,
    /// IPv6 flow label, 20 bits; also the entropy of the UDP source port when not zero.
    pub flow_label: u32,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The peer's or the next router's Ethernet address, resolved by the guest.
    pub dmac: MacAddr,
}

/// Queue sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCap {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Elements of a send scatter/gather list.
    pub max_send_sge: u32,
    /// Elements of a receive scatter/gather list.
    pub max_recv_sge: u32,
}

/// Attributes of a queue pair, those a modification names valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttr {
    /// State to move to, or that the queue pair is in.
    pub state: QpState,
    /// State the poster believes the queue pair to be in.
    pub cur_state: QpState,
    /// Whether draining raises an event.
    pub sqd_async_notify: bool,
    /// Whether a drain is under way; only reported.
    pub sq_draining: bool,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Queue key of a datagram queue pair.
    pub qkey: u32,
    /// Next expected PSN, 24 bits.
    pub rq_psn: u32,
    /// Next PSN to send, 24 bits.
    pub sq_psn: u32,
    /// Connected peer.
    pub dest_qpn: Qpn,
    /// Remote operations allowed.
    pub access: Access,
    /// Row of the P_Key table.
    pub pkey_index: u16,
    /// Outstanding reads and atomics as requester.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code, 5 bits.
    pub min_rnr_timer: u8,
    /// Port, 1.
    pub port: u8,
    /// Acknowledge time-out: 4.096 µs · 2^timeout, 5 bits, 0 waits for ever.
    pub timeout: u8,
    /// Transport retries, 3 bits.
    pub retry_cnt: u8,
    /// RNR retries, 3 bits, 7 retries for ever.
    pub rnr_retry: u8,
    /// Path.
    pub av: AddressVector,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            sqd_async_notify: false,
            sq_draining: false,
            path_mtu: Mtu::B1024,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: Qpn(0),
            access: Access::empty(),
            pkey_index: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            av: AddressVector::default(),
        }
    }
}
