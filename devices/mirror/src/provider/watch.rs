//! Notices queue pairs that the host moved to the error state without a word.
//!
//! Hardware says so by an event. `rdma_rxe` lets flushed requests say it, so of a queue pair that has none posted, the target
//! of a bad RDMA write for one, nobody would ever hear.

use std::time::Duration;

use device_model::time::Instant;
use verbs::{AsyncEvent, QpId, QpState, QpType};

use super::MirrorProvider;
use super::objects::Qp;
use super::work::flush_late;
use crate::device::Device;

/// How often queue pairs are looked at.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Queue pairs looked at each time: every look is a system call.
const BATCH: usize = 256;

/// Which queue pairs are looked at next, and when.
#[derive(Debug, Default)]
pub(super) struct Watch {
    due: Option<Instant>,
    /// The one looked at last.
    last: Option<QpId>,
}

impl Watch {
    /// There is a queue pair to be looked at from now on.
    pub(super) fn start(&mut self, now: Instant) {
        self.due.get_or_insert(now + PERIOD);
    }

    /// When [`MirrorProvider::watch`] is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl<D: Device> MirrorProvider<D> {
    /// Looks at the next queue pairs if it is time to.
    pub(super) fn watch(&mut self, now: Instant) {
        if self.watch.due.is_none_or(|due| due > now) {
            return;
        }
        let mut watched: Vec<_> =
            self.twins.qps.iter().filter(|(_, twin)| may_fail_silently(twin)).map(|(qp, _)| *qp).collect();
        watched.sort_unstable();
        let next = watched.partition_point(|qp| Some(*qp) <= self.watch.last);
        watched.rotate_left(next);
        watched.truncate(BATCH);
        self.watch.due = (!watched.is_empty()).then_some(now + PERIOD);
        self.watch.last = watched.last().copied();
        watched.into_iter().for_each(|qp| self.look_for_failure(qp));
    }

    /// What is found in error once may have completions on the way that say so. Found so again, there is nothing else to tell
    /// of it.
    fn look_for_failure(&mut self, qp: QpId) {
        let (Some(twin), Some(device)) = (self.twins.qps.get_mut(&qp), &mut self.device) else { return };
        let Some(host) = &twin.host else { return };
        let failed = device.query_qp(host).is_ok_and(|attr| attr.state == QpState::Err);
        if !failed || !std::mem::replace(&mut twin.doubted, failed) {
            return;
        }
        twin.suspect = true;
        flush_late(device, host);
        self.events.raise(AsyncEvent::QpFatal(qp));
    }
}

fn may_fail_silently<D: Device>(twin: &Qp<D>) -> bool {
    let connected = matches!(twin.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
    twin.init.qp_type == QpType::Rc && connected && !twin.suspect
}
