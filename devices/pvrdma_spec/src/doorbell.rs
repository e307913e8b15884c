//! BAR 2: doorbell (UAR) pages, one per user context, page 0 the driver's own.

/// `PVRDMA_UAR_QP_OFFSET`: byte offset of the queue pair doorbell in a page.
pub const QP_OFFSET: u64 = 0;
/// `PVRDMA_UAR_CQ_OFFSET`
pub const CQ_OFFSET: u64 = 4;
/// `PVRDMA_UAR_SRQ_OFFSET`
pub const SRQ_OFFSET: u64 = 8;

/// `PVRDMA_UAR_HANDLE_MASK`
pub const HANDLE_MASK: u32 = 0x00ff_ffff;
/// `PVRDMA_UAR_QP_SEND`: the send ring has new requests.
pub const QP_SEND: u32 = 1 << 30;
/// `PVRDMA_UAR_QP_RECV`: the receive ring has new requests.
pub const QP_RECV: u32 = 1 << 31;
/// `PVRDMA_UAR_CQ_ARM_SOL`: notify of the next solicited or failed completion.
pub const CQ_ARM_SOL: u32 = 1 << 29;
/// `PVRDMA_UAR_CQ_ARM`: notify of the next completion.
pub const CQ_ARM: u32 = 1 << 30;
/// `PVRDMA_UAR_CQ_POLL`: the queue was found empty.
pub const CQ_POLL: u32 = 1 << 31;
/// `PVRDMA_UAR_SRQ_RECV`: the shared receive ring has new requests.
pub const SRQ_RECV: u32 = 1 << 30;
