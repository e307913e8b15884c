//! Contexts, protection domains, memory, queues.

use pvrdma_spec::attr::{QpAttr, SRQ_LIMIT, SrqAttr};
use pvrdma_spec::command::{
    CreateBind, CreateCq, CreateCqResponse, CreateMr, CreateMrResponse, CreatePd, CreateQp, CreateQpResponse,
    CreateQpResponseV2, CreateSrq, CreateUc, DestroyBind, HandleRequest, HandleResponse, ModifyQp, ModifySrq,
    MrFlags, Opcode, QueryPort, QueryPortResponse, QueryQp, QueryQpResponse, QuerySrqResponse,
};
use pvrdma_spec::doorbell::{
    CQ_ARM, CQ_ARM_SOL, CQ_OFFSET, CQ_POLL, QP_OFFSET, QP_RECV, QP_SEND, SRQ_OFFSET, SRQ_RECV,
};
use pvrdma_spec::queue::{Cqe, RX_OFFSET, RecvWqeHeader, SendWqeHeader, TX_OFFSET};
use pvrdma_spec::shared::GidType;
use pvrdma_spec::{PAGE_SIZE, version};
use zerocopy::FromZeros;

use crate::queue::{pages, stride};
use crate::{Buffer, Driver, Error, PageDir, Platform, Recv, Ring, SendWork};

/// Whose objects these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Handle; 0 for the kernel.
    pub handle: u32,
    /// Doorbell page.
    pub page: u32,
}

impl Context {
    /// The kernel.
    pub const KERNEL: Self = Self { handle: 0, page: 0 };
}

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pd {
    /// Handle.
    pub handle: u32,
    /// Whose it is.
    pub context: Context,
}

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    /// Handle.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Handle.
    pub handle: u32,
    /// Its pages.
    pub buffer: Buffer,
    /// Its ring.
    pub ring: Ring,
    /// Whose it is.
    pub context: Context,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Handle.
    pub handle: u32,
    /// Its pages.
    pub buffer: Buffer,
    /// Its ring.
    pub ring: Ring,
    /// Whose it is.
    pub context: Context,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Send requests, a power of two.
    pub send_wr: u32,
    /// Receive requests, a power of two; ignored with a shared receive queue.
    pub recv_wr: u32,
    /// Gather elements.
    pub send_sge: u32,
    /// Scatter elements.
    pub recv_sge: u32,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Handle.
    pub handle: u32,
    /// Number on the wire.
    pub qpn: u32,
    /// Its pages.
    pub buffer: Buffer,
    /// Its send ring.
    pub send: Ring,
    /// Its receive ring; empty with a shared receive queue.
    pub recv: Ring,
    /// Whose it is.
    pub context: Context,
}

impl<P: Platform> Driver<P> {
    fn destroy(&self, opcode: Opcode, handle: u32) -> Result<(), Error> {
        let mut request = HandleRequest::new_zeroed();
        request.handle = handle;
        self.tell(opcode, &request)
    }

    /// Attributes of the port.
    ///
    /// # Errors
    ///
    /// See [`Driver::ask`]; likewise for all that follow.
    pub fn query_port(&self) -> Result<pvrdma_spec::attr::PortAttr, Error> {
        let mut request = QueryPort::new_zeroed();
        request.port_num = 1;
        self.ask(Opcode::QueryPort, &request).map(|response: QueryPortResponse| response.attrs)
    }

    /// Opens a user context with the given doorbell page.
    pub fn open(&self, page: u32) -> Result<Context, Error> {
        let mut request = CreateUc::new_zeroed();
        request.pfn = self.platform.doorbell_pfn() + u64::from(page);
        let response: HandleResponse = self.ask(Opcode::CreateUc, &request)?;
        Ok(Context { handle: response.handle, page })
    }

    /// Closes a user context.
    pub fn close(&self, context: Context) -> Result<(), Error> {
        self.destroy(Opcode::DestroyUc, context.handle)
    }

    /// Creates a protection domain.
    pub fn create_pd(&self, context: Context) -> Result<Pd, Error> {
        let mut request = CreatePd::new_zeroed();
        request.ctx_handle = context.handle;
        let response: HandleResponse = self.ask(Opcode::CreatePd, &request)?;
        Ok(Pd { handle: response.handle, context })
    }

    /// Destroys a protection domain.
    pub fn destroy_pd(&self, pd: Pd) -> Result<(), Error> {
        self.destroy(Opcode::DestroyPd, pd.handle)
    }

    /// Registers `length` bytes at `start`, whose pages `dir` names.
    pub fn register(&self, pd: Pd, access: u32, start: u64, length: u64, dir: &PageDir) -> Result<Mr, Error> {
        let mut request = CreateMr::new_zeroed();
        request.pd_handle = pd.handle;
        request.start = start;
        request.length = length;
        request.pdir_dma = dir.root;
        request.access_flags = access;
        request.nchunks = ((start % PAGE_SIZE + length).div_ceil(PAGE_SIZE)) as u32;
        self.create_mr(&request)
    }

    /// Registers all of memory.
    pub fn register_all(&self, pd: Pd, access: u32) -> Result<Mr, Error> {
        let mut request = CreateMr::new_zeroed();
        request.pd_handle = pd.handle;
        request.access_flags = access;
        request.flags = MrFlags::DMA.bits();
        self.create_mr(&request)
    }

    /// Allocates a region for fast registrations of at most `pages` pages.
    pub fn alloc_fast_reg(&self, pd: Pd, pages: u32) -> Result<Mr, Error> {
        let mut request = CreateMr::new_zeroed();
        request.pd_handle = pd.handle;
        request.flags = MrFlags::FRMR.bits();
        request.nchunks = pages;
        self.create_mr(&request)
    }

    /// Sends a `CREATE_MR` as it is.
    pub fn create_mr(&self, request: &CreateMr) -> Result<Mr, Error> {
        let response: CreateMrResponse = self.ask(Opcode::CreateMr, request)?;
        Ok(Mr { handle: response.mr_handle, lkey: response.lkey, rkey: response.rkey })
    }

    /// Ends a registration.
    pub fn deregister(&self, mr: Mr) -> Result<(), Error> {
        self.destroy(Opcode::DestroyMr, mr.handle)
    }

    /// Creates a completion queue of `entries` entries, a power of two.
    pub fn create_cq(&self, context: Context, entries: u32) -> Result<Cq, Error> {
        let stride = size_of::<Cqe>() as u32;
        let buffer = Buffer::new(&self.platform, (1 + u64::from(pages(entries, stride))) * PAGE_SIZE);
        let mut request = CreateCq::new_zeroed();
        request.ctx_handle = context.handle;
        request.cqe = entries;
        request.pdir_dma = buffer.dir.root;
        request.nchunks = buffer.pages.len() as u32;
        match self.ask::<_, CreateCqResponse>(Opcode::CreateCq, &request) {
            Ok(response) => {
                let ring = Ring { state: RX_OFFSET, base: PAGE_SIZE, slots: response.cqe, stride };
                Ok(Cq { handle: response.cq_handle, buffer, ring, context })
            }
            Err(error) => {
                buffer.free(&self.platform);
                Err(error)
            }
        }
    }

    /// Destroys a completion queue and frees its pages even if the device would not, as Linux does.
    pub fn destroy_cq(&self, cq: Cq) -> Result<(), Error> {
        let result = self.destroy(Opcode::DestroyCq, cq.handle);
        cq.buffer.free(&self.platform);
        result
    }

    /// Takes the next completion. An empty queue is polled once more, after the device was told.
    pub fn poll(&self, cq: &Cq) -> Option<Cqe> {
        cq.ring.pop(&self.platform, &cq.buffer).or_else(|| {
            self.platform.ring(cq.context.page, CQ_OFFSET, CQ_POLL | cq.handle);
            cq.ring.pop(&self.platform, &cq.buffer)
        })
    }

    /// Asks to be notified of the next completion, or of the next solicited one.
    pub fn arm(&self, cq: &Cq, solicited: bool) {
        let flag = if solicited { CQ_ARM_SOL } else { CQ_ARM };
        self.platform.ring(cq.context.page, CQ_OFFSET, flag | cq.handle);
    }

    /// Creates a shared receive queue, with twice the pages it needs, as the library does.
    pub fn create_srq(&self, pd: Pd, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let stride = stride(size_of::<RecvWqeHeader>(), max_sge);
        let buffer = Buffer::new(&self.platform, (1 + 2 * u64::from(pages(max_wr, stride))) * PAGE_SIZE);
        let mut request = CreateSrq::new_zeroed();
        request.pd_handle = pd.handle;
        request.attrs = SrqAttr { max_wr, max_sge, srq_limit: 0, reserved: 0 };
        request.pdir_dma = buffer.dir.root;
        request.nchunks = buffer.pages.len() as u32;
        match self.ask::<_, HandleResponse>(Opcode::CreateSrq, &request) {
            Ok(response) => {
                let ring = Ring { state: RX_OFFSET, base: PAGE_SIZE, slots: max_wr, stride };
                Ok(Srq { handle: response.handle, buffer, ring, context: pd.context })
            }
            Err(error) => {
                buffer.free(&self.platform);
                Err(error)
            }
        }
    }

    /// Arms the limit of a shared receive queue.
    pub fn set_srq_limit(&self, srq: &Srq, limit: u32) -> Result<(), Error> {
        let mut request = ModifySrq::new_zeroed();
        request.srq_handle = srq.handle;
        request.attr_mask = SRQ_LIMIT;
        request.attrs.srq_limit = limit;
        self.tell(Opcode::ModifySrq, &request)
    }

    /// Attributes of a shared receive queue.
    pub fn query_srq(&self, srq: &Srq) -> Result<SrqAttr, Error> {
        let mut request = HandleRequest::new_zeroed();
        request.handle = srq.handle;
        self.ask(Opcode::QuerySrq, &request).map(|response: QuerySrqResponse| response.attrs)
    }

    /// Destroys a shared receive queue and frees its pages.
    pub fn destroy_srq(&self, srq: Srq) -> Result<(), Error> {
        let result = self.destroy(Opcode::DestroySrq, srq.handle);
        srq.buffer.free(&self.platform);
        result
    }

    /// Posts a receive on a shared queue; `false` when it is full.
    pub fn post_srq_recv(&self, srq: &Srq, work: &Recv) -> bool {
        let posted = srq.ring.push(&self.platform, &srq.buffer, &work.bytes());
        self.platform.ring(srq.context.page, SRQ_OFFSET, SRQ_RECV | srq.handle);
        posted
    }

    /// Creates a queue pair: type 1 GSI, 2 RC, 4 UD.
    pub fn create_qp(
        &self,
        pd: Pd,
        qp_type: u8,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<&Srq>,
        sizes: QpSizes,
    ) -> Result<Qp, Error> {
        self.create_qp_with(pd, qp_type, (send_cq, recv_cq), srq, sizes, |_| {})
    }

    /// Creates a queue pair after a last change of the request.
    pub fn create_qp_with(
        &self,
        pd: Pd,
        qp_type: u8,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<&Srq>,
        sizes: QpSizes,
        change: impl FnOnce(&mut CreateQp),
    ) -> Result<Qp, Error> {
        let send_stride = stride(size_of::<SendWqeHeader>(), sizes.send_sge);
        let recv_stride = stride(size_of::<RecvWqeHeader>(), sizes.recv_sge);
        let send_pages = pages(sizes.send_wr, send_stride);
        let recv_pages = if srq.is_some() { 0 } else { pages(sizes.recv_wr, recv_stride) };
        let buffer = Buffer::new(&self.platform, u64::from(1 + send_pages + recv_pages) * PAGE_SIZE);
        let mut request = CreateQp::new_zeroed();
        request.pd_handle = pd.handle;
        request.send_cq_handle = send_cq.handle;
        request.recv_cq_handle = recv_cq.handle;
        request.max_send_wr = sizes.send_wr;
        request.max_send_sge = sizes.send_sge;
        if let Some(srq) = srq {
            (request.is_srq, request.srq_handle) = (1, srq.handle);
        } else {
            (request.max_recv_wr, request.max_recv_sge) = (sizes.recv_wr, sizes.recv_sge);
        }
        request.access_flags = 1;
        request.total_chunks = buffer.pages.len() as u16;
        request.send_chunks = send_pages as u16;
        request.qp_type = qp_type;
        request.pdir_dma = buffer.dir.root;
        change(&mut request);
        let (handle, qpn) = match self.ask_create_qp(&request) {
            Ok(created) => created,
            Err(error) => {
                buffer.free(&self.platform);
                return Err(error);
            }
        };
        let send = Ring { state: TX_OFFSET, base: PAGE_SIZE, slots: sizes.send_wr, stride: send_stride };
        let base = u64::from(1 + send_pages) * PAGE_SIZE;
        let recv = Ring { state: RX_OFFSET, base, slots: sizes.recv_wr, stride: recv_stride };
        Ok(Qp { handle, qpn, buffer, send, recv, context: pd.context })
    }

    /// Handle and number, from the response that this version of the driver expects.
    fn ask_create_qp(&self, request: &CreateQp) -> Result<(u32, u32), Error> {
        if self.version() < version::QP_HANDLE {
            let response: CreateQpResponse = self.ask(Opcode::CreateQp, request)?;
            return Ok((response.qpn, response.qpn));
        }
        let response: CreateQpResponseV2 = self.ask(Opcode::CreateQp, request)?;
        Ok((response.qp_handle, response.qpn))
    }

    /// Modifies a queue pair. On a move to reset the rings start over.
    pub fn modify_qp(&self, qp: &Qp, attr_mask: u32, attrs: &QpAttr) -> Result<(), Error> {
        let mut request = ModifyQp::new_zeroed();
        request.qp_handle = qp.handle;
        request.attr_mask = attr_mask;
        request.attrs = *attrs;
        let _: pvrdma_spec::command::ResponseHeader = self.ask(Opcode::ModifyQp, &request)?;
        if attr_mask & 1 != 0 && attrs.qp_state == 0 {
            for offset in (0..16).step_by(4) {
                self.platform.store(qp.buffer.address(offset), 0);
            }
        }
        Ok(())
    }

    /// Attributes of a queue pair.
    pub fn query_qp(&self, qp: &Qp) -> Result<QpAttr, Error> {
        let mut request = QueryQp::new_zeroed();
        request.qp_handle = qp.handle;
        self.ask(Opcode::QueryQp, &request).map(|response: QueryQpResponse| response.attrs)
    }

    /// Destroys a queue pair, frees its pages and takes its completions out of its queues.
    pub fn destroy_qp(&self, qp: Qp, cqs: &[&Cq]) -> Result<(), Error> {
        let result = self.destroy(Opcode::DestroyQp, qp.handle);
        for cq in cqs {
            self.purge(cq, qp.handle);
        }
        qp.buffer.free(&self.platform);
        result
    }

    /// Takes the completions of a queue pair out of a queue: the others move towards the tail.
    fn purge(&self, cq: &Cq, qp: u32) {
        let (ring, buffer) = (cq.ring, &cq.buffer);
        let (mut head, tail) = (ring.head(&self.platform, buffer), ring.tail(&self.platform, buffer));
        let mut kept = alloc::vec::Vec::new();
        let mut index = head;
        while index != tail {
            let mut cqe = Cqe::new_zeroed();
            buffer.read(&self.platform, ring.slot(index), zerocopy::IntoBytes::as_mut_bytes(&mut cqe));
            if cqe.qp as u32 & 0xffff == qp {
                head = ring.next(head);
            } else {
                kept.push(cqe);
            }
            index = ring.next(index);
        }
        let mut index = head;
        for cqe in kept {
            buffer.write(&self.platform, ring.slot(index), zerocopy::IntoBytes::as_bytes(&cqe));
            index = ring.next(index);
        }
        ring.set_head(&self.platform, buffer, head);
    }

    /// Posts a send and rings; `false` when the ring is full.
    pub fn post_send(&self, qp: &Qp, work: &SendWork) -> bool {
        let posted = qp.send.push(&self.platform, &qp.buffer, &work.bytes());
        self.platform.ring(qp.context.page, QP_OFFSET, QP_SEND | qp.handle);
        posted
    }

    /// Posts a receive and rings; `false` when the ring is full.
    pub fn post_recv(&self, qp: &Qp, work: &Recv) -> bool {
        let posted = qp.recv.push(&self.platform, &qp.buffer, &work.bytes());
        self.platform.ring(qp.context.page, QP_OFFSET, QP_RECV | qp.handle);
        posted
    }

    /// Sets a row of the GID table.
    pub fn bind(&self, index: u32, gid: [u8; 16]) -> Result<(), Error> {
        let mut request = CreateBind::new_zeroed();
        request.mtu = 1024;
        request.vlan = 0xfff;
        request.index = index;
        request.new_gid = gid;
        request.gid_type = GidType::ROCE_V2.bits();
        self.tell(Opcode::CreateBind, &request)
    }

    /// Empties a row of the GID table.
    pub fn unbind(&self, index: u32, gid: [u8; 16]) -> Result<(), Error> {
        let mut request = DestroyBind::new_zeroed();
        request.index = index;
        request.dest_gid = gid;
        self.tell(Opcode::DestroyBind, &request)
    }
}
