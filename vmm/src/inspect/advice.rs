//! What an error means to the person in front of it: its name, and one sentence on what to do.

use pvrdma::{Cause, DriverPhase, Snapshot};
use verbs::{AsyncEvent, WcStatus};
use vmm_api::Failure;

/// A failure with its advice.
pub(super) fn explain(cause: Cause) -> Failure {
    let (cause, advice) = match cause {
        Cause::Completion(status) => (format!("completion {}", status_name(status)), on_status(status)),
        Cause::Event(event) => on_event(event),
        Cause::BrokenRing => (
            "broken ring".to_owned(),
            "The guest wrote impossible indices into a queue's ring: look for a faulty driver or provider library \
             in the guest.",
        ),
    };
    Failure { cause, advice: advice.to_owned() }
}

/// What `ibv_wc_status_str` and programs call a status.
pub(super) const fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "SUCCESS",
        WcStatus::LocLenErr => "LOC_LEN_ERR",
        WcStatus::LocQpOpErr => "LOC_QP_OP_ERR",
        WcStatus::LocProtErr => "LOC_PROT_ERR",
        WcStatus::WrFlushErr => "WR_FLUSH_ERR",
        WcStatus::MwBindErr => "MW_BIND_ERR",
        WcStatus::BadRespErr => "BAD_RESP_ERR",
        WcStatus::LocAccessErr => "LOC_ACCESS_ERR",
        WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "REM_ACCESS_ERR",
        WcStatus::RemOpErr => "REM_OP_ERR",
        WcStatus::RetryExcErr => "RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
        WcStatus::FatalErr => "FATAL_ERR",
        WcStatus::GeneralErr => "GENERAL_ERR",
    }
}

/// All statuses that are counted.
pub(super) const STATUSES: [WcStatus; 15] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::FatalErr,
    WcStatus::GeneralErr,
];

const fn on_status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success | WcStatus::WrFlushErr => {
            "Another request failed before this one: look at the first failure."
        }
        WcStatus::LocLenErr => {
            "A message was longer than the receive posted for it, or than the path MTU for a datagram: post larger \
             receives or send less."
        }
        WcStatus::LocQpOpErr => {
            "A work request was impossible in itself: check its opcode, its number of elements and the queue pair's \
             service."
        }
        WcStatus::LocProtErr => {
            "A work request named own memory that its lkey does not cover: check address, length, lkey and local \
             write access, and that the program does not send inline, which the guest's library cannot."
        }
        WcStatus::MwBindErr => {
            "A fast registration or invalidation was refused: check the key, its owner and that the region was \
             not registered already."
        }
        WcStatus::BadRespErr => {
            "The peer's answer did not fit the request: look at what the peer is, with capture= on the link."
        }
        WcStatus::LocAccessErr => {
            "A peer's write reached memory that this side may not write: check local write access of the region."
        }
        WcStatus::RemInvReqErr => {
            "The peer took the request for invalid: check that its receives are long enough, and that it allows \
             this operation and this many outstanding reads."
        }
        WcStatus::RemAccessErr => {
            "The peer's memory may not be reached like this: check remote address, length, rkey, and the access \
             flags of the peer's region and queue pair."
        }
        WcStatus::RemOpErr => {
            "The peer could not carry the request out although it was valid: look at the peer's own errors."
        }
        WcStatus::RetryExcErr => {
            "The peer did not answer: is it up and its queue pair ready to receive, do its GID and QPN here match \
             its own, do both use GIDs of the same network, and does the path MTU fit every link between?"
        }
        WcStatus::RnrRetryExcErr => {
            "The peer had no receive posted in time: post receives before the other side sends, or raise rnr_retry \
             (7 waits for ever) and min_rnr_timer."
        }
        WcStatus::FatalErr | WcStatus::GeneralErr => {
            "The device could not go on with this queue pair: look at the log of the monitor."
        }
    }
}

fn on_event(event: AsyncEvent) -> (String, &'static str) {
    let (name, advice) = match event {
        AsyncEvent::QpReqErr(_) => (
            "QP_REQ_ERR",
            "The peer sent a request that is not allowed here: check that the queue pair's access flags allow the \
             operation, and max_dest_rd_atomic.",
        ),
        AsyncEvent::QpAccessErr(_) => (
            "QP_ACCESS_ERR",
            "The peer asked for memory that it may not reach: check the rkey, address and length it was told, and \
             the access flags of region and queue pair.",
        ),
        AsyncEvent::QpFatal(_) => (
            "QP_FATAL",
            "The queue pair's completion queue overflowed, or memory it uses does not exist: make the completion \
             queue as deep as all its queues together.",
        ),
        // Not failures of a queue pair.
        AsyncEvent::CommEst(_)
        | AsyncEvent::SqDrained(_)
        | AsyncEvent::LastWqeReached(_)
        | AsyncEvent::SrqLimitReached(_)
        | AsyncEvent::SrqErr(_)
        | AsyncEvent::CqErr(_)
        | AsyncEvent::Port { .. }
        | AsyncEvent::DeviceFatal => ("other", "Nothing has to be done."),
    };
    (format!("event {name}"), advice)
}

/// Why programs in the guest cannot use the port, and the remedy.
pub(super) fn port_problem(snapshot: &Snapshot) -> Option<&'static str> {
    if snapshot.phase != DriverPhase::Active {
        return Some(
            "No driver of the guest is bound: load vmxnet3, then vmw_pvrdma, in the guest; \
             `verbena doctor --modules DIR` tells whether it has them.",
        );
    }
    if !snapshot.link_up {
        return Some(
            "The link, or the port of the host device, is down: is the switch or the other end of the link running, and the \
             host device's interface up?",
        );
    }
    if !snapshot.interface_up {
        return Some("The paired network interface is down: `ip link set DEV up` in the guest.");
    }
    if snapshot.gids.is_empty() {
        return Some("There are no GIDs: give the paired network interface an address in the guest.");
    }
    None
}
