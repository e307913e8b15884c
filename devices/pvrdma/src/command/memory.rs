//! User contexts, protection domains and memory regions.

use pvrdma_spec::command::{
    CreateMr, CreateMrResponse, CreatePd, CreateUc, HandleResponse, MrFlags, ResponseHeader,
};
use pvrdma_spec::shared::uar_pfn;
use pvrdma_spec::{PAGE_DIR_MAX_PAGES, PAGE_SIZE};
use verbs::{Access, MrId, MrInit, MrKind, PageList, PdId};

use super::CommandError;
use crate::polling::Heat;
use crate::ring::walk;
use crate::state::{Context, Core, KERNEL, Mr, Pd, owner};

/// `IB_ACCESS_ON_DEMAND`: pages that may be absent, which the device cannot cope with.
const ACCESS_ON_DEMAND: u32 = 1 << 6;
/// `IB_ACCESS_ZERO_BASED` and `IB_ACCESS_ON_DEMAND`, which no region of this device can have. `IB_ACCESS_MW_BIND` is a right
/// that nobody can make use of: there are no memory windows, and programs learn that when they ask for one.
const ACCESS_UNSUPPORTED: u32 = 1 << 5 | ACCESS_ON_DEMAND;

impl Core {
    /// Creates a user context around the doorbell page the guest picked for it.
    pub(super) fn create_uc(
        &mut self,
        request: &CreateUc,
        hdr: ResponseHeader,
    ) -> Result<HandleResponse, CommandError> {
        let (base, version) =
            self.phase.active().map(|region| (region.uar_base, region.driver_version)).unwrap_or_default();
        let page = uar_pfn(request.pfn, version)
            .checked_sub(base)
            .and_then(|page| u32::try_from(page).ok())
            .filter(|page| (1..self.caps.max_uar).contains(page))
            .ok_or(CommandError::Invalid("doorbell page"))?;
        if self.objects.contexts.iter().any(|(_, context)| context.page == page) {
            return Err(CommandError::Invalid("doorbell page, it has an owner"));
        }
        let handle = self.objects.contexts.vacant().ok_or(CommandError::Exhausted("user contexts"))?;
        self.objects.contexts.insert(handle, Context { page, heat: Heat::default() });
        Ok(HandleResponse { hdr, handle, reserved: 0 })
    }

    /// Destroys a user context with all that is left of it. A process that was killed while it created an object leaves one
    /// that the guest does not know of.
    pub(super) fn destroy_uc(&mut self, handle: u32) -> Result<(), CommandError> {
        if self.objects.contexts.get(handle).is_none() {
            return Err(CommandError::NoObject("user context", handle));
        }
        for qp in self.objects.qps.handles(|qp| qp.context == handle) {
            self.destroy_qp(qp)?;
        }
        for srq in self.objects.srqs.handles(|srq| srq.context == handle) {
            self.destroy_srq(srq)?;
        }
        for cq in self.objects.cqs.handles(|cq| cq.context == handle) {
            self.destroy_cq(cq)?;
        }
        for mr in self.objects.mrs.handles(|mr| mr.context == handle) {
            self.destroy_mr(mr)?;
        }
        for pd in self.objects.pds.handles(|pd| pd.context == handle) {
            self.destroy_pd(pd)?;
        }
        self.polled.forget(handle);
        self.objects.contexts.remove(handle);
        Ok(())
    }

    pub(super) fn create_pd(
        &mut self,
        request: &CreatePd,
        hdr: ResponseHeader,
    ) -> Result<HandleResponse, CommandError> {
        let context = self.context(request.ctx_handle)?;
        let handle = self.objects.pds.vacant().ok_or(CommandError::Exhausted("protection domains"))?;
        self.provider.create_pd(PdId(handle), owner(context))?;
        self.objects.pds.insert(handle, Pd { context, users: 0 });
        Ok(HandleResponse { hdr, handle, reserved: 0 })
    }

    pub(super) fn destroy_pd(&mut self, handle: u32) -> Result<(), CommandError> {
        if self.pd(handle)?.users > 0 {
            return Err(CommandError::Busy("Protection domain", handle));
        }
        self.provider.destroy_pd(PdId(handle))?;
        self.objects.pds.remove(handle);
        Ok(())
    }

    pub(super) fn create_mr(
        &mut self,
        request: &CreateMr,
        hdr: ResponseHeader,
    ) -> Result<CreateMrResponse, CommandError> {
        let (pd, context) = (request.pd_handle, self.pd(request.pd_handle)?.context);
        if request.access_flags & ACCESS_UNSUPPORTED != 0 {
            return Err(CommandError::Invalid("access flags of a memory region"));
        }
        let handle = self.objects.mrs.vacant().ok_or(CommandError::Exhausted("memory regions"))?;
        let (kind, length) = self.mr_kind(request, context)?;
        let cost = if let MrKind::Pages(pages) = &kind { pages.cost() } else { 0 };
        self.charge(cost)?;
        let access = Access::from_bits_truncate(request.access_flags);
        let init = MrInit { pd: PdId(pd), iova: request.start, length, access, kind };
        let keys = match self.provider.register_mr(MrId(handle), init) {
            Ok(keys) => keys,
            Err(error) => {
                self.objects.page_list_bytes -= cost;
                return Err(error.into());
            }
        };
        self.objects.mrs.insert(handle, Mr { context, pd, cost });
        self.use_pd(pd);
        Ok(CreateMrResponse { hdr, mr_handle: handle, lkey: keys.lkey, rkey: keys.rkey, reserved: 0 })
    }

    pub(super) fn destroy_mr(&mut self, handle: u32) -> Result<(), CommandError> {
        if self.objects.mrs.get(handle).is_none() {
            return Err(CommandError::NoObject("memory region", handle));
        }
        self.provider.deregister_mr(MrId(handle))?;
        if let Some(mr) = self.objects.mrs.remove(handle) {
            self.objects.page_list_bytes -= mr.cost;
            self.release_pd(mr.pd);
        }
        Ok(())
    }

    /// What lies behind a new region, and its length.
    fn mr_kind(&self, request: &CreateMr, context: u32) -> Result<(MrKind, u64), CommandError> {
        let flags =
            MrFlags::from_bits(request.flags).ok_or(CommandError::Invalid("flags of a memory region"))?;
        if flags.is_empty() {
            return Ok((MrKind::Pages(self.mr_pages(request)?), request.length));
        }
        if context != KERNEL {
            return Err(CommandError::Foreign("A region of this kind"));
        }
        if flags == MrFlags::DMA {
            return Ok((MrKind::Dma, 0));
        }
        let max_pages = request.nchunks;
        if flags != MrFlags::FRMR || max_pages == 0 || max_pages > self.caps.max_fast_reg_page_list_len {
            return Err(CommandError::Invalid("size of a fast-registration region"));
        }
        Ok((MrKind::FastReg { max_pages }, 0))
    }

    /// Copies the page list of a region of a process.
    fn mr_pages(&self, request: &CreateMr) -> Result<PageList, CommandError> {
        let CreateMr { start, length, nchunks, pdir_dma, .. } = *request;
        let end = start.checked_add(length).ok_or(CommandError::Invalid("memory region, it wraps"))?;
        if length == 0 || length > self.caps.max_mr_size {
            return Err(CommandError::Invalid("length of a memory region"));
        }
        // The first byte lies anywhere in the first page.
        let pages = end.div_ceil(PAGE_SIZE) - start / PAGE_SIZE;
        if pages != u64::from(nchunks) || nchunks > PAGE_DIR_MAX_PAGES {
            return Err(CommandError::Invalid("number of pages of a memory region"));
        }
        let addresses = walk(&*self.ram, pdir_dma, nchunks)?.collect::<Result<Vec<_>, _>>()?;
        PageList::new(PAGE_SIZE.trailing_zeros() as u8, &addresses)
            .map_err(|_| CommandError::Invalid("pages of a memory region"))
    }

    /// Accounts for a page list of `cost` host bytes.
    pub(crate) fn charge(&mut self, cost: usize) -> Result<(), CommandError> {
        let total = self.objects.page_list_bytes.saturating_add(cost);
        if total > self.config.page_list_budget {
            return Err(CommandError::Exhausted("memory for page lists"));
        }
        self.objects.page_list_bytes = total;
        Ok(())
    }

    /// Checks that a context exists.
    pub(super) fn context(&self, handle: u32) -> Result<u32, CommandError> {
        match self.objects.page_of(handle) {
            Some(_) => Ok(handle),
            None => Err(CommandError::NoObject("user context", handle)),
        }
    }

    /// A protection domain.
    pub(super) fn pd(&self, handle: u32) -> Result<&Pd, CommandError> {
        self.objects.pds.get(handle).ok_or(CommandError::NoObject("protection domain", handle))
    }

    pub(crate) fn use_pd(&mut self, handle: u32) {
        if let Some(pd) = self.objects.pds.get_mut(handle) {
            pd.users += 1;
        }
    }

    pub(super) fn release_pd(&mut self, handle: u32) {
        if let Some(pd) = self.objects.pds.get_mut(handle) {
            pd.users -= 1;
        }
    }
}
