//! What the provider reports.

use pvrdma_spec::event::EventType;
use verbs::{AsyncEvent, ProviderEvent};

use crate::inspect::Cause;
use crate::state::Core;
use crate::work::Source;

impl Core {
    /// Passes at most `budget` events on. Returns whether there may be more.
    pub(crate) fn pump(&mut self, budget: u32) -> bool {
        for _ in 0..budget {
            match self.provider.poll_event() {
                Some(event) => self.pass_on(&event),
                None => return false,
            }
        }
        true
    }

    fn pass_on(&mut self, event: &ProviderEvent) {
        match event {
            ProviderEvent::SendRetired(qp) => self.retire(Source::Send(qp.0)),
            ProviderEvent::RecvRetired(qp) => self.retire(Source::Recv(qp.0)),
            ProviderEvent::SrqRetired(srq) => self.retire(Source::Srq(srq.0)),
            ProviderEvent::Completion(completion) => self.complete(completion),
            ProviderEvent::Async(event) => self.pass_on_async(*event),
        }
    }

    fn pass_on_async(&mut self, event: AsyncEvent) {
        if let AsyncEvent::QpFatal(qp) | AsyncEvent::QpReqErr(qp) | AsyncEvent::QpAccessErr(qp) = event {
            self.note_failure(qp, Cause::Event(event));
        }
        let (kind, handle) = match event {
            AsyncEvent::CqErr(cq) => return self.fail_cq(cq.0, "the provider's failed"),
            AsyncEvent::Port { up } => return self.set_port(up),
            AsyncEvent::DeviceFatal => (EventType::DeviceFatal, 0),
            AsyncEvent::QpFatal(qp) => (EventType::QpFatal, qp.0),
            AsyncEvent::QpReqErr(qp) => (EventType::QpReqErr, qp.0),
            AsyncEvent::QpAccessErr(qp) => (EventType::QpAccessErr, qp.0),
            AsyncEvent::CommEst(qp) => (EventType::CommEst, qp.0),
            AsyncEvent::SqDrained(qp) => (EventType::SqDrained, qp.0),
            AsyncEvent::LastWqeReached(qp) => (EventType::QpLastWqeReached, qp.0),
            AsyncEvent::SrqLimitReached(srq) => (EventType::SrqLimitReached, srq.0),
            AsyncEvent::SrqErr(srq) => (EventType::SrqErr, srq.0),
        };
        self.raise_event(kind, handle);
    }
}
