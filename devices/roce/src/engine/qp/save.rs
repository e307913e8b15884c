//! A queue pair as it is saved.

use std::collections::VecDeque;

use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::{Error, QpAttr, QpAttrMask, QpId, QpInit, Qpn, RecvWr};

use super::{Qp, attributes};
use crate::engine::requester::save::RequesterState;
use crate::engine::responder::save::ResponderState;
use crate::engine::shared::Shared;
use crate::wire::Path;

/// State of a queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QpSaved {
    id: QpId,
    qpn: Qpn,
    init: QpInit,
    attr: QpAttr,
    path: Path,
    receives: Vec<RecvWr>,
    requester: RequesterState,
    responder: ResponderState,
    answered: bool,
    queued: bool,
}

impl QpSaved {
    pub(crate) fn of(qp: &Qp, now: Instant) -> Self {
        let Qp { id, qpn, init, attr, path, sq, rq, req, resp, answered, queued, timer: _ } = qp;
        Self {
            id: *id,
            qpn: *qpn,
            init: *init,
            attr: *attr,
            path: *path,
            receives: rq.iter().cloned().collect(),
            requester: RequesterState::of(sq, req, now),
            responder: ResponderState::of(resp, now),
            answered: *answered,
            queued: *queued,
        }
    }

    pub(crate) const fn id(&self) -> QpId {
        self.id
    }

    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) const fn init(&self) -> &QpInit {
        &self.init
    }

    /// Makes the queue pair. It gets a turn to send what the peer may have missed.
    pub(crate) fn restore(self, cx: &mut Shared) -> Result<Qp, Error> {
        let mut qp = Qp::new(self.id, self.qpn, self.init);
        check_attributes(&qp, &self.attr, cx)?;
        (qp.attr, qp.path, qp.answered) = (self.attr, self.path, self.answered);
        let cap = &qp.init.cap;
        if self.receives.len() > cap.max_recv_wr as usize
            || self.receives.iter().any(|wr| wr.sges.len() > cap.max_recv_sge as usize)
        {
            return Err(Error::Invalid("receive queue is longer than it can be"));
        }
        qp.rq = VecDeque::from(self.receives);
        self.requester.restore(&mut qp, cx)?;
        self.responder.restore(&mut qp, cx.now)?;
        qp.resume();
        qp.ask_for_expected(cx);
        if self.queued || !qp.sq.is_drained() {
            qp.wake(cx);
        }
        qp.schedule(cx);
        Ok(qp)
    }
}

/// Checks the attributes that a queue pair in this state has been given.
fn check_attributes(qp: &Qp, attr: &QpAttr, cx: &Shared) -> Result<(), Error> {
    let always = QpAttrMask::PORT
        | QpAttrMask::PKEY_INDEX
        | QpAttrMask::RQ_PSN
        | QpAttrMask::SQ_PSN
        | QpAttrMask::DEST_QPN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MIN_RNR_TIMER
        | QpAttrMask::MAX_QP_RD_ATOMIC
        | QpAttrMask::MAX_DEST_RD_ATOMIC;
    let connected = Qp { attr: *attr, ..Qp::new(qp.id, qp.qpn, qp.init) }.receives() && qp.is_rc();
    let mask = if connected { always | QpAttrMask::PATH_MTU | QpAttrMask::AV } else { always };
    attributes::check(attr, mask, &cx.config.limits)
}
