//! Work requests in few words.

use verbs::{Completion, Provider, QpId, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, SrqId, WcStatus};

use super::node::{HEAP, HEAP_VA, Node};

/// Address of a heap byte as work requests name it.
pub const fn va(gpa: u64) -> u64 {
    gpa - HEAP + HEAP_VA
}

impl Node {
    pub fn sge(&self, gpa: u64, len: u32) -> Sge {
        Sge { addr: va(gpa), length: len, lkey: self.keys.lkey }
    }

    /// A signalled request.
    pub fn wr(&self, wr_id: u64, op: SendOp, gpa: u64, len: u32) -> SendWr {
        SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges: SgeList::from_slice(&[self.sge(gpa, len)]) }
    }

    pub fn post(&mut self, qp: u32, wr: SendWr) {
        self.provider.post_send(QpId(qp), wr).unwrap();
    }

    pub fn send(&mut self, qp: u32, wr_id: u64, op: SendOp, gpa: u64, len: u32) {
        let wr = self.wr(wr_id, op, gpa, len);
        self.post(qp, wr);
    }

    pub fn recv_wr(&self, wr_id: u64, gpa: u64, len: u32) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from_slice(&[self.sge(gpa, len)]), bad: None }
    }

    pub fn recv(&mut self, qp: u32, wr_id: u64, gpa: u64, len: u32) {
        let wr = self.recv_wr(wr_id, gpa, len);
        self.provider.post_recv(QpId(qp), wr).unwrap();
    }

    pub fn srq_recv(&mut self, srq: u32, wr_id: u64, gpa: u64, len: u32) {
        let wr = self.recv_wr(wr_id, gpa, len);
        self.provider.post_srq_recv(SrqId(srq), wr).unwrap();
    }
}

pub const SEND: SendOp = SendOp::Send { imm: None };

/// Names and statuses, for comparisons.
pub fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}
