//! Events of the device.

use std::ptr::null_mut;

use super::{Context, pointer_to_tag};
use crate::device::HostEvent;
use ibverbs_sys as ffi;

/// Events taken in one call.
const BATCH: usize = 64;

impl Context {
    /// Appends a batch of events of completions. Returns whether there may be more.
    pub(in crate::host) fn take_completions(&self, out: &mut Vec<HostEvent>) -> bool {
        self.take(out, Self::completion_event)
    }

    /// Appends a batch of all other events. Returns whether there may be more.
    pub(in crate::host) fn take_others(&self, out: &mut Vec<HostEvent>) -> bool {
        self.take(out, Self::other_event)
    }

    fn take(&self, out: &mut Vec<HostEvent>, next: impl Fn(&Self) -> Option<Option<HostEvent>>) -> bool {
        for _ in 0..BATCH {
            match next(self) {
                Some(event) => out.extend(event),
                None => return false,
            }
        }
        true
    }

    fn completion_event(&self) -> Option<Option<HostEvent>> {
        let (mut cq, mut tag) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and does not block; both out parameters are live pointers.
        if unsafe { ffi::ibv_get_cq_event(self.channel(), &raw mut cq, &raw mut tag) } != 0 {
            return None;
        }
        // SAFETY: the queue of an event that is not acknowledged cannot have been destroyed.
        unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        Some(Some(HostEvent::Completion(pointer_to_tag(tag))))
    }

    fn other_event(&self) -> Option<Option<HostEvent>> {
        let mut event = ffi::ibv_async_event {
            element: ffi::ibv_async_event__bindgen_ty_1 { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: the context is open, does not block on events, and the event is a live structure.
        if unsafe { ffi::ibv_get_async_event(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        let translated = translate(&event);
        // SAFETY: the event was just taken and is acknowledged this once.
        unsafe { ffi::ibv_ack_async_event(&raw mut event) };
        Some(translated)
    }
}

/// The tag of the object that an event is about.
macro_rules! tag {
    ($event:ident, $object:ident, $context:ident) => {{
        // SAFETY: the type of the event says that it names such an object.
        let object = unsafe { $event.element.$object };
        // SAFETY: the object lives at least until the event is acknowledged.
        pointer_to_tag(unsafe { (*object).$context })
    }};
}

/// An event that is not acknowledged yet. Those of no use to a guest are none.
fn translate(event: &ffi::ibv_async_event) -> Option<HostEvent> {
    Some(match event.event_type {
        ffi::IBV_EVENT_CQ_ERR => HostEvent::CqErr(tag!(event, cq, cq_context)),
        ffi::IBV_EVENT_QP_FATAL => HostEvent::QpFatal(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_QP_REQ_ERR => HostEvent::QpReqErr(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_QP_ACCESS_ERR => HostEvent::QpAccessErr(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_COMM_EST => HostEvent::CommEst(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_SQ_DRAINED => HostEvent::SqDrained(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_QP_LAST_WQE_REACHED => HostEvent::LastWqeReached(tag!(event, qp, qp_context)),
        ffi::IBV_EVENT_SRQ_LIMIT_REACHED => HostEvent::SrqLimitReached(tag!(event, srq, srq_context)),
        ffi::IBV_EVENT_SRQ_ERR => HostEvent::SrqErr(tag!(event, srq, srq_context)),
        ffi::IBV_EVENT_PORT_ACTIVE => HostEvent::Port { up: true },
        ffi::IBV_EVENT_PORT_ERR => HostEvent::Port { up: false },
        ffi::IBV_EVENT_DEVICE_FATAL => HostEvent::DeviceFatal,
        _ => return None,
    })
}
