//! From rings to the provider, in bounded batches.

use device_model::guest_warn;
use device_model::time::Instant;
use pvrdma_spec::event::EventType;
use pvrdma_spec::queue::{RecvWqeHeader, SendWqeHeader};
use verbs::{QpAttr, QpAttrMask, QpId, QpState, SrqId};

use super::Source;
use super::wqe::{RequestReader, SendContext, parse_recv, parse_send};
use crate::inspect::Cause;
use crate::ring::RingError;
use crate::state::{Core, owner};

/// Requests taken from one ring before the next one has its turn.
const RING_BATCH: u32 = 32;

impl Core {
    /// Remembers to look at a ring, once.
    pub(crate) fn enqueue(&mut self, source: Source) {
        if let Some(ring) = self.objects.work_ring(source)
            && !ring.queued
            && !ring.broken
        {
            ring.queued = true;
            self.ready.push(source);
        }
    }

    /// Hands at most about `budget` work requests to the provider. Rings with more of them stay in the queue.
    pub(crate) fn fetch(&mut self, now: Instant, budget: u32) {
        let mut left = budget;
        while left > 0
            && let Some(source) = self.ready.pop()
        {
            left = left.saturating_sub(self.look_at(now, source));
        }
    }

    /// Like [`Core::fetch`], but for receive requests alone.
    pub(crate) fn fetch_receives(&mut self, now: Instant, budget: u32) {
        let mut left = budget;
        while left > 0
            && let Some(source) = self.ready.pop_receive()
        {
            left = left.saturating_sub(self.look_at(now, source));
        }
    }

    /// Hands over the receive requests that a queue pair finds by now, before it begins to receive: the doorbells that
    /// announce them go another way than commands, and may be slower than its first message.
    pub(crate) fn fetch_receives_of(&mut self, handle: u32) {
        let Some(qp) = self.objects.qp(handle) else { return };
        let source = qp.srq.map_or(Source::Recv(handle), Source::Srq);
        for _ in 0..self.caps.max_qp_wr.max(self.caps.max_srq_wr).div_ceil(RING_BATCH) {
            // What is wrong with a ring is found again, and dealt with, by who looks at it next.
            let Fetched { requests, more } = self.fetch_ring(source).unwrap_or_default();
            self.counters.work_requests += u64::from(requests);
            if !more {
                break;
            }
        }
        self.enqueue(source);
    }

    /// Takes a batch from a ring. Returns what that cost of a budget.
    fn look_at(&mut self, now: Instant, source: Source) -> u32 {
        if let Some(ring) = self.objects.work_ring(source) {
            ring.queued = false;
        }
        match self.fetch_ring(source) {
            Ok(Fetched { requests, more }) => {
                self.counters.work_requests += u64::from(requests);
                self.warm(now, source, requests);
                if more {
                    self.enqueue(source);
                }
                requests + 1
            }
            Err(error) => {
                self.break_ring(source, error);
                1
            }
        }
    }

    fn fetch_ring(&mut self, source: Source) -> Result<Fetched, RingError> {
        let Some(ring) = self.objects.work_ring(source).filter(|ring| !ring.broken) else {
            return Ok(Fetched::default());
        };
        ring.refused = false;
        let waiting = ring.waiting(&*self.ram)?;
        let batch = waiting.min(RING_BATCH);
        for requests in 0..batch {
            let accepted = match source {
                Source::Send(handle) => self.fetch_send(handle)?,
                Source::Recv(handle) => self.fetch_recv(handle)?,
                Source::Srq(handle) => self.fetch_srq(handle)?,
                Source::Poll(_) => false,
            };
            if !accepted {
                if let Some(ring) = self.objects.work_ring(source) {
                    ring.refused = true;
                }
                return Ok(Fetched { requests, more: false });
            }
        }
        Ok(Fetched { requests: batch, more: waiting > batch })
    }

    /// Hands the next send request over. `false` leaves it in the ring, to be looked at again when the state of the queue
    /// pair or the room in it changes.
    fn fetch_send(&mut self, handle: u32) -> Result<bool, RingError> {
        let Some(qp) = self.objects.qp_mut(handle) else { return Ok(false) };
        let reader = RequestReader::read::<SendWqeHeader>(&qp.send, &*self.ram, qp.cap.max_send_sge)?;
        let context = SendContext {
            qp_type: qp.qp_type,
            owner: owner(qp.context),
            signal_all: qp.signal_all,
            gid_table_len: self.caps.gid_tbl_len,
            max_fast_reg_pages: self.caps.max_fast_reg_page_list_len,
        };
        let wr = parse_send(&reader, &context, &*self.ram);
        self.counters.bad_work_requests += u64::from(matches!(wr.op, verbs::SendOp::Bad(_)));
        let accepted = self.provider.post_send(QpId(handle), wr).is_ok();
        if accepted {
            qp.send.advance();
        }
        Ok(accepted)
    }

    fn fetch_recv(&mut self, handle: u32) -> Result<bool, RingError> {
        let Some(qp) = self.objects.qp_mut(handle) else { return Ok(false) };
        let max_sge = qp.cap.max_recv_sge;
        let Some(ring) = &mut qp.recv else { return Ok(false) };
        let reader = RequestReader::read::<RecvWqeHeader>(ring, &*self.ram, max_sge)?;
        let wr = parse_recv(&reader);
        self.counters.bad_work_requests += u64::from(wr.bad.is_some());
        let accepted = self.provider.post_recv(QpId(handle), wr).is_ok();
        if accepted {
            ring.advance();
        }
        Ok(accepted)
    }

    fn fetch_srq(&mut self, handle: u32) -> Result<bool, RingError> {
        let Some(srq) = self.objects.srqs.get_mut(handle) else { return Ok(false) };
        let reader = RequestReader::read::<RecvWqeHeader>(&srq.ring, &*self.ram, srq.attr.max_sge)?;
        let wr = parse_recv(&reader);
        self.counters.bad_work_requests += u64::from(wr.bad.is_some());
        let accepted = self.provider.post_srq_recv(SrqId(handle), wr).is_ok();
        if accepted {
            srq.ring.advance();
        }
        Ok(accepted)
    }

    /// Gives a finished request's slot back to the guest.
    pub(crate) fn retire(&mut self, source: Source) {
        let Some(ring) = self.objects.work_ring(source) else { return };
        let refused = std::mem::take(&mut ring.refused);
        if let Err(error) = ring.retire(&*self.ram) {
            self.break_ring(source, error);
        } else if refused {
            self.enqueue(source);
        }
    }

    fn break_ring(&mut self, source: Source, error: RingError) {
        match source {
            Source::Send(handle) | Source::Recv(handle) => self.break_qp(handle, error),
            Source::Srq(handle) => self.break_srq(handle, error),
            Source::Poll(_) => {}
        }
    }

    /// Stops a queue pair whose rings the guest broke.
    pub(crate) fn break_qp(&mut self, handle: u32, error: RingError) {
        let Some(qp) = self.objects.qp_mut(handle) else { return };
        if std::mem::replace(&mut qp.send.broken, true) {
            return;
        }
        if let Some(ring) = &mut qp.recv {
            ring.broken = true;
        }
        guest_warn!(qp = handle, %error, "queue pair broken by the guest");
        self.counters.broken_rings += 1;
        self.note_failure(QpId(handle), Cause::BrokenRing);
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        // Every state has a way to the error state.
        let _ = self.provider.modify_qp((self.clock)(), QpId(handle), &attr, QpAttrMask::STATE);
        self.raise_event(EventType::QpFatal, handle);
    }

    fn break_srq(&mut self, handle: u32, error: RingError) {
        let Some(srq) = self.objects.srqs.get_mut(handle) else { return };
        if std::mem::replace(&mut srq.ring.broken, true) {
            return;
        }
        guest_warn!(srq = handle, %error, "shared receive queue broken by the guest");
        self.counters.broken_rings += 1;
        self.raise_event(EventType::SrqErr, handle);
    }
}

/// What one look at a ring yielded.
#[derive(Clone, Copy, Debug, Default)]
struct Fetched {
    requests: u32,
    more: bool,
}
