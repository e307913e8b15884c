//! Carrying out a modification.

use verbs::{AsyncEvent, Error, QpAttr, QpAttrMask, QpState, QpType};

use super::{GSI_QKEY, Qp, attributes, states};
use crate::engine::shared::Shared;
use crate::psn::Psn;
use crate::wire::Path;

impl Qp {
    /// Modifies attributes and state. Nothing has changed when it fails.
    pub(crate) fn modify(&mut self, cx: &mut Shared, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let from = self.state();
        if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(Error::Invalid("current state is not what the caller believes"));
        }
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let edge = states::edge(self.init.qp_type, from, to).ok_or(Error::Transition)?;
        let named = mask - QpAttrMask::STATE;
        if !named.contains(edge.required) {
            return Err(Error::Invalid("an attribute that the transition needs is missing"));
        }
        if !(edge.required | edge.optional | QpAttrMask::CUR_STATE).contains(named) {
            return Err(Error::Invalid("an attribute that the transition does not allow is set"));
        }
        attributes::check(attr, mask, &cx.config.limits)?;
        let path = self.new_path(cx, attr, mask)?;

        attributes::apply(&mut self.attr, attr, mask);
        if self.init.qp_type == QpType::Gsi {
            self.attr.qkey = GSI_QKEY;
        }
        if let Some(path) = path {
            self.path = path;
        }
        self.enter(cx, from, to);
        Ok(())
    }

    /// The path that the address vector among the attributes stands for.
    fn new_path(&self, cx: &Shared, attr: &QpAttr, mask: QpAttrMask) -> Result<Option<Path>, Error> {
        if !mask.contains(QpAttrMask::AV) {
            return Ok(None);
        }
        let src =
            cx.gids.get(attr.av.sgid_index).ok_or(Error::Invalid("source GID index names an empty row"))?;
        if src.ipv4().is_some() != attr.av.dgid.ipv4().is_some() {
            return Err(Error::Invalid("source and destination GID are of different kinds"));
        }
        let peer = if mask.contains(QpAttrMask::DEST_QPN) { attr.dest_qpn } else { self.attr.dest_qpn };
        Ok(Some(Path::new(src, &attr.av, self.qpn, peer).with_ecn()))
    }

    fn enter(&mut self, cx: &mut Shared, from: QpState, to: QpState) {
        if to == QpState::Err && from != QpState::Err {
            self.enter_error(cx);
            return;
        }
        self.attr.state = to;
        match (from, to) {
            (_, QpState::Reset) => {
                self.clear();
                cx.revoked = true;
                let id = self.id;
                cx.forget(|event| event.qp() == Some(id));
            }
            (QpState::Init, QpState::Rtr) => self.resp.expected = Psn::new(self.attr.rq_psn),
            (QpState::Rtr, QpState::Rts) => self.start_requester(cx),
            (QpState::Sqd, QpState::Rts) => {
                // Whoever left before it was drained does not wait for that any more.
                self.attr.sqd_async_notify = false;
                self.wake(cx);
            }
            (QpState::Sqd, QpState::Sqd) => self.restore_budgets(),
            (_, QpState::Sqd) => self.report_drained(cx),
            _ => {}
        }
    }

    /// Moves to the error state: all work ends as flushed, what was sent before what was to be received.
    pub(crate) fn enter_error(&mut self, cx: &mut Shared) {
        self.attr.state = QpState::Err;
        cx.ended = true;
        self.resp.stop();
        self.flush_send(cx);
        self.flush_recv(cx);
        if self.init.srq.is_some() {
            cx.event(AsyncEvent::LastWqeReached(self.id));
        }
    }
}
