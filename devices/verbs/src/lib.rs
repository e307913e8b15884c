//! RDMA verbs as plain types, and the [`Provider`] that carries them out.
//!
//! This is the seam between a guest-facing device model, which owns rings and commands, and whatever does the RDMA: the
//! userspace engine, or a host device the objects are mirrored onto. Types have the values of the InfiniBand
//! Architecture Specification (IBTA volume 1) where it defines any, so that they can be cast to and from guest ABIs.
//!
//! What it does not do: read guest rings, know any register, open a socket or read a clock.
//!
//! # Trust
//!
//! The device model passes what the guest said after it checked its form (handles exist, counts are inside limits). The
//! provider checks its meaning: keys, bounds, access rights, state transitions.

#![forbid(unsafe_code)]

mod attr;
mod memory;
mod provider;
mod types;
mod work;

pub use attr::{AddressVector, QpAttr, QpAttrMask, QpCap, QpState};
pub use memory::{MrInit, MrKind, PageList, PageListError, Segment, Segments};
pub use provider::{
    AsyncEvent, Carrier, CqInit, Error, GidEntry, Keys, Limits, Provider, ProviderEvent, QpInit, SrqAttr,
    SrqInit,
};
pub use types::{Access, CqId, Gid, MrId, Mtu, Owner, PdId, QpId, QpType, Qpn, SrqId};
pub use work::{
    Completion, FastReg, Opcode, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, UdAddress, WcFlags,
    WcOpcode, WcStatus,
};
