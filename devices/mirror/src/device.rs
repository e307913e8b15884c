//! The host device as the mirror sees it.

use std::io;

use verbs::{
    AddressVector, Gid, Keys, Limits, MrInit, PageList, QpAttr, QpAttrMask, QpCap, QpType, Qpn, SendFlags,
    SendOp, Sge, SrqAttr, WcStatus,
};

/// An RDMA device of the host.
///
/// Objects end when they are dropped, and an object keeps alive what it was made of. Errors carry the errno that
/// libibverbs gave. Only [`Device::modify_qp`], [`Device::create_ah`] and [`Device::gid_index`] may wait, while the kernel
/// resolves an address.
pub trait Device: Send {
    /// A protection domain.
    type Pd: Send;
    /// A memory region.
    type Mr: Send;
    /// A completion queue.
    type Cq: Send;
    /// A shared receive queue.
    type Srq: Send;
    /// A queue pair.
    type Qp: Send;
    /// An address handle.
    type Ah: Send + Sync;

    /// What the device can do at most.
    fn limits(&self) -> Limits;

    /// Makes a protection domain.
    fn create_pd(&mut self) -> io::Result<Self::Pd>;

    /// Registers guest pages, without copying them.
    fn register_mr(&mut self, pd: &Self::Pd, init: &MrInit, pages: &PageList)
    -> io::Result<(Self::Mr, Keys)>;

    /// Makes a completion queue of at least `depth` entries; its events carry `tag`.
    fn create_cq(&mut self, depth: u32, tag: u32) -> io::Result<Self::Cq>;

    /// Makes a shared receive queue; its events carry `tag`.
    fn create_srq(&mut self, pd: &Self::Pd, attr: SrqAttr, tag: u32) -> io::Result<Self::Srq>;

    /// Arms the limit event of a shared receive queue.
    fn set_srq_limit(&mut self, srq: &Self::Srq, limit: u32) -> io::Result<()>;

    /// The limit of a shared receive queue; 0 after its event.
    fn srq_limit(&self, srq: &Self::Srq) -> io::Result<u32>;

    /// Makes a queue pair; its events carry `tag`.
    fn create_qp(&mut self, parts: &QpParts<'_, Self>, tag: u32) -> io::Result<(Self::Qp, Qpn)>;

    /// Modifies a queue pair. Row `sgid_index` of the host's GID table takes the place of the guest's.
    fn modify_qp(&mut self, qp: &Self::Qp, attr: &QpAttr, mask: QpAttrMask, sgid_index: u8)
    -> io::Result<()>;

    /// Attributes of a queue pair. Its path is without meaning.
    fn query_qp(&self, qp: &Self::Qp) -> io::Result<QpAttr>;

    /// Makes an address handle that sends from row `sgid_index` of the host's GID table.
    fn create_ah(&mut self, pd: &Self::Pd, av: &AddressVector, sgid_index: u8) -> io::Result<Self::Ah>;

    /// Posts a send work request.
    fn post_send(&mut self, qp: &Self::Qp, wr: &HostSend<'_, Self::Ah>) -> io::Result<()>;

    /// Posts a receive work request.
    fn post_recv(&mut self, qp: &Self::Qp, wr_id: u64, sges: &[Sge]) -> io::Result<()>;

    /// Posts a receive work request to a shared receive queue.
    fn post_srq_recv(&mut self, srq: &Self::Srq, wr_id: u64, sges: &[Sge]) -> io::Result<()>;

    /// Appends at most a batch of completions to `out`.
    fn poll_cq(&mut self, cq: &Self::Cq, out: &mut Vec<HostCompletion>) -> io::Result<()>;

    /// Asks for an event at the next completion. Completions that are there already raise none.
    fn arm_cq(&mut self, cq: &Self::Cq) -> io::Result<()>;

    /// Appends at most a batch of the events that wait to `out`. Returns `true` when there may be more.
    fn events(&mut self, out: &mut Vec<HostEvent>) -> bool;

    /// The row of the host's GID table that holds an address for RoCE v2. Waits a moment for one that was just added.
    fn gid_index(&self, gid: Gid) -> Option<u8>;

    /// An address the device has in any case, and its row.
    fn own_gid(&self) -> Option<(Gid, u8)>;
}

/// What a queue pair is made of.
pub struct QpParts<'a, D: Device + ?Sized> {
    /// Transport service, not [`QpType::Gsi`].
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: &'a D::Pd,
    /// Completions of send work requests.
    pub send_cq: &'a D::Cq,
    /// Completions of receive work requests.
    pub recv_cq: &'a D::Cq,
    /// Shared receive queue.
    pub srq: Option<&'a D::Srq>,
    /// Queue sizes.
    pub cap: QpCap,
}

/// A send work request for the host.
#[derive(Debug)]
pub struct HostSend<'a, A> {
    /// Name of the request.
    pub wr_id: u64,
    /// Operation; never one of the guest's kernel alone, nor a bad one.
    pub op: &'a SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Local memory.
    pub sges: &'a [Sge],
    /// Where a datagram goes.
    pub ah: Option<&'a A>,
}

/// A completion of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCompletion {
    /// Name of the request.
    pub wr_id: u64,
    /// How it ended. Unless it succeeded only `qpn` is valid of the rest.
    pub status: WcStatus,
    /// Queue pair that executed it.
    pub qpn: Qpn,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in wire byte order.
    pub imm: Option<[u8; 4]>,
    /// Whether an RDMA write with immediate data consumed the receive.
    pub by_write: bool,
    /// Sender of a datagram.
    pub src_qp: Qpn,
    /// Whether the buffer starts with a global route header.
    pub grh: bool,
}

/// Something that happened on the host, to the object of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// An armed completion queue has an entry.
    Completion(u32),
    /// A completion queue failed.
    CqErr(u32),
    /// A queue pair failed.
    QpFatal(u32),
    /// A request violated the transport.
    QpReqErr(u32),
    /// A request violated access rights.
    QpAccessErr(u32),
    /// The first message arrived before the connection was established.
    CommEst(u32),
    /// A send queue is drained.
    SqDrained(u32),
    /// A queue pair in error took its last receive from its shared receive queue.
    LastWqeReached(u32),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(u32),
    /// A shared receive queue failed.
    SrqErr(u32),
    /// The port came up or went down.
    Port {
        /// Which of both.
        up: bool,
    },
    /// The device is gone, or waits to go until it is closed.
    DeviceFatal,
}
