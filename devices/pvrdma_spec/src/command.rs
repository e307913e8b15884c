//! Commands and responses (`pvrdma_dev_api.h`).

use crate::attr::{PortAttr, QpAttr, SrqAttr};

/// Bytes of the largest request, which the driver always copies into the command slot.
pub const REQUEST_SIZE: usize = 184;
/// Bytes of the largest response, which the driver always copies out of the response slot.
pub const RESPONSE_SIZE: usize = 176;
/// Added to a command's number in the `ack` of its response.
pub const RESPONSE_FLAG: u32 = 1 << 31;

/// `PVRDMA_CMD_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Opcode {
    /// Attributes of a port.
    QueryPort = 0,
    /// A row of the P_Key table.
    QueryPkey = 1,
    /// Creates a protection domain.
    CreatePd = 2,
    /// Destroys a protection domain.
    DestroyPd = 3,
    /// Registers memory.
    CreateMr = 4,
    /// Ends a registration.
    DestroyMr = 5,
    /// Creates a completion queue.
    CreateCq = 6,
    /// Resizes a completion queue; no driver does.
    ResizeCq = 7,
    /// Destroys a completion queue.
    DestroyCq = 8,
    /// Creates a queue pair.
    CreateQp = 9,
    /// Modifies a queue pair.
    ModifyQp = 10,
    /// Attributes of a queue pair.
    QueryQp = 11,
    /// Destroys a queue pair.
    DestroyQp = 12,
    /// Creates a user context.
    CreateUc = 13,
    /// Destroys a user context.
    DestroyUc = 14,
    /// Sets a row of the GID table.
    CreateBind = 15,
    /// Empties a row of the GID table.
    DestroyBind = 16,
    /// Creates a shared receive queue.
    CreateSrq = 17,
    /// Modifies a shared receive queue.
    ModifySrq = 18,
    /// Attributes of a shared receive queue.
    QuerySrq = 19,
    /// Destroys a shared receive queue.
    DestroySrq = 20,
}

impl Opcode {
    /// All of them, by number.
    pub const ALL: [Self; 21] = [
        Self::QueryPort,
        Self::QueryPkey,
        Self::CreatePd,
        Self::DestroyPd,
        Self::CreateMr,
        Self::DestroyMr,
        Self::CreateCq,
        Self::ResizeCq,
        Self::DestroyCq,
        Self::CreateQp,
        Self::ModifyQp,
        Self::QueryQp,
        Self::DestroyQp,
        Self::CreateUc,
        Self::DestroyUc,
        Self::CreateBind,
        Self::DestroyBind,
        Self::CreateSrq,
        Self::ModifySrq,
        Self::QuerySrq,
        Self::DestroySrq,
    ];

    /// Decodes a command number.
    pub fn from_value(value: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(value).ok()?).copied()
    }

    /// Whether the driver waits for a response. It does not for the others, and an interrupt for one of those would be
    /// taken for the response to the next command.
    pub const fn has_response(self) -> bool {
        matches!(
            self,
            Self::QueryPort
                | Self::QueryPkey
                | Self::CreatePd
                | Self::CreateMr
                | Self::CreateCq
                | Self::CreateQp
                | Self::ModifyQp
                | Self::QueryQp
                | Self::CreateUc
                | Self::CreateSrq
                | Self::QuerySrq
        )
    }
}

abi! {
    /// `struct pvrdma_cmd_hdr`.
    RequestHeader [16] {
        /// Key the response repeats.
        response: u64 = 0,
        /// [`Opcode`].
        cmd: u32 = 8,
        /// Zero.
        reserved: u32 = 12,
    }
}

abi! {
    /// `struct pvrdma_cmd_resp_hdr`.
    ResponseHeader [16] {
        /// Key of the request.
        response: u64 = 0,
        /// [`Opcode`] and [`RESPONSE_FLAG`].
        ack: u32 = 8,
        /// Error number; only read for [`Opcode::ModifyQp`].
        err: u8 = 12,
        /// Zero.
        reserved: [u8; 3] = 13,
    }
}

abi! {
    /// Requests that name one object and nothing else: all `DESTROY` commands but `DESTROY_BIND`, and `QUERY_SRQ`.
    HandleRequest [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// The object.
        handle: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }
}

abi! {
    /// Responses that name one object and nothing else: `CREATE_PD`, `CREATE_UC`, `CREATE_SRQ`.
    HandleResponse [24] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// The object.
        handle: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_port`.
    QueryPort [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Port, 1.
        port_num: u8 = 16,
        /// Zero.
        reserved: [u8; 7] = 17,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_port_resp`.
    QueryPortResponse [64] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// Attributes.
        attrs: PortAttr = 16,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_pkey`.
    QueryPkey [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Port, 1.
        port_num: u8 = 16,
        /// Row.
        index: u8 = 17,
        /// Zero.
        reserved: [u8; 6] = 18,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_pkey_resp`.
    QueryPkeyResponse [24] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// P_Key.
        pkey: u16 = 16,
        /// Zero.
        reserved: [u8; 6] = 18,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_uc`.
    CreateUc [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Page number of the context's doorbell page; see [`crate::shared::uar_pfn`].
        pfn: u64 = 16,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_pd`.
    CreatePd [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// User context, or 0 for the kernel.
        ctx_handle: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_mr`.
    CreateMr [56] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Address of the first byte.
        start: u64 = 16,
        /// Bytes.
        length: u64 = 24,
        /// Page directory.
        pdir_dma: u64 = 32,
        /// Protection domain.
        pd_handle: u32 = 40,
        /// Rights.
        access_flags: u32 = 44,
        /// [`MrFlags`].
        flags: u32 = 48,
        /// Pages.
        nchunks: u32 = 52,
    }
}

bitflags::bitflags! {
    /// `PVRDMA_MR_FLAG_*`; none for memory of a user process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MrFlags: u32 {
        /// All of the guest's memory.
        const DMA = 1;
        /// To be filled by fast registrations.
        const FRMR = 1 << 1;
    }
}

abi! {
    /// `struct pvrdma_cmd_create_mr_resp`.
    CreateMrResponse [32] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// The memory region.
        mr_handle: u32 = 16,
        /// Local key.
        lkey: u32 = 20,
        /// Remote key.
        rkey: u32 = 24,
        /// Zero.
        reserved: u32 = 28,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_cq`.
    CreateCq [40] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Page directory.
        pdir_dma: u64 = 16,
        /// User context, or 0 for the kernel.
        ctx_handle: u32 = 24,
        /// Entries, a power of two.
        cqe: u32 = 28,
        /// Pages, that of the indices included.
        nchunks: u32 = 32,
        /// Zero.
        reserved: u32 = 36,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_cq_resp`.
    CreateCqResponse [24] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// The completion queue.
        cq_handle: u32 = 16,
        /// Entries the driver will use.
        cqe: u32 = 20,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_srq`.
    CreateSrq [56] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Page directory.
        pdir_dma: u64 = 16,
        /// Protection domain.
        pd_handle: u32 = 24,
        /// Pages, that of the indices included; may be more than the work requests need.
        nchunks: u32 = 28,
        /// Sizes and limit.
        attrs: SrqAttr = 32,
        /// 0 for a basic one.
        srq_type: u8 = 48,
        /// Zero.
        reserved: [u8; 7] = 49,
    }
}

abi! {
    /// `struct pvrdma_cmd_modify_srq`.
    ModifySrq [40] {
        /// Header.
        hdr: RequestHeader = 0,
        /// The shared receive queue.
        srq_handle: u32 = 16,
        /// Attributes that are valid.
        attr_mask: u32 = 20,
        /// Attributes.
        attrs: SrqAttr = 24,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_srq_resp`.
    QuerySrqResponse [32] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// Attributes.
        attrs: SrqAttr = 16,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_qp`.
    CreateQp [80] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Page directory.
        pdir_dma: u64 = 16,
        /// Protection domain.
        pd_handle: u32 = 24,
        /// Completion queue of sends.
        send_cq_handle: u32 = 28,
        /// Completion queue of receives.
        recv_cq_handle: u32 = 32,
        /// Shared receive queue, if `is_srq`.
        srq_handle: u32 = 36,
        /// Send work requests.
        max_send_wr: u32 = 40,
        /// Receive work requests.
        max_recv_wr: u32 = 44,
        /// Elements of a send gather list.
        max_send_sge: u32 = 48,
        /// Elements of a receive scatter list.
        max_recv_sge: u32 = 52,
        /// Zero.
        max_inline_data: u32 = 56,
        /// Zero.
        lkey: u32 = 60,
        /// Rights of the peer.
        access_flags: u32 = 64,
        /// Pages.
        total_chunks: u16 = 68,
        /// Pages of send work requests, that of the indices not included.
        send_chunks: u16 = 70,
        /// Zero.
        max_atomic_arg: u16 = 72,
        /// Whether all sends complete visibly.
        sq_sig_all: u8 = 74,
        /// `enum pvrdma_qp_type`: 1 GSI, 2 RC, 4 UD.
        qp_type: u8 = 75,
        /// Whether receives come from a shared queue.
        is_srq: u8 = 76,
        /// Zero.
        reserved: [u8; 3] = 77,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_qp_resp`: for drivers before [`crate::version::QP_HANDLE`].
    CreateQpResponse [40] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// Number and handle at once.
        qpn: u32 = 16,
        /// Send work requests.
        max_send_wr: u32 = 20,
        /// Receive work requests.
        max_recv_wr: u32 = 24,
        /// Elements of a send gather list.
        max_send_sge: u32 = 28,
        /// Elements of a receive scatter list.
        max_recv_sge: u32 = 32,
        /// Zero.
        max_inline_data: u32 = 36,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_qp_resp_v2`.
    CreateQpResponseV2 [48] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// Number on the wire.
        qpn: u32 = 16,
        /// Handle.
        qp_handle: u32 = 20,
        /// Send work requests.
        max_send_wr: u32 = 24,
        /// Receive work requests.
        max_recv_wr: u32 = 28,
        /// Elements of a send gather list.
        max_send_sge: u32 = 32,
        /// Elements of a receive scatter list.
        max_recv_sge: u32 = 36,
        /// Zero.
        max_inline_data: u32 = 40,
        /// Zero.
        reserved: u32 = 44,
    }
}

abi! {
    /// `struct pvrdma_cmd_modify_qp`.
    ModifyQp [184] {
        /// Header.
        hdr: RequestHeader = 0,
        /// The queue pair.
        qp_handle: u32 = 16,
        /// `enum ib_qp_attr_mask`.
        attr_mask: u32 = 20,
        /// Attributes.
        attrs: QpAttr = 24,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_qp`.
    QueryQp [24] {
        /// Header.
        hdr: RequestHeader = 0,
        /// The queue pair.
        qp_handle: u32 = 16,
        /// `enum ib_qp_attr_mask`; a hint.
        attr_mask: u32 = 20,
    }
}

abi! {
    /// `struct pvrdma_cmd_query_qp_resp`.
    QueryQpResponse [176] {
        /// Header.
        hdr: ResponseHeader = 0,
        /// Attributes.
        attrs: QpAttr = 16,
    }
}

abi! {
    /// `struct pvrdma_cmd_create_bind`.
    CreateBind [48] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Without meaning.
        mtu: u32 = 16,
        /// Without meaning.
        vlan: u32 = 20,
        /// Row of the GID table.
        index: u32 = 24,
        /// Address.
        new_gid: [u8; 16] = 28,
        /// [`crate::shared::GidType`].
        gid_type: u8 = 44,
        /// Zero.
        reserved: [u8; 3] = 45,
    }
}

abi! {
    /// `struct pvrdma_cmd_destroy_bind`.
    DestroyBind [40] {
        /// Header.
        hdr: RequestHeader = 0,
        /// Row of the GID table.
        index: u32 = 16,
        /// Address.
        dest_gid: [u8; 16] = 20,
        /// Zero.
        reserved: [u8; 4] = 36,
    }
}

const _: () = assert!(size_of::<ModifyQp>() == REQUEST_SIZE && size_of::<QueryQpResponse>() == RESPONSE_SIZE);
