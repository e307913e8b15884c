//! Rings that the guest and the device share: indices, work requests, completions (`pvrdma_ring.h`, `vmw_pvrdma-abi.h`).

abi! {
    /// `struct pvrdma_ring`: indices of a ring of `N` slots. An index is less than `2 * N`; its slot is `index & (N - 1)`.
    Ring [8] {
        /// Next slot to fill.
        prod_tail: u32 = 0,
        /// Next slot to take.
        cons_head: u32 = 4,
    }
}

abi! {
    /// `struct pvrdma_ring_state`: the start of the first page of every ring.
    RingState [16] {
        /// Send queue of a queue pair; unused elsewhere.
        tx: Ring = 0,
        /// Receive queue of a queue pair, and the only ring elsewhere.
        rx: Ring = 8,
    }
}

/// Byte offset of [`RingState::tx`].
pub const TX_OFFSET: u64 = 0;
/// Byte offset of [`RingState::rx`].
pub const RX_OFFSET: u64 = 8;
/// Byte offset of [`Ring::prod_tail`] in a ring.
pub const PROD_TAIL_OFFSET: u64 = 0;
/// Byte offset of [`Ring::cons_head`] in a ring.
pub const CONS_HEAD_OFFSET: u64 = 4;

abi! {
    /// `struct pvrdma_sge`.
    Sge [16] {
        /// Address.
        addr: u64 = 0,
        /// Bytes.
        length: u32 = 8,
        /// Local key.
        lkey: u32 = 12,
    }
}

abi! {
    /// `struct pvrdma_rq_wqe_hdr`: a receive work request; scatter list elements follow.
    RecvWqeHeader [16] {
        /// Poster's name.
        wr_id: u64 = 0,
        /// Elements that follow.
        num_sge: u32 = 8,
        /// Not maintained.
        total_len: u32 = 12,
    }
}

abi! {
    /// `struct pvrdma_sq_wqe_hdr`: a send work request; gather list elements follow.
    SendWqeHeader [80] {
        /// Poster's name.
        wr_id: u64 = 0,
        /// Elements that follow.
        num_sge: u32 = 8,
        /// Not maintained.
        total_len: u32 = 12,
        /// [`WrOpcode`].
        opcode: u32 = 16,
        /// [`WrFlags`].
        send_flags: u32 = 20,
        /// Immediate data as bytes on the wire, or the key to invalidate, little-endian.
        ex: [u8; 4] = 24,
        /// Zero.
        reserved: u32 = 28,
        /// Operands: [`RdmaOperands`], [`AtomicOperands`], [`FastRegOperands`] or [`UdOperands`].
        wr: [u8; 48] = 32,
    }
}

abi! {
    /// Operands of reads and writes.
    RdmaOperands [16] {
        /// Remote address.
        remote_addr: u64 = 0,
        /// Remote key.
        rkey: u32 = 8,
        /// Zero.
        reserved: u32 = 12,
    }
}

abi! {
    /// Operands of atomics.
    AtomicOperands [32] {
        /// Remote address.
        remote_addr: u64 = 0,
        /// Value to compare with or to add.
        compare_add: u64 = 8,
        /// Value to store.
        swap: u64 = 16,
        /// Remote key.
        rkey: u32 = 24,
        /// Zero.
        reserved: u32 = 28,
    }
}

abi! {
    /// Operands of a fast registration.
    FastRegOperands [40] {
        /// Address of the first byte.
        iova_start: u64 = 0,
        /// Page directory of the pages.
        pl_pdir_dma: u64 = 8,
        /// Page size, log 2.
        page_shift: u32 = 16,
        /// Pages.
        page_list_len: u32 = 20,
        /// Bytes.
        length: u32 = 24,
        /// Rights.
        access_flags: u32 = 28,
        /// Key with its new variant byte.
        rkey: u32 = 32,
        /// Zero.
        reserved: u32 = 36,
    }
}

abi! {
    /// Operands of a datagram.
    UdOperands [48] {
        /// Receiving queue pair.
        remote_qpn: u32 = 0,
        /// Queue key.
        remote_qkey: u32 = 4,
        /// Path.
        av: Av = 8,
    }
}

abi! {
    /// `struct pvrdma_av`: an address vector.
    Av [40] {
        /// Port in the top byte, protection domain below.
        port_pd: u32 = 0,
        /// Traffic class from bit 20, flow label below.
        sl_tclass_flowlabel: u32 = 4,
        /// Peer.
        dgid: [u8; 16] = 8,
        /// Unused.
        src_path_bits: u8 = 24,
        /// Row of the own GID table.
        gid_index: u8 = 25,
        /// Unused.
        stat_rate: u8 = 26,
        /// Hop limit.
        hop_limit: u8 = 27,
        /// The peer's or the next router's Ethernet address.
        dmac: [u8; 6] = 28,
        /// Zero.
        reserved: [u8; 6] = 34,
    }
}

abi! {
    /// `struct pvrdma_cqe`: a completion.
    Cqe [64] {
        /// Poster's name of the request.
        wr_id: u64 = 0,
        /// Queue pair handle; consumers look at the low 16 bits.
        qp: u64 = 8,
        /// `enum pvrdma_wc_opcode`.
        opcode: u32 = 16,
        /// `enum pvrdma_wc_status`.
        status: u32 = 20,
        /// Bytes received or read.
        byte_len: u32 = 24,
        /// Immediate data as bytes on the wire, or the invalidated key, little-endian.
        imm_data: [u8; 4] = 28,
        /// Sender of a datagram.
        src_qp: u32 = 32,
        /// `enum pvrdma_wc_flags`.
        wc_flags: u32 = 36,
        /// Zero.
        vendor_err: u32 = 40,
        /// P_Key table row.
        pkey_index: u16 = 44,
        /// Zero.
        slid: u16 = 46,
        /// Service level.
        sl: u8 = 48,
        /// Zero.
        dlid_path_bits: u8 = 49,
        /// Port of a datagram.
        port_num: u8 = 50,
        /// Unused: the driver does not copy it.
        smac: [u8; 6] = 51,
        /// `enum rdma_network_type` of a datagram.
        network_hdr_type: u8 = 57,
        /// Zero.
        reserved: [u8; 6] = 58,
    }
}

/// `enum pvrdma_wr_opcode`. User space casts its own numbering, which agrees up to `FetchAdd` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WrOpcode {
    /// RDMA write.
    RdmaWrite = 0,
    /// RDMA write with immediate data.
    RdmaWriteImm = 1,
    /// Send.
    Send = 2,
    /// Send with immediate data.
    SendImm = 3,
    /// RDMA read.
    RdmaRead = 4,
    /// Compare and swap.
    CompareSwap = 5,
    /// Fetch and add.
    FetchAdd = 6,
    /// Send with invalidation.
    SendInv = 8,
    /// Local invalidation.
    LocalInv = 10,
    /// Fast registration.
    FastReg = 11,
}

impl WrOpcode {
    /// Decodes a work request's opcode; `None` for those that no driver can fill in and for undefined ones.
    pub const fn from_value(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::RdmaWrite,
            1 => Self::RdmaWriteImm,
            2 => Self::Send,
            3 => Self::SendImm,
            4 => Self::RdmaRead,
            5 => Self::CompareSwap,
            6 => Self::FetchAdd,
            8 => Self::SendInv,
            10 => Self::LocalInv,
            11 => Self::FastReg,
            _ => return None,
        })
    }
}

bitflags::bitflags! {
    /// `enum pvrdma_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WrFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1;
        /// Complete visibly.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event.
        const SOLICITED = 1 << 2;
        /// Without meaning: requests carry ordinary elements regardless.
        const INLINE = 1 << 3;
        /// Without meaning.
        const IP_CSUM = 1 << 4;
    }
}
