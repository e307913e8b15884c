//! Attributes of ports, queue pairs and shared receive queues (`pvrdma_verbs.h`).

abi! {
    /// `struct pvrdma_port_attr`.
    PortAttr [48] {
        /// [`port_state`].
        state: u32 = 0,
        /// `enum pvrdma_mtu`.
        max_mtu: u32 = 4,
        /// `enum pvrdma_mtu`.
        active_mtu: u32 = 8,
        /// Rows of the GID table; at most the capabilities' number.
        gid_tbl_len: u32 = 12,
        /// `enum ib_port_cap_flags`; the driver adds to it.
        port_cap_flags: u32 = 16,
        /// Bytes of a message.
        max_msg_sz: u32 = 20,
        /// P_Key violations.
        bad_pkey_cntr: u32 = 24,
        /// Q_Key violations.
        qkey_viol_cntr: u32 = 28,
        /// Rows of the P_Key table.
        pkey_tbl_len: u16 = 32,
        /// Zero on Ethernet.
        lid: u16 = 34,
        /// Zero on Ethernet.
        sm_lid: u16 = 36,
        /// Zero on Ethernet.
        lmc: u8 = 38,
        /// Virtual lanes.
        max_vl_num: u8 = 39,
        /// Zero on Ethernet.
        sm_sl: u8 = 40,
        /// Zero on Ethernet.
        subnet_timeout: u8 = 41,
        /// Zero on Ethernet.
        init_type_reply: u8 = 42,
        /// `enum ib_port_width`.
        active_width: u8 = 43,
        /// `enum ib_port_speed`.
        active_speed: u8 = 44,
        /// [`phys_state`].
        phys_state: u8 = 45,
        /// Zero.
        reserved: [u8; 2] = 46,
    }
}

/// `enum pvrdma_port_state`.
pub mod port_state {
    /// No link.
    pub const DOWN: u32 = 1;
    /// Link up.
    pub const ACTIVE: u32 = 4;
}

/// `enum ib_port_phys_state`.
pub mod phys_state {
    /// No link.
    pub const DISABLED: u8 = 3;
    /// Link up.
    pub const LINK_UP: u8 = 5;
}

abi! {
    /// `struct pvrdma_qp_cap`.
    QpCap [24] {
        /// Send work requests.
        max_send_wr: u32 = 0,
        /// Receive work requests.
        max_recv_wr: u32 = 4,
        /// Elements of a send gather list.
        max_send_sge: u32 = 8,
        /// Elements of a receive scatter list.
        max_recv_sge: u32 = 12,
        /// Zero.
        max_inline_data: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }
}

abi! {
    /// `struct pvrdma_global_route`.
    GlobalRoute [24] {
        /// Peer.
        dgid: [u8; 16] = 0,
        /// Flow label.
        flow_label: u32 = 16,
        /// Row of the own GID table.
        sgid_index: u8 = 20,
        /// Hop limit.
        hop_limit: u8 = 21,
        /// Traffic class.
        traffic_class: u8 = 22,
        /// Zero.
        reserved: u8 = 23,
    }
}

abi! {
    /// `struct pvrdma_ah_attr`.
    AhAttr [40] {
        /// Route.
        grh: GlobalRoute = 0,
        /// Zero on Ethernet.
        dlid: u16 = 24,
        /// Never set by Linux.
        vlan_id: u16 = 26,
        /// Service level.
        sl: u8 = 28,
        /// Zero on Ethernet.
        src_path_bits: u8 = 29,
        /// Unused.
        static_rate: u8 = 30,
        /// Bit 0 says that `grh` is valid.
        ah_flags: u8 = 31,
        /// Port.
        port_num: u8 = 32,
        /// The peer's or the next router's Ethernet address.
        dmac: [u8; 6] = 33,
        /// Zero.
        reserved: u8 = 39,
    }
}

/// Bit of [`AhAttr::ah_flags`].
pub const AH_GRH: u8 = 1;

abi! {
    /// `struct pvrdma_qp_attr`. Values are those of the InfiniBand verbs.
    QpAttr [160] {
        /// State to move to, or that the queue pair is in.
        qp_state: u32 = 0,
        /// State the driver believes it in.
        cur_qp_state: u32 = 4,
        /// Path MTU.
        path_mtu: u32 = 8,
        /// Zero: paths do not migrate.
        path_mig_state: u32 = 12,
        /// Queue key.
        qkey: u32 = 16,
        /// Next expected PSN.
        rq_psn: u32 = 20,
        /// Next PSN to send.
        sq_psn: u32 = 24,
        /// Connected peer.
        dest_qp_num: u32 = 28,
        /// Rights of the peer.
        qp_access_flags: u32 = 32,
        /// Row of the P_Key table.
        pkey_index: u16 = 36,
        /// Zero.
        alt_pkey_index: u16 = 38,
        /// Whether draining raises an event.
        en_sqd_async_notify: u8 = 40,
        /// Whether a drain is under way.
        sq_draining: u8 = 41,
        /// Outstanding reads and atomics as requester.
        max_rd_atomic: u8 = 42,
        /// Outstanding reads and atomics as responder.
        max_dest_rd_atomic: u8 = 43,
        /// RNR timer code.
        min_rnr_timer: u8 = 44,
        /// Port.
        port_num: u8 = 45,
        /// Acknowledge time-out code.
        timeout: u8 = 46,
        /// Transport retries.
        retry_cnt: u8 = 47,
        /// RNR retries.
        rnr_retry: u8 = 48,
        /// Zero.
        alt_port_num: u8 = 49,
        /// Zero.
        alt_timeout: u8 = 50,
        /// Zero.
        reserved: [u8; 5] = 51,
        /// Queue sizes.
        cap: QpCap = 56,
        /// Path.
        ah_attr: AhAttr = 80,
        /// Zero.
        alt_ah_attr: AhAttr = 120,
    }
}

abi! {
    /// `struct pvrdma_srq_attr`.
    SrqAttr [16] {
        /// Work requests.
        max_wr: u32 = 0,
        /// Elements of a scatter list.
        max_sge: u32 = 4,
        /// Limit below which an event is raised.
        srq_limit: u32 = 8,
        /// Zero.
        reserved: u32 = 12,
    }
}

/// Bit of `enum ib_srq_attr_mask` that names [`SrqAttr::srq_limit`].
pub const SRQ_LIMIT: u32 = 1 << 1;
