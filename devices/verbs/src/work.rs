//! Work requests and completions.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::types::saved_as_bits;
use crate::{Access, AddressVector, CqId, PageList, QpId, Qpn};

/// One element of a scatter/gather list, as the guest wrote it: nothing about it has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sge {
    /// Address inside the region `lkey` names.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// A scatter/gather list.
pub type SgeList = SmallVec<[Sge; 2]>;

bitflags::bitflags! {
    /// Modifiers of a send work request, with the values of `enum ib_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(try_from = "u32", into = "u32")]
    pub struct SendFlags: u32 {
        /// Wait until earlier reads and atomics have completed.
        const FENCE = 1;
        /// Complete visibly even on success.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
    }
}

/// Kind of a send work request, without operands; completions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// RDMA write.
    RdmaWrite,
    /// RDMA write that also consumes a receive and delivers immediate data.
    RdmaWriteImm,
    /// Send.
    Send,
    /// Send with immediate data.
    SendImm,
    /// RDMA read.
    RdmaRead,
    /// 64-bit compare and swap.
    CompareSwap,
    /// 64-bit fetch and add.
    FetchAdd,
    /// Send that invalidates a key of the receiver.
    SendInv,
    /// Invalidation of an own key.
    LocalInv,
    /// Fast registration.
    FastReg,
}

/// Pages and rights that a fast-registration work request gives to a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastReg {
    /// Key to register, with the variant byte it gets.
    pub key: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Length in bytes.
    pub length: u32,
    /// Rights.
    pub access: Access,
    /// Pages.
    pub pages: PageList,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdAddress {
    /// Path.
    pub av: AddressVector,
    /// Receiving queue pair.
    pub qpn: Qpn,
    /// Queue key. A set top bit selects the sending queue pair's own key.
    pub qkey: u32,
}

/// Operation and operands of a send work request. Immediate data is in wire (big-endian) byte order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SendOp {
    /// Send to the connected peer.
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// Send to the connected peer and invalidate its key.
    SendInv {
        /// The peer's key.
        rkey: u32,
    },
    /// Datagram.
    UdSend {
        /// Receiver.
        to: UdAddress,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA write.
    Write {
        /// First remote address.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA read.
    Read {
        /// First remote address.
        addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Compare and swap of eight bytes.
    CompareSwap {
        /// Remote address, 8-aligned.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch and add of eight bytes.
    FetchAdd {
        /// Remote address, 8-aligned.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Value to add.
        add: u64,
    },
    /// Invalidation of an own fast-registration key.
    LocalInv {
        /// The key.
        key: u32,
    },
    /// Fast registration.
    FastReg(Box<FastReg>),
    /// A request the device model could not make sense of; it completes with the given status when its turn comes.
    Bad(WcStatus),
}

impl SendOp {
    /// The opcode its completion carries; a bad request counts as a send.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Send { imm: None } | Self::UdSend { imm: None, .. } | Self::Bad(_) => Opcode::Send,
            Self::Send { imm: Some(_) } | Self::UdSend { imm: Some(_), .. } => Opcode::SendImm,
            Self::SendInv { .. } => Opcode::SendInv,
            Self::Write { imm: None, .. } => Opcode::RdmaWrite,
            Self::Write { imm: Some(_), .. } => Opcode::RdmaWriteImm,
            Self::Read { .. } => Opcode::RdmaRead,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
            Self::LocalInv { .. } => Opcode::LocalInv,
            Self::FastReg(_) => Opcode::FastReg,
        }
    }
}

/// A send work request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendWr {
    /// The poster's name for it.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Modifiers. The device model sets [`SendFlags::SIGNALED`] on every request of a queue that signals all.
    pub flags: SendFlags,
    /// Local memory.
    pub sges: SgeList,
}

/// A receive work request. One the device model could not make sense of has `bad` set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecvWr {
    /// The poster's name for it.
    pub wr_id: u64,
    /// Local memory.
    pub sges: SgeList,
    /// Status to complete with, without receiving anything, when its turn comes.
    pub bad: Option<WcStatus>,
}

/// Completion status, with the values of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WcStatus {
    /// Success.
    Success = 0,
    /// Local length error.
    LocLenErr = 1,
    /// Local queue pair operation error.
    LocQpOpErr = 2,
    /// Local protection error.
    LocProtErr = 4,
    /// Flushed in the error state.
    WrFlushErr = 5,
    /// Memory management operation error.
    MwBindErr = 6,
    /// Bad response.
    BadRespErr = 7,
    /// Local access error.
    LocAccessErr = 8,
    /// Remote invalid request.
    RemInvReqErr = 9,
    /// Remote access error.
    RemAccessErr = 10,
    /// Remote operation error.
    RemOpErr = 11,
    /// Transport retry counter exceeded.
    RetryExcErr = 12,
    /// RNR retry counter exceeded.
    RnrRetryExcErr = 13,
    /// Fatal error.
    FatalErr = 19,
    /// General error.
    GeneralErr = 21,
}

impl WcStatus {
    /// Decodes the verbs value. What only transports other than RoCE can raise is a general error.
    pub const fn from_verbs(value: u32) -> Self {
        match value {
            0 => Self::Success,
            1 => Self::LocLenErr,
            2 => Self::LocQpOpErr,
            4 => Self::LocProtErr,
            5 => Self::WrFlushErr,
            6 => Self::MwBindErr,
            7 => Self::BadRespErr,
            8 => Self::LocAccessErr,
            9 => Self::RemInvReqErr,
            10 => Self::RemAccessErr,
            11 => Self::RemOpErr,
            12 => Self::RetryExcErr,
            13 => Self::RnrRetryExcErr,
            19 => Self::FatalErr,
            _ => Self::GeneralErr,
        }
    }
}

/// What a completion is about, with the values of `enum ib_wc_opcode` of the PVRDMA ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WcOpcode {
    /// Send of any kind.
    Send = 0,
    /// RDMA write of any kind.
    RdmaWrite = 1,
    /// RDMA read.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Local invalidation.
    LocalInv = 7,
    /// Fast registration.
    FastRegMr = 8,
    /// Receive of a send.
    Recv = 128,
    /// Receive consumed by an RDMA write with immediate data.
    RecvRdmaWithImm = 129,
}

impl From<Opcode> for WcOpcode {
    fn from(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Send | Opcode::SendImm | Opcode::SendInv => Self::Send,
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => Self::RdmaWrite,
            Opcode::RdmaRead => Self::RdmaRead,
            Opcode::CompareSwap => Self::CompSwap,
            Opcode::FetchAdd => Self::FetchAdd,
            Opcode::LocalInv => Self::LocalInv,
            Opcode::FastReg => Self::FastRegMr,
        }
    }
}

bitflags::bitflags! {
    /// What else a completion tells, with the values of `enum ib_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(try_from = "u32", into = "u32")]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer are reserved for a global route header.
        const GRH = 1;
        /// `imm_or_key` holds immediate data.
        const WITH_IMM = 1 << 1;
        /// `imm_or_key` holds an invalidated key.
        const WITH_INVALIDATE = 1 << 2;
        /// `network_hdr_type` is valid.
        const WITH_NETWORK_HDR_TYPE = 1 << 6;
    }
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The poster's name for the request.
    pub wr_id: u64,
    /// Completion queue it belongs on.
    pub cq: CqId,
    /// Queue pair that executed it, also for a request from a shared receive queue.
    pub qp: QpId,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received or read; includes the 40 reserved bytes of a datagram.
    pub byte_len: u32,
    /// Immediate data in wire byte order, or the invalidated key in native order as bytes (`u32::to_le_bytes`).
    pub imm_or_key: [u8; 4],
    /// Sender of a datagram.
    pub src_qp: Qpn,
    /// Which fields are valid.
    pub flags: WcFlags,
    /// P_Key table index a datagram came in by.
    pub pkey_index: u16,
    /// 1 for IPv4, 2 for IPv6 (`enum rdma_network_type` of RoCE v2).
    pub network_hdr_type: u8,
    /// Whether the sender asked for a solicited event, or the request failed.
    pub solicited: bool,
}

impl Completion {
    /// One that says no more than how a request ended. Failures are solicited.
    pub const fn new(qp: QpId, cq: CqId, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Self {
        Self {
            wr_id,
            cq,
            qp,
            status,
            opcode,
            byte_len: 0,
            imm_or_key: [0; 4],
            src_qp: Qpn(0),
            flags: WcFlags::empty(),
            pkey_index: 0,
            network_hdr_type: 0,
            solicited: !matches!(status, WcStatus::Success),
        }
    }
}

saved_as_bits!(SendFlags, WcFlags);
