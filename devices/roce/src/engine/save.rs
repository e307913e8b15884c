//! Saving and restoring an engine.
//!
//! All of it moves: objects, keys and numbers with the secret they come from, both halves of every connection, unfinished
//! work requests as they were taken from the guest, and what waits to be reported. Packets on their way are lost, as a
//! wire may lose them: a restored requester sends again from its oldest unacknowledged packet, and a restored responder
//! answers duplicates from what it remembers, the results of atomic operations included. Timers have the time left that
//! they had.
//!
//! What a record says is checked where it is restored. A record that was made up can fail connections and name memory
//! of its own guest; it cannot do more than the guest and its peers could.

use std::collections::VecDeque;

use device_model::save::{Record, RestoreError, SaveError, Saved};
use device_model::time::Instant;
use serde::{Deserialize, Serialize};
use verbs::{CqId, Error, Gid, PdId, ProviderEvent, QpType, Qpn, RecvWr, SrqAttr, SrqId};

use super::keys::Permutation;
use super::mr::MrsState;
use super::objects::{count_users, is_reserved};
use super::qp::save::QpSaved;
use super::shared::{Cq, Pd, Shared};
use super::srq::Srq;
use super::{Counters, Engine};

/// A shared receive queue.
#[derive(Debug, Serialize, Deserialize)]
struct SrqState {
    id: SrqId,
    pd: PdId,
    attr: SrqAttr,
    waiting: Vec<RecvWr>,
}

/// Everything an engine knows.
#[derive(Debug, Serialize, Deserialize)]
struct EngineState {
    qps_created: u32,
    pds: Vec<PdId>,
    /// Completion queues, and whether they have failed.
    cqs: Vec<(CqId, bool)>,
    srqs: Vec<SrqState>,
    mrs: MrsState,
    gids: Vec<(u16, Gid)>,
    qps: Vec<QpSaved>,
    events: Vec<ProviderEvent>,
    counters: Vec<(String, u64)>,
}

impl Saved for EngineState {
    const KIND: &'static str = "RoCE engine";
    const VERSION: u16 = 1;
}

impl Engine {
    /// Saves the engine. All effects must have been carried out.
    ///
    /// # Errors
    ///
    /// [`SaveError::TooLarge`].
    pub fn save(&self, now: Instant) -> Result<Record, SaveError> {
        let Shared { config, pds, cqs, srqs, mrs, gids, events, counters, .. } = &self.shared;
        let srqs = srqs.iter().map(|(id, srq)| SrqState {
            id: SrqId(id),
            pd: srq.pd,
            attr: srq.attr,
            waiting: srq.waiting.iter().cloned().collect(),
        });
        Record::new(&EngineState {
            qps_created: self.created,
            pds: pds.iter().map(|(id, _)| PdId(id)).collect(),
            cqs: cqs.iter().map(|(id, cq)| (CqId(id), cq.failed)).collect(),
            srqs: srqs.collect(),
            mrs: MrsState::of(mrs, config.secret),
            gids: gids.rows().collect(),
            qps: self.qps.iter().map(|(_, qp)| QpSaved::of(qp, now)).collect(),
            events: events.iter().copied().collect(),
            counters: counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        })
    }

    /// Restores what [`Engine::save`] saved. The engine has no objects when that fails.
    ///
    /// # Errors
    ///
    /// [`RestoreError`].
    pub fn restore(&mut self, now: Instant, record: &Record) -> Result<(), RestoreError> {
        let state = record.open::<EngineState>()?;
        self.reset();
        self.shared.now = now;
        let restored = self.adopt(state);
        if restored.is_err() {
            self.reset();
        }
        restored.map_err(RestoreError::invalid::<EngineState>)
    }

    fn adopt(&mut self, state: EngineState) -> Result<(), Error> {
        let EngineState { qps_created, pds, cqs, srqs, mrs, gids, qps, events, counters } = state;
        let cx = &mut self.shared;
        for PdId(id) in pds {
            cx.pds.insert(id, Pd { users: 0 })?;
        }
        for (CqId(id), failed) in cqs {
            cx.cqs.insert(id, Cq { users: 0, failed })?;
        }
        srqs.into_iter().try_for_each(|srq| cx.adopt_srq(srq))?;
        cx.config.secret = mrs.secret();
        self.secret = Permutation::new(!mrs.secret());
        let pds = &mut cx.pds;
        mrs.restore(&mut cx.mrs, |pd| pds.require(pd.0).map(|pd| pd.users += 1))?;
        gids.into_iter().try_for_each(|(row, gid)| cx.gids.set(row, gid))?;
        cx.counters = Counters::from_names(&counters);
        self.created = qps_created;
        qps.into_iter().try_for_each(|qp| self.adopt_qp(qp))?;
        self.shared.events = VecDeque::from(events);
        Ok(())
    }

    fn adopt_qp(&mut self, state: QpSaved) -> Result<(), Error> {
        let (id, qpn, init) = (state.id(), state.qpn(), *state.init());
        self.check_qp(&init)?;
        self.qps.check_free(id.0)?;
        if qpn.0 > Qpn::MASK || is_reserved(qpn) != (init.qp_type == QpType::Gsi) || self.is_taken(qpn) {
            return Err(Error::Invalid("queue pair number"));
        }
        if Self::qp_id(self.secret, &self.named, qpn) != id {
            self.named.insert(qpn, id);
        }
        let qp = state.restore(&mut self.shared)?;
        self.qps.insert(id.0, Box::new(qp))?;
        count_users(&mut self.shared, &init, |users| *users += 1);
        Ok(())
    }
}

impl Shared {
    fn adopt_srq(&mut self, state: SrqState) -> Result<(), Error> {
        let SrqState { id, pd, attr, waiting } = state;
        let limits = &self.config.limits;
        if attr.max_wr > limits.max_srq_wr
            || attr.max_sge > limits.max_srq_sge
            || attr.limit > attr.max_wr
            || waiting.len() > attr.max_wr as usize
            || waiting.iter().any(|wr| wr.sges.len() > attr.max_sge as usize)
        {
            return Err(Error::Invalid("size of a shared receive queue"));
        }
        self.pds.require(pd.0)?.users += 1;
        self.srqs.insert(id.0, Srq { pd, attr, waiting: VecDeque::from(waiting), users: 0 })
    }
}
