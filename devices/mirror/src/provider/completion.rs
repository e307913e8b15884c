//! Completions and events on their way from the host.

use verbs::{
    AsyncEvent, Completion, CqId, ProviderEvent, QpAttr, QpAttrMask, QpId, QpState, Qpn, SrqId, WcFlags,
    WcOpcode, WcStatus,
};

use super::MirrorProvider;
use super::objects::Recv;
use super::queue::Queue;
use crate::device::{Device, HostCompletion, HostEvent};

/// Completion queues looked at in one call.
const CQ_BUDGET: usize = 64;

impl<D: Device> MirrorProvider<D> {
    /// Takes what the host has to say, as far as there is room for it. Returns whether there is more.
    pub(super) fn listen(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.host_events);
        let mut more = self.device.events(&mut events);
        for event in events.drain(..) {
            self.hear(event);
        }
        self.host_events = events;
        for _ in 0..CQ_BUDGET {
            if self.events.has_enough() {
                break;
            }
            let Some(cq) = self.ready.pop_front() else { break };
            self.poll(cq);
        }
        more |= !self.ready.is_empty();
        more
    }

    fn hear(&mut self, event: HostEvent) {
        let qp = |tag| Some(QpId(tag)).filter(|qp| self.twins.qps.contains_key(qp));
        let srq = |tag| Some(SrqId(tag)).filter(|srq| self.twins.srqs.contains_key(srq));
        let raised = match event {
            HostEvent::Completion(tag) => {
                self.counters.wakeups += 1;
                return self.look_at(CqId(tag));
            }
            HostEvent::DeviceFatal => return self.lose_device(),
            HostEvent::Port { up } => Some(AsyncEvent::Port { up }),
            HostEvent::CqErr(tag) => {
                Some(CqId(tag)).filter(|cq| self.twins.cqs.contains_key(cq)).map(AsyncEvent::CqErr)
            }
            HostEvent::QpFatal(tag) => qp(tag).map(AsyncEvent::QpFatal),
            HostEvent::QpReqErr(tag) => qp(tag).map(AsyncEvent::QpReqErr),
            HostEvent::QpAccessErr(tag) => qp(tag).map(AsyncEvent::QpAccessErr),
            HostEvent::CommEst(tag) => qp(tag).map(AsyncEvent::CommEst),
            HostEvent::SqDrained(tag) => qp(tag).map(AsyncEvent::SqDrained),
            HostEvent::LastWqeReached(tag) => qp(tag).map(AsyncEvent::LastWqeReached),
            HostEvent::SrqLimitReached(tag) => srq(tag).map(AsyncEvent::SrqLimitReached),
            HostEvent::SrqErr(tag) => srq(tag).map(AsyncEvent::SrqErr),
        };
        raised.into_iter().for_each(|event| self.events.raise(event));
    }

    fn look_at(&mut self, cq: CqId) {
        if let Some(twin) = self.twins.cqs.get_mut(&cq)
            && !twin.queued
        {
            twin.queued = true;
            self.ready.push_back(cq);
        }
    }

    /// Takes a batch of completions. When there are no more, the queue is armed and looked at once again: a completion that
    /// came before it was armed raises no event.
    fn poll(&mut self, cq: CqId) {
        let Some(twin) = self.twins.cqs.get_mut(&cq) else { return };
        twin.queued = false;
        let mut batch = std::mem::take(&mut self.batch);
        let mut polled = self.device.poll_cq(&twin.host, &mut batch);
        if batch.is_empty() && polled.is_ok() {
            polled =
                self.device.arm_cq(&twin.host).and_then(|()| self.device.poll_cq(&twin.host, &mut batch));
        }
        if let Err(error) = polled {
            device_model::guest_warn!(cq = cq.0, %error, "A completion queue of the host failed");
            self.events.raise(AsyncEvent::CqErr(cq));
        }
        if !batch.is_empty() {
            self.look_at(cq);
        }
        for completion in batch.drain(..) {
            self.take(cq, &completion);
        }
        self.batch = batch;
    }

    fn take(&mut self, cq: CqId, host: &HostCompletion) {
        self.counters.completions += 1;
        let Some((queue, position)) = self.twins.numbers.resolve(host.wr_id) else {
            self.counters.stale += 1;
            return;
        };
        match queue {
            Queue::Send(qp) => self.finish_send(cq, qp, position, host),
            Queue::Recv(qp) => self.finish_recv(cq, qp, position, host),
            Queue::Srq(srq) => self.finish_shared(cq, srq, position, host),
        }
    }

    fn finish_send(&mut self, cq: CqId, qp: QpId, position: u32, host: &HostCompletion) {
        let Some((count, send)) = self.twins.qps.get_mut(&qp).and_then(|qp| qp.send.finish(position)) else {
            return;
        };
        self.events.push_many(ProviderEvent::SendRetired(qp), count);
        let status = self.verdict(qp, host.status, send.fails);
        if send.signaled || status != WcStatus::Success {
            let byte_len = if status == WcStatus::Success { host.byte_len } else { 0 };
            let completion = Completion { byte_len, ..bare(cq, qp, send.wr_id, status, send.opcode) };
            self.complete(completion);
        }
    }

    fn finish_recv(&mut self, cq: CqId, qp: QpId, position: u32, host: &HostCompletion) {
        let Some((count, recv)) = self.twins.qps.get_mut(&qp).and_then(|qp| qp.recv.finish(position)) else {
            return;
        };
        self.events.push_many(ProviderEvent::RecvRetired(qp), count);
        self.received(cq, qp, &recv, host);
    }

    fn finish_shared(&mut self, cq: CqId, srq: SrqId, position: u32, host: &HostCompletion) {
        let Some(recv) = self.twins.srqs.get_mut(&srq).and_then(|srq| srq.queue.finish(position)) else {
            return;
        };
        self.events.push(ProviderEvent::SrqRetired(srq));
        // A queue pair that is destroyed leaves its completions in the host's queue.
        match self.twins.qpns.get(&host.qpn) {
            Some(qp) => self.received(cq, *qp, &recv, host),
            None => self.counters.stale += 1,
        }
    }

    fn received(&mut self, cq: CqId, qp: QpId, recv: &Recv, host: &HostCompletion) {
        let status = self.verdict(qp, host.status, recv.fails);
        let opcode = if host.by_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let mut completion = bare(cq, qp, recv.wr_id, status, opcode);
        // Verbs do not say whether the sender wanted an event, and one too many does no harm.
        completion.solicited = true;
        if status == WcStatus::Success {
            completion.byte_len = host.byte_len;
            completion.imm_or_key = host.imm.unwrap_or_default();
            completion.src_qp = host.src_qp;
            completion.flags.set(WcFlags::WITH_IMM, host.imm.is_some());
            completion.flags.set(WcFlags::GRH, host.grh);
        }
        self.complete(completion);
    }

    /// How a request ended for the guest. One that had to fail does so even if the host did not notice.
    fn verdict(&mut self, qp: QpId, host: WcStatus, fails: Option<WcStatus>) -> WcStatus {
        match fails {
            Some(status) if host != WcStatus::WrFlushErr => {
                if host == WcStatus::Success {
                    self.stop(qp);
                }
                status
            }
            _ => host,
        }
    }

    fn complete(&mut self, completion: Completion) {
        if self.twins.cqs.get(&completion.cq).is_some_and(|cq| !cq.failed) {
            self.events.push(ProviderEvent::Completion(completion));
        }
    }

    /// Moves a queue pair to the error state.
    pub(super) fn stop(&mut self, qp: QpId) {
        let Some(twin) = self.twins.qps.get_mut(&qp) else { return };
        twin.state = QpState::Err;
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        if let Err(error) = self.device.modify_qp(&twin.host, &attr, QpAttrMask::STATE, 0) {
            device_model::guest_warn!(qp = qp.0, %error, "The host did not stop a queue pair");
        }
    }

    /// The host device is gone: its twins are no more than names.
    fn lose_device(&mut self) {
        if std::mem::replace(&mut self.is_gone, true) {
            return;
        }
        tracing::error!("The host's RDMA device is gone: the guest's RDMA connections fail");
        let qps: Vec<_> = self.twins.qps.keys().copied().collect();
        for qp in qps {
            self.flush(qp);
            self.events.raise(AsyncEvent::QpFatal(qp));
        }
        let srqs: Vec<_> = self.twins.srqs.keys().copied().collect();
        srqs.into_iter().for_each(|srq| self.events.raise(AsyncEvent::SrqErr(srq)));
        self.events.raise(AsyncEvent::DeviceFatal);
    }

    /// Flushes what a queue pair has, since the host does not any more.
    pub(super) fn flush(&mut self, qp: QpId) {
        while let Some(twin) = self.twins.qps.get_mut(&qp)
            && let Some(send) = twin.send.pop()
        {
            let cq = twin.init.send_cq;
            self.events.push(ProviderEvent::SendRetired(qp));
            self.complete(bare(cq, qp, send.wr_id, WcStatus::WrFlushErr, send.opcode));
        }
        while let Some(twin) = self.twins.qps.get_mut(&qp)
            && let Some(recv) = twin.recv.pop()
        {
            let cq = twin.init.recv_cq;
            self.events.push(ProviderEvent::RecvRetired(qp));
            self.complete(bare(cq, qp, recv.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv));
        }
    }
}

/// A completion that says no more than how a request ended.
const fn bare(cq: CqId, qp: QpId, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
    Completion {
        wr_id,
        cq,
        qp,
        status,
        opcode,
        byte_len: 0,
        imm_or_key: [0; 4],
        src_qp: Qpn(0),
        flags: WcFlags::empty(),
        pkey_index: 0,
        network_hdr_type: 0,
        solicited: !matches!(status, WcStatus::Success),
    }
}
