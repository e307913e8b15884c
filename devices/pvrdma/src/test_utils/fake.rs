//! A provider that does no RDMA: it keeps what it is given, and says what the test wants it to say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use device_model::time::Instant;
use parking_lot::Mutex;
use verbs::{
    AsyncEvent, Completion, CqId, CqInit, Error, Gid, GidEntry, Keys, Limits, MrId, MrInit, Mtu, Owner, PdId,
    Provider, ProviderEvent, QpAttr, QpAttrMask, QpId, QpInit, QpState, QpType, Qpn, RecvWr, SendWr, SrqAttr,
    SrqId, SrqInit, WcOpcode, WcStatus,
};

/// A queue pair the provider was asked to create.
#[derive(Debug)]
pub struct FakeQp {
    /// What was asked for.
    pub init: QpInit,
    /// Attributes as modified.
    pub attr: QpAttr,
    /// Send requests, oldest first.
    pub sends: VecDeque<SendWr>,
    /// Receive requests, oldest first.
    pub recvs: VecDeque<RecvWr>,
}

/// What a [`FakeProvider`] knows.
#[derive(Debug, Default)]
pub struct FakeState {
    /// Protection domains.
    pub pds: BTreeMap<PdId, Owner>,
    /// Memory regions.
    pub mrs: BTreeMap<MrId, MrInit>,
    /// Completion queues.
    pub cqs: BTreeMap<CqId, CqInit>,
    /// Completion queues that failed.
    pub failed_cqs: Vec<CqId>,
    /// Shared receive queues and their requests, oldest first.
    pub srqs: BTreeMap<SrqId, (SrqAttr, VecDeque<RecvWr>)>,
    /// Queue pairs.
    pub qps: BTreeMap<QpId, FakeQp>,
    /// GID table.
    pub gids: BTreeMap<u16, Gid>,
    /// Events to report.
    pub events: VecDeque<ProviderEvent>,
    /// Error of the next call that creates or modifies something.
    pub fail_next: Option<Error>,
    /// Times it was reset.
    pub resets: u32,
    /// What it was last told of the port.
    pub port_up: bool,
    keys: u32,
}

impl FakeState {
    fn check(&mut self) -> Result<(), Error> {
        self.fail_next.take().map_or(Ok(()), Err)
    }
}

/// The provider.
#[derive(Debug)]
pub struct FakeProvider {
    state: Arc<Mutex<FakeState>>,
    limits: Limits,
}

/// The test's handle to the provider.
#[derive(Clone, Debug)]
pub struct Fake(Arc<Mutex<FakeState>>);

impl FakeProvider {
    /// Small limits, so that tests reach them.
    pub const LIMITS: Limits = Limits {
        max_qp: 64,
        max_qp_wr: 1024,
        max_sge: 16,
        max_cq: 32,
        max_cqe: 4096,
        max_mr: 128,
        max_mr_size: 1 << 30,
        max_pd: 16,
        max_srq: 8,
        max_srq_wr: 256,
        max_srq_sge: 4,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        gid_table_len: 16,
        max_fast_reg_pages: 128,
        max_msg_size: 1 << 30,
        active_mtu: Mtu::B1024,
    };

    /// A provider with these limits, and the test's handle to it.
    pub fn new(limits: Limits) -> (Self, Fake) {
        let state = Arc::new(Mutex::new(FakeState::default()));
        (Self { state: state.clone(), limits }, Fake(state))
    }
}

impl Fake {
    /// Whether the provider is gone.
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Looks at the state, or changes it.
    pub fn with<R>(&self, act: impl FnOnce(&mut FakeState) -> R) -> R {
        act(&mut self.0.lock())
    }

    /// Reports an event.
    pub fn report(&self, event: ProviderEvent) {
        self.with(|state| state.events.push_back(event));
    }

    /// Reports an asynchronous event.
    pub fn report_async(&self, event: AsyncEvent) {
        self.report(ProviderEvent::Async(event));
    }

    /// Finishes the oldest send of a queue pair. Returns `false` if there is none.
    pub fn finish_send(&self, qp: QpId, status: WcStatus) -> bool {
        self.with(|state| {
            let Some(fake) = state.qps.get_mut(&qp) else { return false };
            let Some(wr) = fake.sends.pop_front() else { return false };
            let cq = fake.init.send_cq;
            state.events.push_back(ProviderEvent::SendRetired(qp));
            if status != WcStatus::Success || wr.flags.contains(verbs::SendFlags::SIGNALED) {
                let completion = Completion::new(qp, cq, wr.wr_id, wr.op.opcode().into(), status);
                state.events.push_back(ProviderEvent::Completion(completion));
            }
            true
        })
    }

    /// Finishes the oldest receive of a queue pair. Returns `false` if there is none.
    pub fn finish_recv(&self, qp: QpId, status: WcStatus, solicited: bool) -> bool {
        self.with(|state| {
            let Some(fake) = state.qps.get_mut(&qp) else { return false };
            let (cq, srq) = (fake.init.recv_cq, fake.init.srq);
            let (wr, retired) = match srq {
                None => (fake.recvs.pop_front(), ProviderEvent::RecvRetired(qp)),
                Some(srq) => (
                    state.srqs.get_mut(&srq).and_then(|(_, wrs)| wrs.pop_front()),
                    ProviderEvent::SrqRetired(srq),
                ),
            };
            let Some(wr) = wr else { return false };
            state.events.push_back(retired);
            let completion =
                Completion { solicited, ..Completion::new(qp, cq, wr.wr_id, WcOpcode::Recv, status) };
            state.events.push_back(ProviderEvent::Completion(completion));
            true
        })
    }
}

impl Provider for FakeProvider {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn create_pd(&mut self, pd: PdId, owner: Owner) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check()?;
        assert_eq!(state.pds.insert(pd, owner), None, "the device gave a handle twice");
        Ok(())
    }

    fn destroy_pd(&mut self, pd: PdId) -> Result<(), Error> {
        self.state.lock().pds.remove(&pd).map(|_| ()).ok_or(Error::NotFound)
    }

    fn register_mr(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error> {
        let mut state = self.state.lock();
        state.check()?;
        assert_eq!(state.mrs.insert(mr, init), None, "the device gave a handle twice");
        state.keys += 0x100;
        Ok(Keys { lkey: state.keys, rkey: state.keys })
    }

    fn deregister_mr(&mut self, mr: MrId) -> Result<(), Error> {
        self.state.lock().mrs.remove(&mr).map(|_| ()).ok_or(Error::NotFound)
    }

    fn create_cq(&mut self, cq: CqId, init: CqInit) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check()?;
        assert_eq!(state.cqs.insert(cq, init), None, "the device gave a handle twice");
        Ok(())
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.state.lock().cqs.remove(&cq).map(|_| ()).ok_or(Error::NotFound)
    }

    fn fail_cq(&mut self, cq: CqId) {
        self.state.lock().failed_cqs.push(cq);
    }

    fn create_srq(&mut self, srq: SrqId, init: SrqInit) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check()?;
        state.srqs.insert(srq, (init.attr, VecDeque::new()));
        Ok(())
    }

    fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), Error> {
        self.state.lock().srqs.get_mut(&srq).ok_or(Error::NotFound)?.0.limit = limit;
        Ok(())
    }

    fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        self.state.lock().srqs.get(&srq).map(|(attr, _)| *attr).ok_or(Error::NotFound)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Error> {
        self.state.lock().srqs.remove(&srq).map(|_| ()).ok_or(Error::NotFound)
    }

    fn create_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        let mut state = self.state.lock();
        state.check()?;
        let fake = FakeQp { init, attr: QpAttr::default(), sends: VecDeque::new(), recvs: VecDeque::new() };
        assert!(state.qps.insert(qp, fake).is_none(), "the device gave a handle twice");
        Ok(match init.qp_type {
            QpType::Gsi => Qpn::GSI,
            _ => init.qpn.unwrap_or(Qpn(0x10_0000 + qp.0)),
        })
    }

    fn modify_qp(&mut self, _: Instant, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check()?;
        let fake = state.qps.get_mut(&qp).ok_or(Error::NotFound)?;
        let old = if mask.contains(QpAttrMask::STATE) { attr.state } else { fake.attr.state };
        fake.attr = QpAttr { state: old, ..*attr };
        if fake.attr.state == QpState::Reset {
            fake.sends.clear();
            fake.recvs.clear();
        }
        Ok(())
    }

    fn query_qp(&self, qp: QpId) -> Result<QpAttr, Error> {
        self.state.lock().qps.get(&qp).map(|fake| fake.attr).ok_or(Error::NotFound)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.qps.remove(&qp).ok_or(Error::NotFound)?;
        state.events.retain(|event| match event {
            ProviderEvent::SendRetired(other) | ProviderEvent::RecvRetired(other) => *other != qp,
            ProviderEvent::Completion(completion) => completion.qp != qp,
            _ => true,
        });
        Ok(())
    }

    fn set_gid(&mut self, entry: GidEntry) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check()?;
        state.gids.insert(entry.index, entry.gid);
        Ok(())
    }

    fn clear_gid(&mut self, index: u16) -> Result<(), Error> {
        self.state.lock().gids.remove(&index).map(|_| ()).ok_or(Error::NotFound)
    }

    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), Error> {
        let mut state = self.state.lock();
        let fake = state.qps.get_mut(&qp).ok_or(Error::NotFound)?;
        if !matches!(fake.attr.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err) {
            return Err(Error::Transition);
        }
        if fake.sends.len() >= fake.init.cap.max_send_wr as usize {
            return Err(Error::Exhausted);
        }
        fake.sends.push_back(wr);
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), Error> {
        let mut state = self.state.lock();
        let fake = state.qps.get_mut(&qp).ok_or(Error::NotFound)?;
        if fake.attr.state == QpState::Reset {
            return Err(Error::Transition);
        }
        if fake.recvs.len() >= fake.init.cap.max_recv_wr as usize {
            return Err(Error::Exhausted);
        }
        fake.recvs.push_back(wr);
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), Error> {
        self.state.lock().srqs.get_mut(&srq).ok_or(Error::NotFound)?.1.push_back(wr);
        Ok(())
    }

    fn set_port(&mut self, up: bool) {
        self.state.lock().port_up = up;
    }

    fn claims(&self, _: &[u8]) -> bool {
        false
    }

    fn receive(&mut self, _: Instant, _: &[u8]) {}

    fn advance(&mut self, _: Instant) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<ProviderEvent> {
        self.state.lock().events.pop_front()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn reset(&mut self) {
        let mut state = self.state.lock();
        let resets = state.resets + 1;
        *state = FakeState { resets, ..FakeState::default() };
    }
}
