//! Completions.

use device_model::guest_warn;
use pvrdma_spec::event::EventType;
use pvrdma_spec::queue::Cqe;
use verbs::{Completion, CqId, WcStatus};
use zerocopy::IntoBytes;

use crate::inspect::Cause;
use crate::state::{Arm, Core};

/// Port number of datagrams.
const PORT: u8 = 1;

/// A completion in the guest's layout.
const fn entry(completion: &Completion) -> Cqe {
    Cqe {
        wr_id: completion.wr_id,
        qp: completion.qp.0 as u64,
        opcode: completion.opcode as u32,
        status: completion.status as u32,
        byte_len: completion.byte_len,
        imm_data: completion.imm_or_key,
        src_qp: completion.src_qp.0,
        wc_flags: completion.flags.bits(),
        vendor_err: 0,
        pkey_index: completion.pkey_index,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        port_num: PORT,
        smac: [0; 6],
        network_hdr_type: completion.network_hdr_type,
        reserved: [0; 6],
    }
}

impl Core {
    /// Puts a completion in its queue and notifies the guest if it asked for that.
    ///
    /// A completion of a queue pair that does not exist must never be seen: the guest would not get past it.
    pub(crate) fn complete(&mut self, completion: &Completion) {
        if !matches!(completion.status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.note_failure(completion.qp, Cause::Completion(completion.status));
        }
        let handle = completion.cq.0;
        let live = self.objects.qp(completion.qp.0).is_some();
        let Some(cq) = self.objects.cqs.get_mut(handle).filter(|cq| live && !cq.failed) else {
            self.counters.dropped_completions += 1;
            return;
        };
        let pushed = match cq.ring.space(&*self.ram) {
            Ok(0) => Err("it overflowed".to_owned()),
            Ok(_) => {
                cq.ring.push(&*self.ram, entry(completion).as_bytes()).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = pushed {
            self.counters.dropped_completions += 1;
            self.fail_cq(handle, &reason);
            return;
        }
        if let Some(count) = self.counters.completions.get_mut(completion.status as usize) {
            *count += 1;
        }
        if completion.solicited {
            cq.solicited = cq.ring.produced();
        }
        if cq.arm == Arm::Any || (cq.arm == Arm::Solicited && completion.solicited) {
            self.notify(handle);
        }
    }

    /// Stops a completion queue and the queue pairs that complete to it.
    pub(crate) fn fail_cq(&mut self, handle: u32, reason: &str) {
        let Some(cq) = self.objects.cqs.get_mut(handle) else { return };
        if std::mem::replace(&mut cq.failed, true) {
            return;
        }
        guest_warn!(cq = handle, reason, "completion queue failed");
        self.provider.fail_cq(CqId(handle));
        self.raise_event(EventType::CqErr, handle);
    }
}
