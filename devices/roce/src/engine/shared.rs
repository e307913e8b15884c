//! What all queue pairs of an engine share.

use std::collections::VecDeque;

use device_model::time::Instant;
use verbs::{Access, AsyncEvent, Completion, PdId, ProviderEvent, QpId, Segments, Sge, WcStatus};

use super::config::Config;
use super::counters::Counters;
use super::gids::GidTable;
use super::mr::{Denied, MrTable};
use super::neighbours::Neighbours;
use super::plan::Effect;
use super::srq::Srq;
use super::table::Table;
use super::timers::Timers;
use crate::wire::Path;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    /// Objects inside.
    pub(crate) users: u32,
}

/// A completion queue, as far as the engine knows one.
#[derive(Debug)]
pub(crate) struct Cq {
    /// Queue pairs that complete here; one that does so with both queues counts twice.
    pub(crate) users: u32,
    /// It overflowed and takes nothing more.
    pub(crate) failed: bool,
}

/// Everything but the queue pairs.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pds: Table<Pd>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) mrs: MrTable,
    pub(crate) gids: GidTable,
    pub(crate) neighbours: Neighbours,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) events: VecDeque<ProviderEvent>,
    /// Queue pairs that may have something to send, in the order of their turns.
    pub(crate) ready: VecDeque<QpId>,
    pub(crate) timers: Timers,
    pub(crate) counters: Counters,
    /// Something that plans may have named was taken back, and nothing may be read of it any more.
    pub(crate) revoked: bool,
    /// A queue pair failed, and nothing may be written on its behalf any more.
    pub(crate) ended: bool,
    /// The time of the current call.
    pub(crate) now: Instant,
}

impl Shared {
    pub(crate) fn event(&mut self, event: AsyncEvent) {
        self.events.push_back(ProviderEvent::Async(event));
    }

    /// Whether packets along a path need no frames: the device's own, and those to a machine with a channel.
    pub(crate) fn is_direct(&self, path: &Path) -> bool {
        self.neighbours.contains(path.dmac) || self.gids.contains(&path.dst)
    }

    /// Reports the end of a work request, unless its queue takes no more.
    pub(crate) fn complete(&mut self, completion: Completion) {
        if self.cqs.get(completion.cq.0).is_none_or(|cq| cq.failed) {
            return;
        }
        match completion.status {
            WcStatus::Success => self.counters.completions += 1,
            _ => self.counters.error_completions += 1,
        }
        self.events.push_back(ProviderEvent::Completion(completion));
    }

    /// Forgets what waits to be reported about an object.
    pub(crate) fn forget(&mut self, about: impl Fn(&ProviderEvent) -> bool) {
        self.events.retain(|event| !about(event));
    }

    /// Whether all elements of a scatter/gather list grant `access`.
    pub(crate) fn check_sges(&self, pd: PdId, sges: &[Sge], access: Access) -> Result<(), Denied> {
        sges.iter().try_for_each(|sge| match sge.length {
            // No byte is touched, so no key is needed (IBTA 10.2.5.2).
            0 => Ok(()),
            len => self.mrs.check(sge.lkey, pd, sge.addr, len, access),
        })
    }

    /// Appends the guest memory behind `len` bytes that lie `offset` bytes into a scatter/gather list. The list must be
    /// long enough; what it lacks is denied.
    pub(crate) fn resolve_sges(
        &self,
        pd: PdId,
        sges: &[Sge],
        mut offset: u32,
        mut len: u32,
        access: Access,
        out: &mut Segments,
    ) -> Result<(), Denied> {
        for sge in sges {
            if len == 0 {
                break;
            }
            if offset >= sge.length {
                offset -= sge.length;
                continue;
            }
            let take = len.min(sge.length - offset);
            let addr = sge.addr.checked_add(u64::from(offset)).ok_or(Denied)?;
            self.mrs.resolve(sge.lkey, pd, addr, take, access, out)?;
            (offset, len) = (0, len - take);
        }
        if len == 0 { Ok(()) } else { Err(Denied) }
    }

    /// Queues something to be done with guest memory.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }
}

/// Bytes of a scatter/gather list; they can exceed any message.
pub(crate) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
