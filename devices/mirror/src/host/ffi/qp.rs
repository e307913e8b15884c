//! Queue pairs.

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;
use verbs::{Access, AddressVector, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn};

use super::objects::{object, path};
use super::{CompletionQueue, Context, PORT, ProtectionDomain, SharedQueue, check, signed, tag_to_pointer};

object!(
    /// A queue pair.
    QueuePair, ibv_qp, ibv_destroy_qp,
    pd: Arc<ProtectionDomain>,
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    _srq: Option<Arc<SharedQueue>>
);

/// What a queue pair is made of.
pub(in crate::host) struct Parts<'a> {
    pub(in crate::host) qp_type: QpType,
    pub(in crate::host) pd: &'a Arc<ProtectionDomain>,
    pub(in crate::host) send_cq: &'a Arc<CompletionQueue>,
    pub(in crate::host) recv_cq: &'a Arc<CompletionQueue>,
    pub(in crate::host) srq: Option<&'a Arc<SharedQueue>>,
    pub(in crate::host) cap: QpCap,
}

impl QueuePair {
    pub(in crate::host) fn new(parts: &Parts<'_>, tag: u32) -> io::Result<(Self, Qpn)> {
        let cap = parts.cap;
        let mut init = ffi::ibv_qp_init_attr {
            qp_context: tag_to_pointer(tag),
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.srq.map_or(null_mut(), |srq| srq.raw()),
            cap: ffi::ibv_qp_cap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
                max_inline_data: 0,
            },
            qp_type: parts.qp_type as u32,
            sq_sig_all: 0,
        };
        // SAFETY: all that the attributes name is alive, and the queue pair keeps it so.
        let raw = unsafe { ffi::ibv_create_qp(parts.pd.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let qp = Self {
            raw,
            pd: Arc::clone(parts.pd),
            _send_cq: Arc::clone(parts.send_cq),
            _recv_cq: Arc::clone(parts.recv_cq),
            _srq: parts.srq.cloned(),
        };
        // SAFETY: the queue pair is alive.
        let qpn = Qpn(unsafe { qp.raw.as_ref() }.qp_num);
        Ok((qp, qpn))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    pub(in crate::host) fn modify(&self, attr: &QpAttr, mask: QpAttrMask, sgid_index: u8) -> io::Result<()> {
        let mut raw = to_host(attr, sgid_index);
        // SAFETY: the queue pair is alive and the attributes are a live structure.
        check(unsafe { ffi::ibv_modify_qp(self.raw(), &raw mut raw, signed(mask.bits())) })
    }

    pub(in crate::host) fn query(&self) -> io::Result<QpAttr> {
        let mut attr = ffi::ibv_qp_attr::default();
        let mut init = ffi::ibv_qp_init_attr::default();
        let mask = QpAttrMask::all() - QpAttrMask::ALT_PATH - QpAttrMask::PATH_MIG_STATE;
        // SAFETY: the queue pair is alive and both structures are live.
        check(unsafe { ffi::ibv_query_qp(self.raw(), &raw mut attr, signed(mask.bits()), &raw mut init) })?;
        Ok(from_host(&attr))
    }
}

/// Attributes for the host. Which of them count is said beside them.
fn to_host(attr: &QpAttr, sgid_index: u8) -> ffi::ibv_qp_attr {
    ffi::ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        path_mtu: attr.path_mtu as u32,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn.0,
        qp_access_flags: attr.access.bits(),
        ah_attr: path(&attr.av, sgid_index),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.sqd_async_notify),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: PORT,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..ffi::ibv_qp_attr::default()
    }
}

/// The host's attributes, without the path.
fn from_host(attr: &ffi::ibv_qp_attr) -> QpAttr {
    let state = |value| QpState::from_verbs(value).unwrap_or(QpState::Err);
    QpAttr {
        state: state(attr.qp_state),
        cur_state: state(attr.cur_qp_state),
        sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        path_mtu: Mtu::from_verbs(attr.path_mtu).unwrap_or(Mtu::B256),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qpn: Qpn(attr.dest_qp_num),
        access: Access::from_bits_truncate(attr.qp_access_flags),
        pkey_index: attr.pkey_index,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port: PORT,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        av: AddressVector::default(),
    }
}
