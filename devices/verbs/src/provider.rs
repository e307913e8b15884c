//! The provider: whatever carries verbs out.

use device_model::save::{Record, RestoreError, SaveError};
use device_model::time::Instant;
use serde::{Deserialize, Serialize};

use crate::{
    Access, Completion, CqId, Gid, MrId, MrInit, Mtu, Owner, PdId, QpAttr, QpAttrMask, QpCap, QpId, QpType,
    Qpn, RecvWr, SendWr, SrqId,
};

/// What carries the packets of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Frames over the link.
    Wire,
    /// Nothing: one copy out of the memory of another machine of this host.
    Direct,
    /// Requests of this host's RDMA device, which fetch from the memory of a machine of another host.
    Tunnel,
    /// Nothing: one copy inside the memory of this machine.
    Itself,
}

/// What a provider can do at most; the device model advertises no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Elements of a scatter/gather list.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Elements of a shared receive's scatter/gather list.
    pub max_srq_sge: u32,
    /// Outstanding reads and atomics of a queue pair as responder.
    pub max_dest_rd_atomic: u8,
    /// Outstanding reads and atomics of a queue pair as requester.
    pub max_rd_atomic: u8,
    /// Rows of the GID table.
    pub gid_table_len: u16,
    /// Pages of a fast registration.
    pub max_fast_reg_pages: u32,
    /// Bytes of a message.
    pub max_msg_size: u32,
    /// Largest path MTU the link carries.
    pub active_mtu: Mtu,
}

/// Why a verb failed. Nothing has changed when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An object that does not exist.
    #[error("No such object")]
    NotFound,
    /// The number is taken.
    #[error("Object exists already")]
    Exists,
    /// Other objects depend on this one.
    #[error("Object is in use")]
    Busy,
    /// A limit of [`Limits`] or of host memory is reached.
    #[error("Out of resources")]
    Exhausted,
    /// A value outside its range, or an attribute that the operation needs or forbids.
    #[error("Invalid argument: {0}")]
    Invalid(&'static str),
    /// A transition the queue pair state machine does not have.
    #[error("Invalid state transition")]
    Transition,
    /// A feature this provider does not have.
    #[error("Not supported: {0}")]
    Unsupported(&'static str),
    /// The host device failed.
    #[error("Host device failed with error {0}")]
    Host(i32),
}

/// The keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For own work requests.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

/// A completion queue to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInit {
    /// On whose behalf.
    pub owner: Owner,
    /// Entries.
    pub depth: u32,
}

/// A shared receive queue to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Sizes and limit.
    pub attr: SrqAttr,
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqAttr {
    /// Work requests.
    pub max_wr: u32,
    /// Elements of a scatter/gather list.
    pub max_sge: u32,
    /// An event is raised once when fewer requests than this are left; 0 raises none.
    pub limit: u32,
}

/// A queue pair to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// On whose behalf.
    pub owner: Owner,
    /// Protection domain.
    pub pd: PdId,
    /// Completions of send work requests.
    pub send_cq: CqId,
    /// Completions of receive work requests.
    pub recv_cq: CqId,
    /// Shared receive queue to take receives from.
    pub srq: Option<SrqId>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Remote operations allowed from the start.
    pub access: Access,
    /// Number on the wire, for guest drivers that cannot tell it from the object's own. The provider chooses one that is
    /// hard to guess when `None`; [`Error::Exists`] when it is taken, [`Error::Unsupported`] when it cannot be had.
    pub qpn: Option<Qpn>,
}

/// A row of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Row.
    pub index: u16,
    /// Address.
    pub gid: Gid,
}

/// Something that happened to an object rather than to a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsyncEvent {
    /// The queue pair failed.
    QpFatal(QpId),
    /// A request violated the transport and the queue pair is in error.
    QpReqErr(QpId),
    /// A request violated access rights and the queue pair is in error.
    QpAccessErr(QpId),
    /// The first message arrived while the queue pair was only ready to receive.
    CommEst(QpId),
    /// The send queue is drained.
    SqDrained(QpId),
    /// A queue pair in error took its last receive from its shared receive queue.
    LastWqeReached(QpId),
    /// The shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
    /// The shared receive queue failed.
    SrqErr(SrqId),
    /// The completion queue failed, other than by [`Provider::fail_cq`].
    CqErr(CqId),
    /// The port of a host device came up or went down.
    Port {
        /// Which of both.
        up: bool,
    },
    /// The host device is gone; queue pairs have failed and none can be created.
    DeviceFatal,
}

/// What a provider reports, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderEvent {
    /// The oldest request of the send queue is finished and its ring slot free. Always precedes its completion, and is
    /// the only sign of an unsignalled one that succeeded.
    SendRetired(QpId),
    /// The oldest request of the queue pair's own receive queue is finished and its ring slot free. Always precedes its
    /// completion.
    RecvRetired(QpId),
    /// A request was taken from the shared receive queue and its ring slot is free.
    SrqRetired(SrqId),
    /// An entry for a completion queue.
    Completion(Completion),
    /// An asynchronous event.
    Async(AsyncEvent),
}

impl ProviderEvent {
    /// The queue pair it names.
    pub const fn qp(&self) -> Option<QpId> {
        match self {
            Self::SendRetired(qp) | Self::RecvRetired(qp) => Some(*qp),
            Self::Completion(completion) => Some(completion.qp),
            Self::SrqRetired(_) => None,
            Self::Async(event) => match event {
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpReqErr(qp)
                | AsyncEvent::QpAccessErr(qp)
                | AsyncEvent::CommEst(qp)
                | AsyncEvent::SqDrained(qp)
                | AsyncEvent::LastWqeReached(qp) => Some(*qp),
                AsyncEvent::SrqLimitReached(_)
                | AsyncEvent::SrqErr(_)
                | AsyncEvent::CqErr(_)
                | AsyncEvent::Port { .. }
                | AsyncEvent::DeviceFatal => None,
            },
        }
    }

    /// The shared receive queue it names.
    pub const fn srq(&self) -> Option<SrqId> {
        match self {
            Self::SrqRetired(srq)
            | Self::Async(AsyncEvent::SrqLimitReached(srq) | AsyncEvent::SrqErr(srq)) => Some(*srq),
            _ => None,
        }
    }

    /// The completion queue it names.
    pub const fn cq(&self) -> Option<CqId> {
        match self {
            Self::Completion(completion) => Some(completion.cq),
            Self::Async(AsyncEvent::CqErr(cq)) => Some(*cq),
            _ => None,
        }
    }
}

/// Carries verbs out on behalf of one device.
///
/// The caller picks object numbers ([`PdId`] and so on), the provider what goes on the wire ([`Qpn`], [`Keys`]). One thread
/// at a time calls it. No call blocks, but for the kernel of a host device that resolves an address.
///
/// # Order
///
/// Events come out of [`Provider::poll_event`] in the order they happened; a completion comes after the data it speaks of is
/// in guest memory. After `destroy_qp`, `destroy_srq` or `deregister_mr` returns, no byte of their memory is touched and no
/// event names them, not even one that waited to be polled.
pub trait Provider: Send {
    /// What it can do at most; constant but for `active_mtu`.
    fn limits(&self) -> Limits;

    /// Creates a protection domain.
    fn create_pd(&mut self, pd: PdId, owner: Owner) -> Result<(), Error>;

    /// Destroys a protection domain; [`Error::Busy`] while anything uses it.
    fn destroy_pd(&mut self, pd: PdId) -> Result<(), Error>;

    /// Registers memory.
    fn register_mr(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error>;

    /// Ends a registration.
    fn deregister_mr(&mut self, mr: MrId) -> Result<(), Error>;

    /// Creates a completion queue.
    fn create_cq(&mut self, cq: CqId, init: CqInit) -> Result<(), Error>;

    /// Destroys a completion queue; [`Error::Busy`] while a queue pair uses it.
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error>;

    /// The completion queue overflowed: its queue pairs go to the error state, their events name the queue no more.
    fn fail_cq(&mut self, cq: CqId);

    /// Creates a shared receive queue.
    fn create_srq(&mut self, srq: SrqId, init: SrqInit) -> Result<(), Error>;

    /// Sets the limit of a shared receive queue and arms its event.
    fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), Error>;

    /// Attributes; the limit is 0 after its event.
    fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error>;

    /// Destroys a shared receive queue; [`Error::Busy`] while a queue pair uses it.
    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Error>;

    /// Creates a queue pair in the reset state and says its number. [`QpType::Gsi`] is [`Qpn::GSI`].
    fn create_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error>;

    /// Modifies a queue pair. The attributes a transition needs and allows are those of the InfiniBand specification
    /// (table 91 of volume 1, as RoCE applies it). Moving to reset drops all work requests without a trace.
    fn modify_qp(&mut self, now: Instant, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error>;

    /// Current attributes.
    fn query_qp(&self, qp: QpId) -> Result<QpAttr, Error>;

    /// Destroys a queue pair and its work requests.
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), Error>;

    /// Sets a row of the GID table; replaces what was there. An address may stand in several rows.
    fn set_gid(&mut self, entry: GidEntry) -> Result<(), Error>;

    /// Empties a row of the GID table. Queue pairs that use it keep sending from the address they resolved.
    fn clear_gid(&mut self, index: u16) -> Result<(), Error>;

    /// Queues a send work request. Refused with [`Error::Exhausted`] beyond `max_send_wr` unfinished ones, with
    /// [`Error::Transition`] in the states reset, init and ready-to-receive; flushed in the error states.
    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), Error>;

    /// Queues a receive work request. Refused with [`Error::Exhausted`] beyond `max_recv_wr` unfinished ones, with
    /// [`Error::Transition`] in the reset state; flushed in the error state.
    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), Error>;

    /// Queues a receive work request on a shared queue. Refused with [`Error::Exhausted`] beyond `max_wr` waiting ones.
    fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), Error>;

    /// Says whether the port carries packets, as it does at first. While it does not, those that leave and those that
    /// arrive are lost, but for the device's own to itself.
    fn set_port(&mut self, up: bool) {
        let _ = up;
    }

    /// Whether a received Ethernet frame is for this provider rather than for the paired network interface: RoCE v2 to
    /// one of its addresses.
    fn claims(&self, frame: &[u8]) -> bool;

    /// Takes a received Ethernet frame that it claims.
    fn receive(&mut self, now: Instant, frame: &[u8]);

    /// Does a bounded amount of the work that is due: sends packets, runs timers. Returns `true` when more is due at once.
    fn advance(&mut self, now: Instant) -> bool;

    /// Nothing more is due: whoever drives the provider is about to wait, and wants to be woken. Returns `false` when
    /// something has come already, so that [`Provider::advance`] must be called again.
    fn rest(&mut self) -> bool {
        true
    }

    /// What carries the packets of a connected queue pair at the moment; `None` for others.
    fn carrier(&self, qp: QpId) -> Option<Carrier> {
        let _ = qp;
        None
    }

    /// When [`Provider::advance`] must be called next even if nothing else happens.
    fn next_deadline(&self) -> Option<Instant>;

    /// The next thing that happened.
    fn poll_event(&mut self) -> Option<ProviderEvent>;

    /// What it has counted since it was made, each under a name that never changes its meaning.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Drops all objects, GIDs and waiting events.
    fn reset(&mut self);

    /// Saves all objects, what they are in the middle of, and waiting events. Packets that are on their way inside the
    /// provider are lost, as packets are. Nothing is written to guest memory afterwards, unless the device goes on.
    ///
    /// # Errors
    ///
    /// [`SaveError::Unsupported`] from a provider whose state cannot be had, as is the default.
    fn save(&mut self, now: Instant) -> Result<Record, SaveError> {
        let _ = now;
        Err(SaveError::Unsupported("this provider of RDMA keeps its state in a host device".into()))
    }

    /// Restores what [`Provider::save`] saved into a provider without objects: numbers on the wire and keys are what they
    /// were, timers have the time left that they had. There are no objects when it fails.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] when the record is not of this provider, damaged, or asks for more than this provider has.
    fn restore(&mut self, now: Instant, record: &Record) -> Result<(), RestoreError> {
        let _ = (now, record);
        Err(RestoreError::Unsupported("this provider of RDMA keeps its state in a host device".into()))
    }
}
