//! Queue pair attributes between the guest's layout and verbs.

use device_model::net::MacAddr;
use pvrdma_spec::attr::{self, AH_GRH, AhAttr, GlobalRoute};
use pvrdma_spec::shared::DeviceCaps;
use verbs::{Access, AddressVector, Gid, Mtu, QpAttr, QpAttrMask, QpCap, QpState, Qpn};
use zerocopy::FromZeros;

use super::CommandError;
use super::port::PORT;

/// Packet sequence numbers have 24 bits; programs that draw random ones do not always mind.
const PSN_MASK: u32 = 0xff_ffff;
/// Flow labels have 20 bits.
const FLOW_LABEL_MASK: u32 = 0xf_ffff;
/// Bits of a time-out and of an RNR timer code.
const MAX_TIMER: u8 = 31;
/// Bits of a retry counter.
const MAX_RETRY: u8 = 7;

/// Reads the attributes that `mask` names and checks their ranges; the others keep their defaults.
pub(super) fn attr_from_guest(
    guest: &attr::QpAttr,
    mask: QpAttrMask,
    caps: &DeviceCaps,
) -> Result<QpAttr, CommandError> {
    let mut attr = QpAttr::default();
    if mask.contains(QpAttrMask::STATE) {
        attr.state = state(guest.qp_state)?;
    }
    if mask.contains(QpAttrMask::CUR_STATE) {
        attr.cur_state = state(guest.cur_qp_state)?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        attr.path_mtu = Mtu::from_verbs(guest.path_mtu).ok_or(CommandError::Invalid("path MTU"))?;
    }
    if mask.contains(QpAttrMask::DEST_QPN) {
        check(guest.dest_qp_num <= Qpn::MASK, "destination queue pair number")?;
        attr.dest_qpn = Qpn(guest.dest_qp_num);
    }
    if mask.contains(QpAttrMask::AV) {
        attr.av = path(&guest.ah_attr, caps)?;
    }
    check_ranges(guest, mask, caps)?;
    attr.sqd_async_notify = guest.en_sqd_async_notify != 0;
    attr.qkey = guest.qkey;
    attr.rq_psn = guest.rq_psn & PSN_MASK;
    attr.sq_psn = guest.sq_psn & PSN_MASK;
    attr.access = Access::from_bits_truncate(guest.qp_access_flags);
    attr.pkey_index = guest.pkey_index;
    attr.max_rd_atomic = guest.max_rd_atomic;
    attr.max_dest_rd_atomic = guest.max_dest_rd_atomic;
    attr.min_rnr_timer = guest.min_rnr_timer;
    attr.timeout = guest.timeout;
    attr.retry_cnt = guest.retry_cnt;
    attr.rnr_retry = guest.rnr_retry;
    Ok(attr)
}

fn check_ranges(guest: &attr::QpAttr, mask: QpAttrMask, caps: &DeviceCaps) -> Result<(), CommandError> {
    let ranges = [
        (QpAttrMask::PORT, guest.port_num == PORT, "port number"),
        (QpAttrMask::PKEY_INDEX, guest.pkey_index < caps.max_pkeys, "P_Key index"),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            u32::from(guest.max_rd_atomic) <= caps.max_qp_init_rd_atom,
            "max_rd_atomic",
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            u32::from(guest.max_dest_rd_atomic) <= caps.max_qp_rd_atom,
            "max_dest_rd_atomic",
        ),
        (QpAttrMask::MIN_RNR_TIMER, guest.min_rnr_timer <= MAX_TIMER, "RNR timer"),
        (QpAttrMask::TIMEOUT, guest.timeout <= MAX_TIMER, "time-out"),
        (QpAttrMask::RETRY_CNT, guest.retry_cnt <= MAX_RETRY, "retry count"),
        (QpAttrMask::RNR_RETRY, guest.rnr_retry <= MAX_RETRY, "RNR retry count"),
    ];
    for (attribute, in_range, name) in ranges {
        check(!mask.contains(attribute) || in_range, name)?;
    }
    Ok(())
}

fn check(holds: bool, name: &'static str) -> Result<(), CommandError> {
    if holds { Ok(()) } else { Err(CommandError::Invalid(name)) }
}

fn state(value: u32) -> Result<QpState, CommandError> {
    QpState::from_verbs(value).ok_or(CommandError::Invalid("queue pair state"))
}

/// A path; on Ethernet it has a global route.
fn path(guest: &AhAttr, caps: &DeviceCaps) -> Result<AddressVector, CommandError> {
    let GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class, .. } = guest.grh;
    check(guest.ah_flags & AH_GRH != 0, "path, it has no global route")?;
    check(guest.port_num == PORT, "port number of a path")?;
    check(u32::from(sgid_index) < caps.gid_tbl_len, "GID index of a path")?;
    Ok(AddressVector {
        dgid: Gid(dgid),
        sgid_index,
        flow_label: flow_label & FLOW_LABEL_MASK,
        hop_limit,
        traffic_class,
        sl: guest.sl,
        dmac: MacAddr(guest.dmac),
    })
}

/// Writes all attributes.
pub(super) fn attr_to_guest(attr: &QpAttr, cap: QpCap) -> attr::QpAttr {
    let mut guest = attr::QpAttr::new_zeroed();
    guest.qp_state = attr.state as u32;
    guest.cur_qp_state = attr.state as u32;
    guest.path_mtu = attr.path_mtu as u32;
    guest.qkey = attr.qkey;
    guest.rq_psn = attr.rq_psn;
    guest.sq_psn = attr.sq_psn;
    guest.dest_qp_num = attr.dest_qpn.0;
    guest.qp_access_flags = attr.access.bits();
    guest.pkey_index = attr.pkey_index;
    guest.en_sqd_async_notify = u8::from(attr.sqd_async_notify);
    guest.sq_draining = u8::from(attr.sq_draining);
    guest.max_rd_atomic = attr.max_rd_atomic;
    guest.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    guest.min_rnr_timer = attr.min_rnr_timer;
    guest.port_num = PORT;
    guest.timeout = attr.timeout;
    guest.retry_cnt = attr.retry_cnt;
    guest.rnr_retry = attr.rnr_retry;
    guest.cap = attr::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: 0,
        reserved: 0,
    };
    guest.ah_attr = path_to_guest(&attr.av);
    guest
}

fn path_to_guest(av: &AddressVector) -> AhAttr {
    let grh = GlobalRoute {
        dgid: av.dgid.0,
        flow_label: av.flow_label,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        reserved: 0,
    };
    let mut guest = AhAttr::new_zeroed();
    guest.grh = grh;
    guest.sl = av.sl;
    guest.ah_flags = if av.dgid.is_zero() { 0 } else { AH_GRH };
    guest.port_num = PORT;
    guest.dmac = av.dmac.0;
    guest
}
