//! The interface between a vmxnet3 driver and the device, revision 1: numbers and layouts, no behaviour.
//!
//! Names follow `vmxnet3_defs.h` and `upt1_defs.h` of the Linux driver. All fields are little-endian.

pub mod command;
pub mod desc;
pub mod regs;
pub mod shared;

use serde::{Deserialize, Serialize};

/// PCI vendor id of VMware.
pub const PCI_VENDOR: u16 = 0x15ad;
/// PCI device id of the vmxnet3 interface.
pub const PCI_DEVICE: u16 = 0x07b0;
/// PCI revision id.
pub const PCI_REVISION: u8 = 1;

/// `VMXNET3_MAX_TX_QUEUES`.
pub const MAX_TX_QUEUES: u8 = 8;
/// Receive queues this device offers; the specification's `VMXNET3_MAX_RX_QUEUES` is 16.
pub const MAX_RX_QUEUES: u8 = 8;
/// `VMXNET3_MAX_INTRS`: one vector per queue plus one for events.
pub const MAX_VECTORS: u8 = 25;

/// `VMXNET3_RING_BA_ALIGN`: alignment in bytes of every ring's base address.
pub const RING_ALIGN: u64 = 512;
/// `VMXNET3_RING_SIZE_ALIGN`: every ring size is a multiple of this many descriptors.
pub const RING_SIZE_MULTIPLE: u32 = 32;
/// `VMXNET3_TX_RING_MAX_SIZE` and `VMXNET3_TC_RING_MAX_SIZE`, in descriptors.
pub const TX_RING_MAX: u32 = 4096;
/// `VMXNET3_RX_RING_MAX_SIZE` and `VMXNET3_RX_RING2_MAX_SIZE`, in descriptors.
pub const RX_RING_MAX: u32 = 4096;
/// `VMXNET3_RC_RING_MAX_SIZE`, in descriptors.
pub const RX_COMPLETION_RING_MAX: u32 = 8192;
/// `VMXNET3_QUEUE_DESC_ALIGN`: alignment in bytes of the queue descriptor table.
pub const QUEUE_DESC_ALIGN: u64 = 128;

/// `VMXNET3_REV1_MAGIC`, the first word of the shared area.
pub const SHARED_MAGIC: u32 = 0xbabe_fee1;
/// Bit 0 of VRRS and UVRS: revision 1 of the device and version 1 of UPT.
pub const REVISION_1: u32 = 1;

/// `VMXNET3_IC_DISABLE_ALL`, a bit of [`shared::InterruptConf::control`].
pub const INTERRUPTS_DISABLE_ALL: u32 = 1;

bitflags::bitflags! {
    /// `UPT1_F_*`: offloads the driver turned on, a field of [`shared::MiscConf`]. Those not named are ignored.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Verify checksums of received frames.
        const RX_CHECKSUM = 1 << 0;
        /// Strip VLAN tags of received frames.
        const RX_VLAN = 1 << 2;
        /// Merge segments of a TCP connection.
        const LRO = 1 << 3;
    }

    /// `VMXNET3_RXM_*`: which received frames the driver wants, a field of [`shared::RxFilterConf`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RxMode: u32 {
        /// Frames to the interface's own address.
        const UNICAST = 1 << 0;
        /// Multicast frames that pass the multicast table.
        const MULTICAST = 1 << 1;
        /// Broadcast frames.
        const BROADCAST = 1 << 2;
        /// All multicast frames.
        const ALL_MULTICAST = 1 << 3;
        /// All frames.
        const PROMISCUOUS = 1 << 4;
    }

    /// `VMXNET3_ECR_*`: events reported in [`shared::DriverShared::events`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Events: u32 {
        /// A receive queue stopped on an error.
        const RX_QUEUE_ERROR = 1 << 0;
        /// A transmit queue stopped on an error.
        const TX_QUEUE_ERROR = 1 << 1;
        /// The link changed.
        const LINK = 1 << 2;
    }
}

/// `VMXNET3_ERR_*`: why a queue stopped, a field of [`shared::QueueStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum QueueError {
    /// `NOEOP`: a packet's descriptors end without the end-of-packet bit.
    NoEndOfPacket = 0x8000_0000,
    /// `BIG_PKT`: too many descriptors in one packet.
    BigPacket = 0x8000_0002,
    /// `DESC_NOT_SPT`: a descriptor that names memory the device cannot reach.
    DescriptorNotSupported = 0x8000_0003,
}
