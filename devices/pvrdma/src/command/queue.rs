//! Completion queues and shared receive queues.

use std::sync::Arc;

use pvrdma_spec::attr::{SRQ_LIMIT, SrqAttr};
use pvrdma_spec::command::{
    CreateCq, CreateCqResponse, CreateSrq, HandleResponse, ModifySrq, QuerySrqResponse, ResponseHeader,
};
use pvrdma_spec::queue::{Cqe, RX_OFFSET, RecvWqeHeader, Sge};
use pvrdma_spec::{PAGE_DIR_MAX_PAGES, PAGE_SIZE};
use verbs::{CqId, CqInit, PdId, SrqId, SrqInit};

use super::CommandError;
use crate::ring::{Indices, Placement, ProducerRing, RingPages, WorkRing};
use crate::state::{Arm, Core, Cq, Srq, owner};
use crate::work::Source;

/// Sizes of a queue of work requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkQueueSize {
    /// Slots, a power of two.
    pub(crate) slots: u32,
    /// Bytes of a slot, a power of two.
    pub(crate) stride: u32,
}

impl WorkQueueSize {
    /// The layout that driver and library derive from `max_wr` requests of `max_sge` elements after a header of type `H`.
    pub(crate) fn new<H>(max_wr: u32, max_sge: u32) -> Self {
        let bytes = size_of::<H>() as u32 + max_sge * size_of::<Sge>() as u32;
        Self { slots: max_wr.next_power_of_two(), stride: bytes.next_power_of_two() }
    }

    /// Pages it takes.
    pub(crate) fn pages(self) -> u32 {
        let bytes = u64::from(self.slots) * u64::from(self.stride);
        u32::try_from(bytes.div_ceil(PAGE_SIZE)).unwrap_or(u32::MAX)
    }

    /// Index arithmetic.
    pub(crate) fn indices(self) -> Result<Indices, CommandError> {
        Indices::new(self.slots).ok_or(CommandError::Invalid("number of work requests"))
    }
}

/// Checks a count the guest asks for against a capability.
pub(super) fn check_count(value: u32, max: u32, what: &'static str) -> Result<(), CommandError> {
    if (1..=max).contains(&value) { Ok(()) } else { Err(CommandError::Invalid(what)) }
}

impl Core {
    pub(super) fn create_cq(
        &mut self,
        request: &CreateCq,
        hdr: ResponseHeader,
    ) -> Result<CreateCqResponse, CommandError> {
        let context = self.context(request.ctx_handle)?;
        check_count(request.cqe, self.caps.max_cqe, "number of completions")?;
        if !request.cqe.is_power_of_two() {
            return Err(CommandError::Invalid("number of completions, it is no power of two"));
        }
        let indices = Indices::new(request.cqe).ok_or(CommandError::Invalid("number of completions"))?;
        let stride = size_of::<Cqe>() as u32;
        let pages = 1 + (u64::from(request.cqe) * u64::from(stride)).div_ceil(PAGE_SIZE) as u32;
        let handle = self.objects.cqs.vacant().ok_or(CommandError::Exhausted("completion queues"))?;
        let pages = self.load_ring(request.pdir_dma, pages, request.nchunks)?;
        let ring = ProducerRing::new(pages, indices, stride);
        let init = CqInit { owner: owner(context), depth: request.cqe };
        if let Err(error) = self.provider.create_cq(CqId(handle), init) {
            self.objects.page_list_bytes -= ring.cost();
            return Err(error.into());
        }
        let cq = Cq {
            context,
            ring,
            users: 0,
            arm: Arm::No,
            solicited: 0,
            notified: 0,
            notification: None,
            deferred: false,
            failed: false,
        };
        self.objects.cqs.insert(handle, cq);
        self.attach(Source::Poll(handle), context);
        Ok(CreateCqResponse { hdr, cq_handle: handle, cqe: request.cqe })
    }

    pub(super) fn destroy_cq(&mut self, handle: u32) -> Result<(), CommandError> {
        let cq = self.cq(handle)?;
        let context = cq.context;
        if cq.users > 0 {
            return Err(CommandError::Busy("Completion queue", handle));
        }
        self.provider.destroy_cq(CqId(handle))?;
        self.detach(Source::Poll(handle), context);
        if let Some(cq) = self.objects.cqs.remove(handle) {
            self.objects.page_list_bytes -= cq.ring.cost();
        }
        Ok(())
    }

    pub(super) fn create_srq(
        &mut self,
        request: &CreateSrq,
        hdr: ResponseHeader,
    ) -> Result<HandleResponse, CommandError> {
        let (pd, context) = (request.pd_handle, self.pd(request.pd_handle)?.context);
        let SrqAttr { max_wr, max_sge, srq_limit, .. } = request.attrs;
        if request.srq_type != 0 {
            return Err(CommandError::Invalid("type of a shared receive queue"));
        }
        check_count(max_wr, self.caps.max_srq_wr, "number of work requests")?;
        check_count(max_sge, self.caps.max_srq_sge, "number of scatter elements")?;
        check_limit(srq_limit, max_wr)?;
        let size = WorkQueueSize::new::<RecvWqeHeader>(max_wr, max_sge);
        let attr = verbs::SrqAttr { max_wr: size.slots, max_sge, limit: srq_limit };
        let handle = self.objects.srqs.vacant().ok_or(CommandError::Exhausted("shared receive queues"))?;
        let pages = self.load_ring(request.pdir_dma, 1 + size.pages(), request.nchunks)?;
        let placement = Placement { state: RX_OFFSET, base: PAGE_SIZE, stride: size.stride };
        let ring = WorkRing::new(Arc::new(pages), size.indices()?, placement);
        if let Err(error) = self.provider.create_srq(SrqId(handle), SrqInit { pd: PdId(pd), attr }) {
            self.objects.page_list_bytes -= ring.cost();
            return Err(error.into());
        }
        self.objects.srqs.insert(handle, Srq { context, pd, ring, attr, users: 0 });
        self.use_pd(pd);
        self.attach(Source::Srq(handle), context);
        Ok(HandleResponse { hdr, handle, reserved: 0 })
    }

    /// Arms the limit, the only attribute that the driver lets through.
    pub(super) fn modify_srq(&mut self, request: &ModifySrq) -> Result<(), CommandError> {
        let max_wr = self.srq(request.srq_handle)?.attr.max_wr;
        if request.attr_mask != SRQ_LIMIT {
            return Err(CommandError::Invalid("attribute of a shared receive queue"));
        }
        check_limit(request.attrs.srq_limit, max_wr)?;
        Ok(self.provider.set_srq_limit(SrqId(request.srq_handle), request.attrs.srq_limit)?)
    }

    pub(super) fn query_srq(
        &self,
        handle: u32,
        hdr: ResponseHeader,
    ) -> Result<QuerySrqResponse, CommandError> {
        let srq = self.srq(handle)?;
        let limit = self.provider.query_srq(SrqId(handle))?.limit;
        let attrs =
            SrqAttr { max_wr: srq.attr.max_wr, max_sge: srq.attr.max_sge, srq_limit: limit, reserved: 0 };
        Ok(QuerySrqResponse { hdr, attrs })
    }

    pub(super) fn destroy_srq(&mut self, handle: u32) -> Result<(), CommandError> {
        let srq = self.srq(handle)?;
        let context = srq.context;
        if srq.users > 0 {
            return Err(CommandError::Busy("Shared receive queue", handle));
        }
        self.provider.destroy_srq(SrqId(handle))?;
        self.detach(Source::Srq(handle), context);
        if let Some(srq) = self.objects.srqs.remove(handle) {
            self.objects.page_list_bytes -= srq.ring.cost();
            self.release_pd(srq.pd);
        }
        Ok(())
    }

    /// Copies the page list of a ring that needs `needed` pages, the guest having given `given`, and accounts for it.
    pub(super) fn load_ring(
        &mut self,
        pdir: u64,
        needed: u32,
        given: u32,
    ) -> Result<RingPages, CommandError> {
        if given < needed || given > PAGE_DIR_MAX_PAGES {
            return Err(CommandError::Invalid("number of pages of a queue"));
        }
        let pages = RingPages::load(&*self.ram, pdir, needed)?;
        self.charge(RingPages::cost(needed))?;
        Ok(pages)
    }

    /// A completion queue.
    pub(super) fn cq(&self, handle: u32) -> Result<&Cq, CommandError> {
        self.objects.cqs.get(handle).ok_or(CommandError::NoObject("completion queue", handle))
    }

    /// A shared receive queue.
    pub(super) fn srq(&self, handle: u32) -> Result<&Srq, CommandError> {
        self.objects.srqs.get(handle).ok_or(CommandError::NoObject("shared receive queue", handle))
    }
}

fn check_limit(limit: u32, max_wr: u32) -> Result<(), CommandError> {
    if limit > max_wr { Err(CommandError::Invalid("limit of a shared receive queue")) } else { Ok(()) }
}
