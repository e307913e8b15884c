//! Queue pairs.

use std::sync::Arc;

use pvrdma_spec::command::{
    CreateQp, CreateQpResponse, CreateQpResponseV2, ModifyQp, QueryQp, QueryQpResponse, ResponseHeader,
};
use pvrdma_spec::queue::{RX_OFFSET, RecvWqeHeader, SendWqeHeader, TX_OFFSET};
use pvrdma_spec::{PAGE_SIZE, version};
use verbs::{Access, CqId, PdId, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, Qpn, SrqId};

use super::CommandError;
use super::convert::{attr_from_guest, attr_to_guest};
use super::execute::Response;
use super::queue::{WorkQueueSize, check_count};
use crate::ring::{Placement, RingPages, WorkRing};
use crate::state::{Core, KERNEL, Objects, Qp, owner};
use crate::work::Source;

/// What a `CREATE_QP` request asks for, checked.
struct Plan {
    qp_type: QpType,
    context: u32,
    srq: Option<u32>,
    cap: QpCap,
    send: WorkQueueSize,
    recv: Option<WorkQueueSize>,
}

impl Plan {
    /// Pages of the rings and their indices.
    fn pages(&self, send_chunks: u16) -> u32 {
        1 + u32::from(send_chunks) + self.recv.map_or(0, WorkQueueSize::pages)
    }
}

impl Core {
    pub(super) fn create_qp(
        &mut self,
        request: &CreateQp,
        hdr: ResponseHeader,
    ) -> Result<Response, CommandError> {
        let plan = self.plan_qp(request)?;
        let version = self.driver_version();
        let handle = self.vacant_qp(plan.qp_type, version)?;
        let (send, recv) = self.load_qp_rings(request, &plan)?;
        let cost = send.cost();
        let init = QpInit {
            qp_type: plan.qp_type,
            owner: owner(plan.context),
            pd: PdId(request.pd_handle),
            send_cq: CqId(request.send_cq_handle),
            recv_cq: CqId(request.recv_cq_handle),
            srq: plan.srq.map(SrqId),
            cap: plan.cap,
            access: Access::from_bits_truncate(request.access_flags),
            // Such a driver takes the number for the handle too.
            qpn: (version < version::QP_HANDLE).then_some(Qpn(handle)),
        };
        let qpn = match self.provider.create_qp(QpId(handle), init) {
            Ok(qpn) => qpn,
            Err(error) => {
                self.objects.page_list_bytes -= cost;
                return Err(error.into());
            }
        };
        let qp = Qp {
            qpn,
            context: plan.context,
            pd: request.pd_handle,
            send_cq: request.send_cq_handle,
            recv_cq: request.recv_cq_handle,
            srq: plan.srq,
            qp_type: plan.qp_type,
            signal_all: request.sq_sig_all != 0,
            cap: plan.cap,
            send,
            recv,
            failure: None,
        };
        self.adopt_qp(handle, qp);
        Ok(created(version, hdr, qpn, handle, plan.cap))
    }

    fn driver_version(&self) -> u32 {
        self.phase.active().map_or(version::QP_HANDLE, |region| region.driver_version)
    }

    /// Checks everything in a request but its page directory.
    fn plan_qp(&self, request: &CreateQp) -> Result<Plan, CommandError> {
        let context = self.pd(request.pd_handle)?.context;
        let qp_type = match request.qp_type {
            1 if context == KERNEL => QpType::Gsi,
            2 => QpType::Rc,
            4 => QpType::Ud,
            _ => return Err(CommandError::Invalid("queue pair type")),
        };
        for handle in [request.send_cq_handle, request.recv_cq_handle] {
            let cq = self.cq(handle)?;
            if cq.context != context {
                return Err(CommandError::Foreign("Completion queue"));
            }
            if cq.failed {
                return Err(CommandError::Invalid("completion queue, it has failed"));
            }
        }
        let srq = (request.is_srq != 0).then_some(request.srq_handle);
        if let Some(handle) = srq
            && self.srq(handle)?.context != context
        {
            return Err(CommandError::Foreign("Shared receive queue"));
        }
        check_count(request.max_send_wr, self.caps.max_qp_wr, "number of send requests")?;
        check_count(request.max_send_sge, self.caps.max_sge, "number of gather elements")?;
        let send = WorkQueueSize::new::<SendWqeHeader>(request.max_send_wr, request.max_send_sge);
        let recv = if srq.is_none() {
            check_count(request.max_recv_wr, self.caps.max_qp_wr, "number of receive requests")?;
            check_count(request.max_recv_sge, self.caps.max_sge, "number of scatter elements")?;
            Some(WorkQueueSize::new::<RecvWqeHeader>(request.max_recv_wr, request.max_recv_sge))
        } else {
            None
        };
        let cap = QpCap {
            max_send_wr: send.slots,
            max_recv_wr: recv.map_or(0, |recv| recv.slots),
            max_send_sge: request.max_send_sge,
            max_recv_sge: recv.map_or(0, |_| request.max_recv_sge),
        };
        Ok(Plan { qp_type, context, srq, cap, send, recv })
    }

    fn vacant_qp(&self, qp_type: QpType, version: u32) -> Result<u32, CommandError> {
        let exhausted = CommandError::Exhausted("queue pairs");
        if qp_type != QpType::Gsi {
            return self.objects.qps.vacant().ok_or(exhausted);
        }
        if self.objects.gsi.is_some() { Err(exhausted) } else { Ok(Objects::gsi_handle(version)) }
    }

    /// The rings of a queue pair: indices in page 0, then the send ring, then the receive ring.
    fn load_qp_rings(
        &mut self,
        request: &CreateQp,
        plan: &Plan,
    ) -> Result<(WorkRing, Option<WorkRing>), CommandError> {
        let send_chunks = request.send_chunks;
        if plan.send.pages() > u32::from(send_chunks) {
            return Err(CommandError::Invalid("number of pages of a send queue"));
        }
        let needed = plan.pages(send_chunks);
        let pages: Arc<RingPages> =
            Arc::new(self.load_ring(request.pdir_dma, needed, request.total_chunks.into())?);
        let placement = Placement { state: TX_OFFSET, base: PAGE_SIZE, stride: plan.send.stride };
        let send = WorkRing::new(pages.clone(), plan.send.indices()?, placement);
        let recv = match plan.recv {
            Some(size) => {
                let base = (1 + u64::from(send_chunks)) * PAGE_SIZE;
                let placement = Placement { state: RX_OFFSET, base, stride: size.stride };
                Some(WorkRing::new(pages, size.indices()?, placement))
            }
            None => None,
        };
        Ok((send, recv))
    }

    /// Enters a new queue pair in the tables.
    pub(crate) fn adopt_qp(&mut self, handle: u32, qp: Qp) {
        self.use_pd(qp.pd);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.objects.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        if let Some(srq) = qp.srq.and_then(|srq| self.objects.srqs.get_mut(srq)) {
            srq.users += 1;
        }
        self.attach(Source::Send(handle), qp.context);
        if qp.recv.is_some() {
            self.attach(Source::Recv(handle), qp.context);
        }
        if qp.qp_type == QpType::Gsi {
            self.objects.gsi = Some((handle, Box::new(qp)));
        } else {
            self.objects.qps.insert(handle, qp);
        }
    }

    /// Destroys a queue pair. Completions it already has stay; the driver removes them.
    pub(super) fn destroy_qp(&mut self, handle: u32) -> Result<(), CommandError> {
        self.qp(handle)?;
        self.provider.destroy_qp(QpId(handle))?;
        let Some(qp) = self.objects.remove_qp(handle) else { return Ok(()) };
        self.detach(Source::Send(handle), qp.context);
        self.detach(Source::Recv(handle), qp.context);
        self.objects.page_list_bytes -= qp.send.cost();
        self.release_pd(qp.pd);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.objects.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(srq) = qp.srq.and_then(|srq| self.objects.srqs.get_mut(srq)) {
            srq.users -= 1;
        }
        Ok(())
    }

    pub(super) fn modify_qp(&mut self, request: &ModifyQp) -> Result<(), CommandError> {
        let handle = request.qp_handle;
        self.qp(handle)?;
        let mask = QpAttrMask::from_bits(request.attr_mask)
            .ok_or(CommandError::Invalid("queue pair attribute mask"))?;
        let attr = attr_from_guest(&request.attrs, mask, &self.caps)?;
        if mask.contains(QpAttrMask::STATE) && matches!(attr.state, QpState::Rtr | QpState::Rts) {
            self.fetch_receives_of(handle);
        }
        self.provider.modify_qp((self.clock)(), QpId(handle), &attr, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            self.entered(handle, attr.state);
        }
        Ok(())
    }

    /// Follows a queue pair into a new state.
    fn entered(&mut self, handle: u32, state: QpState) {
        let Some(qp) = self.objects.qp_mut(handle) else { return };
        if state == QpState::Reset {
            qp.failure = None;
            let recv = qp.recv.as_mut().map_or(Ok(()), |ring| ring.reset(&*self.ram));
            if let Err(error) = qp.send.reset(&*self.ram).and(recv) {
                self.break_qp(handle, error);
            }
            return;
        }
        // Requests posted in an earlier state may be acceptable now.
        self.enqueue(Source::Send(handle));
        self.enqueue(Source::Recv(handle));
    }

    pub(super) fn query_qp(
        &self,
        request: &QueryQp,
        hdr: ResponseHeader,
    ) -> Result<QueryQpResponse, CommandError> {
        let cap = self.qp(request.qp_handle)?.cap;
        let attr = self.provider.query_qp(QpId(request.qp_handle))?;
        Ok(QueryQpResponse { hdr, attrs: attr_to_guest(&attr, cap) })
    }

    fn qp(&self, handle: u32) -> Result<&Qp, CommandError> {
        self.objects.qp(handle).ok_or(CommandError::NoObject("queue pair", handle))
    }
}

/// The response to `CREATE_QP`, in the layout that the driver knows.
fn created(version: u32, hdr: ResponseHeader, qpn: Qpn, handle: u32, cap: QpCap) -> Response {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge } = cap;
    if version < version::QP_HANDLE {
        return Response::new(&CreateQpResponse {
            hdr,
            qpn: qpn.0,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data: 0,
        });
    }
    Response::new(&CreateQpResponseV2 {
        hdr,
        qpn: qpn.0,
        qp_handle: handle,
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data: 0,
        reserved: 0,
    })
}
