//! Work requests that need no packet: fast registration and invalidation of own keys.

use verbs::{SendOp, WcStatus};

use super::Phase;
use crate::engine::mr::Denied;
use crate::engine::qp::Qp;
use crate::engine::shared::Shared;

impl Qp {
    /// Carries the current request out. Returns `false` if its time has not come.
    ///
    /// A registration happens at once. An invalidation waits until all earlier requests are finished, since to send one of
    /// them again may need the key.
    pub(super) fn run_local(&mut self, cx: &mut Shared) -> bool {
        let first = self.sq.current == 0;
        let kernel = self.is_kernel();
        let Some(wqe) = self.sq.wqes.get_mut(self.sq.current) else { return false };
        let done = match &wqe.wr.op {
            _ if !kernel => {
                self.fail_current(cx, WcStatus::LocQpOpErr);
                return true;
            }
            SendOp::LocalInv { .. } if !first => return false,
            SendOp::LocalInv { key } => {
                cx.revoked = true;
                cx.mrs.invalidate(self.init.pd, *key)
            }
            SendOp::FastReg(reg) => cx.mrs.fast_register(self.init.pd, (**reg).clone()),
            _ => Err(Denied),
        };
        if done.is_err() {
            self.fail_current(cx, WcStatus::MwBindErr);
            return true;
        }
        wqe.phase = Phase::Done;
        self.sq.current += 1;
        self.complete_done(cx);
        true
    }
}
