//! Completions and events on their way from the host.

use verbs::{
    AsyncEvent, Completion, CqId, ProviderEvent, QpAttr, QpAttrMask, QpId, QpState, SrqId, WcFlags, WcOpcode,
    WcStatus,
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
        let mut more = self.device.as_mut().is_some_and(|device| device.events(&mut events));
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
        if let Some(event) = raised {
            self.mark(event);
            self.events.raise(event);
        }
    }

    /// Remembers that the host has said of a queue pair that it failed.
    fn mark(&mut self, event: AsyncEvent) {
        let (AsyncEvent::QpFatal(qp) | AsyncEvent::QpReqErr(qp) | AsyncEvent::QpAccessErr(qp)) = event else {
            return;
        };
        if let Some(twin) = self.twins.qps.get_mut(&qp) {
            twin.suspect = true;
        }
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
        let (Some(device), Some(host)) = (&mut self.device, &twin.host) else { return };
        let mut batch = std::mem::take(&mut self.batch);
        let mut polled = device.poll_cq(host, &mut batch);
        if batch.is_empty() && polled.is_ok() {
            polled = device.arm_cq(host).and_then(|()| device.poll_cq(host, &mut batch));
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
            let ended = Completion::new(qp, cq, send.wr_id, send.opcode, status);
            self.complete(Completion { byte_len, ..ended });
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
        let mut completion = Completion::new(qp, cq, recv.wr_id, opcode, status);
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
        if host != WcStatus::Success
            && let Some(twin) = self.twins.qps.get_mut(&qp)
        {
            twin.suspect = true;
        }
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
        (twin.state, twin.suspect) = (QpState::Err, true);
        let (Some(device), Some(host)) = (&mut self.device, &twin.host) else { return };
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        if let Err(error) = device.modify_qp(host, &attr, QpAttrMask::STATE, 0) {
            device_model::guest_warn!(qp = qp.0, %error, "The host did not stop a queue pair");
        }
    }

    /// The host device is gone, or waits to go until nobody has it open: everything on it ends.
    fn lose_device(&mut self) {
        if self.device.is_none() {
            return;
        }
        tracing::error!("The host's RDMA device is gone: the guest's RDMA connections fail");
        self.twins.let_go();
        self.addresses.clear();
        self.gids.withdraw();
        let qps: Vec<_> = self.twins.qps.keys().copied().collect();
        for qp in qps {
            // Drops address handles too, the last of what the device keeps alive.
            self.flush(qp);
            self.events.raise(AsyncEvent::QpFatal(qp));
        }
        let srqs: Vec<_> = self.twins.srqs.keys().copied().collect();
        srqs.into_iter().for_each(|srq| self.events.raise(AsyncEvent::SrqErr(srq)));
        self.events.raise(AsyncEvent::DeviceFatal);
        self.device = None;
    }

    /// Flushes what a queue pair has, since the host does not any more.
    pub(super) fn flush(&mut self, qp: QpId) {
        while let Some(twin) = self.twins.qps.get_mut(&qp)
            && let Some(send) = twin.send.pop()
        {
            let cq = twin.init.send_cq;
            self.events.push(ProviderEvent::SendRetired(qp));
            self.complete(Completion::new(qp, cq, send.wr_id, send.opcode, WcStatus::WrFlushErr));
        }
        while let Some(twin) = self.twins.qps.get_mut(&qp)
            && let Some(recv) = twin.recv.pop()
        {
            let cq = twin.init.recv_cq;
            self.events.push(ProviderEvent::RecvRetired(qp));
            self.complete(Completion::new(qp, cq, recv.wr_id, WcOpcode::Recv, WcStatus::WrFlushErr));
        }
    }
}
