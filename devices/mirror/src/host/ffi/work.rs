//! Work requests and completions.

use std::io;
use std::ptr::null_mut;

use ibverbs_sys as ffi;
use smallvec::SmallVec;
use verbs::{Qpn, SendOp, Sge, WcStatus};

use super::{AddressHandle, CompletionQueue, Context, QueuePair, SharedQueue, check, signed};
use crate::device::{HostCompletion, HostSend};

/// Completions taken at once.
const BATCH: usize = 32;

/// A verb that is called through the table of a context.
macro_rules! verb {
    ($context:expr, $name:ident) => {
        operations($context).$name.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?
    };
}

fn operations(context: &Context) -> &ffi::ibv_context_ops {
    // SAFETY: the context is open as long as the reference, and its table of verbs does not change.
    unsafe { &(*context.raw()).ops }
}

type Sges = SmallVec<[ffi::ibv_sge; 4]>;

fn sge_list(sges: &[Sge]) -> Sges {
    sges.iter().map(|sge| ffi::ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }).collect()
}

impl QueuePair {
    /// Posts a send request. Addresses and keys in it are checked by the device.
    pub(in crate::host) fn post_send(&self, wr: &HostSend<'_, AddressHandle>) -> io::Result<()> {
        let mut sges = sge_list(wr.sges);
        let mut request = ffi::ibv_send_wr {
            wr_id: wr.wr_id,
            sg_list: sges.as_mut_ptr(),
            num_sge: signed(sges.len() as u32),
            send_flags: wr.flags.bits(),
            ..ffi::ibv_send_wr::default()
        };
        fill(&mut request, wr)?;
        let post = verb!(self.context(), post_send);
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; request and list are until the call returns, which copies them.
        check(unsafe { post(self.raw(), &raw mut request, &raw mut bad) })
    }

    /// Posts a receive request.
    pub(in crate::host) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        let mut sges = sge_list(sges);
        let mut request = receive(wr_id, &mut sges);
        let post = verb!(self.context(), post_recv);
        let mut bad = null_mut();
        // SAFETY: as for sends.
        check(unsafe { post(self.raw(), &raw mut request, &raw mut bad) })
    }
}

impl SharedQueue {
    /// Posts a receive request.
    pub(in crate::host) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        let mut sges = sge_list(sges);
        let mut request = receive(wr_id, &mut sges);
        let post = verb!(self.context(), post_srq_recv);
        let mut bad = null_mut();
        // SAFETY: the queue is alive; request and list are until the call returns, which copies them.
        check(unsafe { post(self.raw(), &raw mut request, &raw mut bad) })
    }
}

fn receive(wr_id: u64, sges: &mut Sges) -> ffi::ibv_recv_wr {
    ffi::ibv_recv_wr {
        wr_id,
        next: null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: signed(sges.len() as u32),
    }
}

/// Fills in operation and operands.
fn fill(request: &mut ffi::ibv_send_wr, wr: &HostSend<'_, AddressHandle>) -> io::Result<()> {
    use ffi::ibv_wr_opcode as opcode;
    let with = |imm: &Option<[u8; 4]>, plain, with_imm| if imm.is_some() { with_imm } else { plain };
    let mut immediate = None;
    request.opcode = match wr.op {
        SendOp::Send { imm } => {
            immediate = *imm;
            with(imm, opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM)
        }
        SendOp::UdSend { to, imm } => {
            immediate = *imm;
            let ah = wr.ah.ok_or(io::ErrorKind::InvalidInput)?.raw();
            request.wr.ud = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah,
                remote_qpn: to.qpn.0,
                remote_qkey: to.qkey,
            };
            with(imm, opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM)
        }
        SendOp::Write { addr, rkey, imm } => {
            immediate = *imm;
            request.wr.rdma = remote(*addr, *rkey);
            with(imm, opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
        }
        SendOp::Read { addr, rkey } => {
            request.wr.rdma = remote(*addr, *rkey);
            opcode::IBV_WR_RDMA_READ
        }
        SendOp::CompareSwap { addr, rkey, compare, swap } => {
            request.wr.atomic = atomic(*addr, *rkey, *compare, *swap);
            opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { addr, rkey, add } => {
            request.wr.atomic = atomic(*addr, *rkey, *add, 0);
            opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::SendInv { .. } | SendOp::LocalInv { .. } | SendOp::FastReg(_) | SendOp::Bad(_) => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    };
    if let Some(bytes) = immediate {
        request.__bindgen_anon_1.imm_data = u32::from_be_bytes(bytes).to_be();
    }
    Ok(())
}

const fn remote(remote_addr: u64, rkey: u32) -> ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey }
}

const fn atomic(
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
) -> ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey }
}

impl CompletionQueue {
    /// Asks for an event at the next completion.
    pub(in crate::host) fn arm(&self) -> io::Result<()> {
        let arm = verb!(self.context(), req_notify_cq);
        // SAFETY: the queue is alive.
        check(unsafe { arm(self.raw(), 0) })
    }

    /// Takes a batch of completions.
    pub(in crate::host) fn poll(&self, out: &mut Vec<HostCompletion>) -> io::Result<()> {
        let poll = verb!(self.context(), poll_cq);
        let mut batch = [ffi::ibv_wc::default(); BATCH];
        // SAFETY: the queue is alive and the array has room for as many entries as are asked for.
        let count = unsafe { poll(self.raw(), signed(BATCH as u32), batch.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(count.abs()))?;
        out.extend(batch.iter().take(count).map(completion));
        Ok(())
    }
}

fn completion(wc: &ffi::ibv_wc) -> HostCompletion {
    HostCompletion {
        wr_id: wc.wr_id(),
        status: WcStatus::from_verbs(wc.error().map_or(0, |(status, _)| status)),
        qpn: Qpn(wc.qp_num),
        byte_len: wc.len() as u32,
        imm: wc.imm_data().map(|imm| u32::from_be(imm).to_be_bytes()),
        by_write: wc.opcode() == ffi::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        src_qp: Qpn(wc.src_qp & Qpn::MASK),
        grh: wc.wc_flags.0 & ffi::ibv_wc_flags::IBV_WC_GRH.0 != 0,
    }
}
