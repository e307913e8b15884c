//! Checks of the attributes a modification brings.

use verbs::{AddressVector, Error, Limits, Mtu, QpAttr, QpAttrMask, Qpn};

use crate::psn::Psn;

/// Attributes nobody here can honour.
const UNSUPPORTED: QpAttrMask = QpAttrMask::ALT_PATH.union(QpAttrMask::PATH_MIG_STATE).union(QpAttrMask::CAP);

type Check = (QpAttrMask, fn(&QpAttr, &Limits) -> bool, &'static str);

/// Values that are legal wherever their attribute is.
const CHECKS: &[Check] = &[
    (QpAttrMask::PORT, |a, _| a.port == 1, "port is not 1"),
    (QpAttrMask::PKEY_INDEX, |a, _| a.pkey_index == 0, "P_Key index is not 0"),
    (QpAttrMask::RQ_PSN, |a, _| a.rq_psn <= Psn::MASK, "receive PSN has more than 24 bits"),
    (QpAttrMask::SQ_PSN, |a, _| a.sq_psn <= Psn::MASK, "send PSN has more than 24 bits"),
    (QpAttrMask::DEST_QPN, |a, _| a.dest_qpn.0 <= Qpn::MASK, "destination QPN has more than 24 bits"),
    (QpAttrMask::TIMEOUT, |a, _| a.timeout < 32, "timeout is above 31"),
    (QpAttrMask::RETRY_CNT, |a, _| a.retry_cnt < 8, "retry_cnt is above 7"),
    (QpAttrMask::RNR_RETRY, |a, _| a.rnr_retry < 8, "rnr_retry is above 7"),
    (QpAttrMask::MIN_RNR_TIMER, |a, _| a.min_rnr_timer < 32, "min_rnr_timer is above 31"),
    (QpAttrMask::PATH_MTU, |a, l| a.path_mtu <= l.active_mtu, "path MTU is above the port's active MTU"),
    (
        QpAttrMask::MAX_QP_RD_ATOMIC,
        |a, l| a.max_rd_atomic <= l.max_rd_atomic,
        "max_rd_atomic is above the device's limit",
    ),
    (
        QpAttrMask::MAX_DEST_RD_ATOMIC,
        |a, l| a.max_dest_rd_atomic <= l.max_dest_rd_atomic,
        "max_dest_rd_atomic is above the device's limit",
    ),
    (QpAttrMask::AV, |a, _| !a.av.dgid.is_zero(), "destination GID is empty"),
    (QpAttrMask::AV, |a, _| !a.av.dmac.is_multicast(), "destination MAC is a group address"),
];

/// Checks the values that `mask` names.
pub(super) fn check(attr: &QpAttr, mask: QpAttrMask, limits: &Limits) -> Result<(), Error> {
    if mask.intersects(UNSUPPORTED) {
        return Err(Error::Unsupported("alternate paths and resizing"));
    }
    let bad = CHECKS.iter().find(|(names, ok, _)| mask.intersects(*names) && !ok(attr, limits));
    bad.map_or(Ok(()), |(_, _, why)| Err(Error::Invalid(why)))
}

/// Copies the attributes that `mask` names, but for the state.
pub(super) fn apply(to: &mut QpAttr, from: &QpAttr, mask: QpAttrMask) {
    fn set<T: Copy>(wanted: bool, to: &mut T, from: T) {
        if wanted {
            *to = from;
        }
    }
    let has = |names| mask.contains(names);
    // Named one by one, so that a new attribute cannot be forgotten.
    let QpAttr {
        state: _,
        cur_state: _,
        sq_draining: _,
        sqd_async_notify,
        path_mtu,
        qkey,
        rq_psn,
        sq_psn,
        dest_qpn,
        access,
        pkey_index,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port,
        timeout,
        retry_cnt,
        rnr_retry,
        av,
    } = to;
    set(has(QpAttrMask::EN_SQD_ASYNC_NOTIFY), sqd_async_notify, from.sqd_async_notify);
    set::<Mtu>(has(QpAttrMask::PATH_MTU), path_mtu, from.path_mtu);
    set(has(QpAttrMask::QKEY), qkey, from.qkey);
    set(has(QpAttrMask::RQ_PSN), rq_psn, from.rq_psn);
    set(has(QpAttrMask::SQ_PSN), sq_psn, from.sq_psn);
    set(has(QpAttrMask::DEST_QPN), dest_qpn, from.dest_qpn);
    set(has(QpAttrMask::ACCESS_FLAGS), access, from.access);
    set(has(QpAttrMask::PKEY_INDEX), pkey_index, from.pkey_index);
    set(has(QpAttrMask::MAX_QP_RD_ATOMIC), max_rd_atomic, from.max_rd_atomic);
    set(has(QpAttrMask::MAX_DEST_RD_ATOMIC), max_dest_rd_atomic, from.max_dest_rd_atomic);
    set(has(QpAttrMask::MIN_RNR_TIMER), min_rnr_timer, from.min_rnr_timer);
    set(has(QpAttrMask::PORT), port, from.port);
    set(has(QpAttrMask::TIMEOUT), timeout, from.timeout);
    set(has(QpAttrMask::RETRY_CNT), retry_cnt, from.retry_cnt);
    set(has(QpAttrMask::RNR_RETRY), rnr_retry, from.rnr_retry);
    set::<AddressVector>(has(QpAttrMask::AV), av, from.av);
}
