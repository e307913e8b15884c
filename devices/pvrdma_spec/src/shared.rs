//! The driver shared region and the device's capabilities (`pvrdma_dev_api.h`).

use crate::version;

abi! {
    /// `struct pvrdma_ring_page_info`: where a device ring lives. The first page holds the indices.
    RingPageInfo [16] {
        /// Pages, the one with the indices included.
        num_pages: u32 = 0,
        /// Zero.
        reserved: u32 = 4,
        /// Page directory.
        pdir_dma: u64 = 8,
    }
}

abi! {
    /// `struct pvrdma_device_shared_region`: written by the driver, but for `caps`, which the device fills in.
    SharedRegion [280] {
        /// Version of the driver.
        driver_version: u32 = 0,
        /// Zero.
        pad: u32 = 4,
        /// Guest operating system: word size, type and version.
        gos_info: [u32; 2] = 8,
        /// Page of the command slot.
        cmd_slot_dma: u64 = 16,
        /// Page of the response slot.
        resp_slot_dma: u64 = 24,
        /// Asynchronous event ring.
        async_ring_pages: RingPageInfo = 32,
        /// Completion notification ring.
        cq_ring_pages: RingPageInfo = 48,
        /// Page number of the first doorbell page. Drivers older than [`version::PPN64`] fill only the low half.
        uar_pfn: u64 = 64,
        /// Capabilities.
        caps: DeviceCaps = 72,
    }
}

/// Byte offset of [`SharedRegion::caps`].
pub const CAPS_OFFSET: u64 = 72;

/// Drops the half of a doorbell page number that a driver of this version does not write.
pub const fn uar_pfn(pfn: u64, driver_version: u32) -> u64 {
    if driver_version < version::PPN64 { pfn & 0xffff_ffff } else { pfn }
}

abi! {
    /// `struct pvrdma_device_caps`.
    DeviceCaps [208] {
        /// Firmware version, shown as the top 32, the next 16 and the last 16 bits.
        fw_ver: u64 = 0,
        /// Node GUID, big-endian.
        node_guid: [u8; 8] = 8,
        /// System image GUID, big-endian.
        sys_image_guid: [u8; 8] = 16,
        /// Bytes of a memory region.
        max_mr_size: u64 = 24,
        /// Page sizes, one bit each.
        page_size_cap: u64 = 32,
        /// Sizes of extended atomics.
        atomic_arg_sizes: u64 = 40,
        /// Completion mask.
        ex_comp_mask: u32 = 48,
        /// More capability flags.
        device_cap_flags2: u32 = 52,
        /// Field boundary of extended atomics.
        max_fa_bit_boundary: u32 = 56,
        /// Inline arguments of extended atomics.
        log_max_atomic_inline_arg: u32 = 60,
        /// Vendor id.
        vendor_id: u32 = 64,
        /// Vendor part id.
        vendor_part_id: u32 = 68,
        /// Hardware version.
        hw_ver: u32 = 72,
        /// Queue pairs; also the size of the driver's table, so handles are less.
        max_qp: u32 = 76,
        /// Work requests of a queue.
        max_qp_wr: u32 = 80,
        /// `enum ib_device_cap_flags`.
        device_cap_flags: u32 = 84,
        /// Elements of a scatter/gather list.
        max_sge: u32 = 88,
        /// Elements of a read's scatter/gather list.
        max_sge_rd: u32 = 92,
        /// Completion queues; also the size of the driver's table.
        max_cq: u32 = 96,
        /// Entries of a completion queue.
        max_cqe: u32 = 100,
        /// Memory regions.
        max_mr: u32 = 104,
        /// Protection domains.
        max_pd: u32 = 108,
        /// Outstanding reads and atomics of a queue pair as responder.
        max_qp_rd_atom: u32 = 112,
        /// End-to-end contexts: none.
        max_ee_rd_atom: u32 = 116,
        /// Outstanding reads and atomics of all queue pairs as responder.
        max_res_rd_atom: u32 = 120,
        /// Outstanding reads and atomics of a queue pair as requester.
        max_qp_init_rd_atom: u32 = 124,
        /// End-to-end contexts: none.
        max_ee_init_rd_atom: u32 = 128,
        /// End-to-end contexts: none.
        max_ee: u32 = 132,
        /// Reliable datagram domains: none.
        max_rdd: u32 = 136,
        /// Memory windows: none.
        max_mw: u32 = 140,
        /// Raw queue pairs: none.
        max_raw_ipv6_qp: u32 = 144,
        /// Raw queue pairs: none.
        max_raw_ethy_qp: u32 = 148,
        /// Multicast groups: none.
        max_mcast_grp: u32 = 152,
        /// Multicast groups: none.
        max_mcast_qp_attach: u32 = 156,
        /// Multicast groups: none.
        max_total_mcast_qp_attach: u32 = 160,
        /// Address handles, which only the driver counts.
        max_ah: u32 = 164,
        /// Old fast registration: none.
        max_fmr: u32 = 168,
        /// Old fast registration: none.
        max_map_per_fmr: u32 = 172,
        /// Shared receive queues.
        max_srq: u32 = 176,
        /// Work requests of a shared receive queue.
        max_srq_wr: u32 = 180,
        /// Elements of a shared receive's scatter/gather list.
        max_srq_sge: u32 = 184,
        /// Doorbell pages, the driver's own included; a power of two.
        max_uar: u32 = 188,
        /// Rows of the GID table.
        gid_tbl_len: u32 = 192,
        /// Rows of the P_Key table.
        max_pkeys: u16 = 196,
        /// Acknowledge delay, 4.096 µs · 2^delay.
        local_ca_ack_delay: u8 = 198,
        /// Ports.
        phys_port_cnt: u8 = 199,
        /// 0 for RoCE.
        mode: u8 = 200,
        /// [`AtomicOps`].
        atomic_ops: u8 = 201,
        /// [`MemoryManagement`].
        bmme_flags: u8 = 202,
        /// [`GidType`]: one bit, never two.
        gid_types: u8 = 203,
        /// Pages of a fast registration.
        max_fast_reg_page_list_len: u32 = 204,
    }
}

bitflags::bitflags! {
    /// `PVRDMA_ATOMIC_OP_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AtomicOps: u8 {
        /// Compare and swap.
        const COMP_SWAP = 1;
        /// Fetch and add.
        const FETCH_ADD = 1 << 1;
    }
}

bitflags::bitflags! {
    /// `PVRDMA_BMME_FLAG_*`: memory management extensions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemoryManagement: u8 {
        /// Local invalidation.
        const LOCAL_INV = 1;
        /// Send with invalidation.
        const REMOTE_INV = 1 << 1;
        /// Fast registration.
        const FAST_REG_WR = 1 << 2;
    }
}

bitflags::bitflags! {
    /// `PVRDMA_GID_TYPE_FLAG_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GidType: u8 {
        /// RoCE v1.
        const ROCE_V1 = 1;
        /// RoCE v2.
        const ROCE_V2 = 1 << 1;
    }
}
