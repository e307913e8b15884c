//! Structures in guest memory that the driver fills in before activation.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `Vmxnet3_DriverShared`, up to and without the part that later revisions append.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DriverShared {
    /// [`super::SHARED_MAGIC`].
    pub magic: U32,
    /// Size of the structure; not always filled in.
    pub size: U32,
    /// `devRead.misc`.
    pub misc: MiscConf,
    /// `devRead.intrConf`.
    pub interrupts: InterruptConf,
    /// `devRead.rxFilterConf`.
    pub rx_filter: RxFilterConf,
    /// `devRead.rssConfDesc`, `pmConfDesc` and `pluginConfDesc`.
    pub variable_conf: [[U64; 2]; 3],
    /// `ecr`: outstanding [`super::Events`], written by the device.
    pub events: U32,
    /// Zero.
    pub reserved: U32,
}

/// `Vmxnet3_MiscConf`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MiscConf {
    /// `driverInfo`: who the driver is.
    pub driver_info: [U32; 4],
    /// `uptFeatures`: [`super::Features`].
    pub features: U64,
    /// `ddPA`: the driver's own.
    pub driver_data: U64,
    /// `queueDescPA`: an array of [`TxQueueDesc`] followed by one of [`RxQueueDesc`].
    pub queue_descs: U64,
    /// `ddLen`.
    pub driver_data_len: U32,
    /// `queueDescLen`, in bytes.
    pub queue_descs_len: U32,
    /// `mtu`: the interface's, in bytes of IP packet.
    pub mtu: U32,
    /// `maxNumRxSG`: buffers per received packet that the driver can take with LRO on; else 0.
    pub max_rx_buffers: U16,
    /// `numTxQueues`.
    pub tx_queues: u8,
    /// `numRxQueues`.
    pub rx_queues: u8,
    /// Zero.
    pub reserved: [U32; 4],
}

/// `Vmxnet3_IntrConf`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptConf {
    /// `autoMask`: non-zero when the device masks a vector as it fires.
    pub auto_mask: u8,
    /// `numIntrs`: vectors in use.
    pub vectors: u8,
    /// `eventIntrIdx`: the vector for [`super::Events`].
    pub event_vector: u8,
    /// `modLevels`: moderation wishes, ignored.
    pub moderation: [u8; 25],
    /// `intrCtrl`: changed by the driver at any time.
    pub control: U32,
    /// Zero.
    pub reserved: [U32; 2],
}

/// `Vmxnet3_RxFilterConf`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxFilterConf {
    /// [`super::RxMode`].
    pub mode: U32,
    /// `mfTableLen`: bytes of the multicast table, 6 per address.
    pub multicast_len: U16,
    /// Zero.
    pub pad: U16,
    /// `mfTablePA`: valid only while an update command executes.
    pub multicast_table: U64,
    /// `vfTable`: one bit per VLAN id.
    pub vlans: [U32; 128],
}

/// `Vmxnet3_TxQueueDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TxQueueDesc {
    /// `txNumDeferred`, the driver's.
    pub deferred: U32,
    /// `txThreshold`: packets the driver may hold back before it writes TXPROD.
    pub threshold: U32,
    /// Zero.
    pub reserved: U64,
    /// `txRingBasePA`.
    pub ring: U64,
    /// `dataRingBasePA`: header copies; descriptors point into it like into any memory.
    pub data_ring: U64,
    /// `compRingBasePA`.
    pub completion_ring: U64,
    /// `ddPA` and a reserved word.
    pub driver_data: [U64; 2],
    /// `txRingSize`, in descriptors.
    pub ring_size: U32,
    /// `dataRingSize`.
    pub data_ring_size: U32,
    /// `compRingSize`.
    pub completion_ring_size: U32,
    /// `ddLen`.
    pub driver_data_len: U32,
    /// `intrIdx`: vector for completions.
    pub vector: u8,
    /// Padding and later revisions' `txDataRingDescSize`.
    pub pad: [u8; 7],
    /// Written by the device on request.
    pub status: QueueStatus,
    /// Written by the device on request.
    pub stats: TxStatsBlock,
    /// Zero.
    pub tail: [u8; 88],
}

/// `Vmxnet3_RxQueueDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxQueueDesc {
    /// `updateRxProd`: set by the device when it wants RXPROD writes.
    pub update_producer: u8,
    /// Padding.
    pub pad0: [u8; 15],
    /// `rxRingBasePA`: head ring and body ring.
    pub rings: [U64; 2],
    /// `compRingBasePA`.
    pub completion_ring: U64,
    /// `ddPA` and later revisions' `rxDataRingBasePA`.
    pub driver_data: [U64; 2],
    /// `rxRingSize`, in descriptors.
    pub ring_sizes: [U32; 2],
    /// `compRingSize`.
    pub completion_ring_size: U32,
    /// `ddLen`.
    pub driver_data_len: U32,
    /// `intrIdx`: vector for completions.
    pub vector: u8,
    /// Padding and later revisions' `rxDataRingDescSize`.
    pub pad1: [u8; 7],
    /// Written by the device on request.
    pub status: QueueStatus,
    /// Written by the device on request.
    pub stats: RxStatsBlock,
    /// Zero.
    pub tail: [u8; 88],
}

/// `Vmxnet3_QueueStatus`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueStatus {
    /// 1 when the queue stopped on an error.
    pub stopped: u8,
    /// Padding.
    pub pad: [u8; 3],
    /// [`super::QueueError`] when stopped.
    pub error: U32,
}

/// `UPT1_TxStats`, in the order of [`crate::TxStats`].
pub type TxStatsBlock = [U64; 10];
/// `UPT1_RxStats`, in the order of [`crate::RxStats`].
pub type RxStatsBlock = [U64; 10];

/// Offset of `uptFeatures` in [`DriverShared`].
pub const FEATURES: u64 = (offset_of!(DriverShared, misc) + offset_of!(MiscConf, features)) as u64;
/// Offset of `intrCtrl` in [`DriverShared`].
pub const INTERRUPT_CONTROL: u64 =
    (offset_of!(DriverShared, interrupts) + offset_of!(InterruptConf, control)) as u64;
/// Offset of `rxFilterConf` in [`DriverShared`].
pub const RX_FILTER: u64 = offset_of!(DriverShared, rx_filter) as u64;
/// Offset of `ecr` in [`DriverShared`].
pub const EVENTS: u64 = offset_of!(DriverShared, events) as u64;
/// Bytes of a [`TxQueueDesc`] and of an [`RxQueueDesc`].
pub const QUEUE_DESC_SIZE: u64 = 256;
/// Offset of `status` in a [`TxQueueDesc`] and an [`RxQueueDesc`].
pub const QUEUE_STATUS: u64 = offset_of!(TxQueueDesc, status) as u64;
/// Offset of `stats` in a [`TxQueueDesc`] and an [`RxQueueDesc`].
pub const QUEUE_STATS: u64 = offset_of!(TxQueueDesc, stats) as u64;

const _: () = {
    assert!(size_of::<DriverShared>() == 704);
    assert!(FEATURES == 0x18);
    assert!(offset_of!(MiscConf, queue_descs) + 8 == 0x28);
    assert!(offset_of!(MiscConf, mtu) + 8 == 0x38);
    assert!(offset_of!(MiscConf, rx_queues) + 8 == 0x3f);
    assert!(offset_of!(DriverShared, interrupts) == 0x50);
    assert!(INTERRUPT_CONTROL == 0x6c);
    assert!(RX_FILTER == 0x78);
    assert!(offset_of!(RxFilterConf, multicast_table) + 0x78 == 0x80);
    assert!(offset_of!(RxFilterConf, vlans) + 0x78 == 0x88);
    assert!(offset_of!(DriverShared, variable_conf) == 0x288);
    assert!(EVENTS == 0x2b8);

    assert!(size_of::<TxQueueDesc>() as u64 == QUEUE_DESC_SIZE);
    assert!(offset_of!(TxQueueDesc, ring) == 0x10);
    assert!(offset_of!(TxQueueDesc, completion_ring) == 0x20);
    assert!(offset_of!(TxQueueDesc, ring_size) == 0x38);
    assert!(offset_of!(TxQueueDesc, completion_ring_size) == 0x40);
    assert!(offset_of!(TxQueueDesc, vector) == 0x48);

    assert!(size_of::<RxQueueDesc>() as u64 == QUEUE_DESC_SIZE);
    assert!(offset_of!(RxQueueDesc, rings) == 0x10);
    assert!(offset_of!(RxQueueDesc, completion_ring) == 0x20);
    assert!(offset_of!(RxQueueDesc, ring_sizes) == 0x38);
    assert!(offset_of!(RxQueueDesc, completion_ring_size) == 0x40);
    assert!(offset_of!(RxQueueDesc, vector) == 0x48);
    assert!(offset_of!(RxQueueDesc, status) as u64 == QUEUE_STATUS && QUEUE_STATUS == 0x50);
    assert!(offset_of!(RxQueueDesc, stats) as u64 == QUEUE_STATS && QUEUE_STATS == 0x58);
};
