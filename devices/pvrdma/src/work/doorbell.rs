//! Doorbells: those that arrive as register writes, and those that the hypervisor catches by value.

use std::collections::HashSet;
use std::sync::Arc;

use device_model::doorbell::{Bell, Doorbell, DoorbellError, DoorbellPage, Doorbells};
use device_model::guest_warn;
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::doorbell::{
    CQ_ARM, CQ_ARM_SOL, CQ_OFFSET, CQ_POLL, HANDLE_MASK, QP_OFFSET, QP_RECV, QP_SEND, SRQ_OFFSET, SRQ_RECV,
};
use pvrdma_spec::register::BAR_UAR;

use super::Source;
use crate::config::{Bells, ConfigError};
use crate::state::{Arm, Core};

/// The write by which a context whose doorbell page is `page` rings for `source`.
const fn doorbell(source: Source, page: u32) -> Doorbell {
    let (offset, value) = match source {
        Source::Send(handle) => (QP_OFFSET, QP_SEND | handle),
        Source::Recv(handle) => (QP_OFFSET, QP_RECV | handle),
        Source::Srq(handle) => (SRQ_OFFSET, SRQ_RECV | handle),
        Source::Poll(handle) => (CQ_OFFSET, CQ_POLL | handle),
    };
    Doorbell { bar: BAR_UAR, offset: page as u64 * PAGE_SIZE + offset, value: Some(value) }
}

/// Doorbells registered with the hypervisor.
///
/// Those that announce work share a few bells, since each bell costs the I/O thread a descriptor to wait for; when one
/// rings, the rings of all its objects are looked at.
pub(crate) struct DoorbellMap {
    registry: Arc<dyn Doorbells>,
    groups: Vec<(Arc<dyn Bell>, Vec<Source>)>,
    work: Arc<dyn Bell>,
    unread: Arc<dyn Bell>,
    registered: HashSet<Doorbell>,
}

impl DoorbellMap {
    /// No doorbells yet.
    pub(crate) fn new(registry: Arc<dyn Doorbells>, bells: Bells) -> Result<Self, ConfigError> {
        let groups = bells.groups.len();
        if !(1..=u64::BITS as usize).contains(&groups) {
            return Err(ConfigError::GroupBells(groups));
        }
        Ok(Self {
            registry,
            groups: bells.groups.into_iter().map(|bell| (bell, Vec::new())).collect(),
            work: bells.work,
            unread: bells.unread,
            registered: HashSet::new(),
        })
    }

    /// Makes the doorbell page number `page` memory, whose first write after a rest rings for work.
    pub(crate) fn share(&self, page: u32) -> Option<Box<dyn DoorbellPage>> {
        self.registry.share(BAR_UAR, u64::from(page) * PAGE_SIZE, self.work.clone())
    }

    /// Asks the hypervisor to catch the doorbell of a new object. Without one it arrives as a register write.
    fn register(&mut self, source: Source, page: u32) {
        let doorbell = doorbell(source, page);
        let group = self.group(source);
        let bell = group.map_or(&self.unread, |group| &self.groups[group].0).clone();
        match self.registry.register(doorbell, bell) {
            Ok(()) => {
                self.registered.insert(doorbell);
                if let Some(group) = group {
                    self.groups[group].1.push(source);
                }
            }
            Err(DoorbellError::Exhausted) => {}
            Err(error @ DoorbellError::Exists) => guest_warn!(?doorbell, %error, "doorbell not registered"),
        }
    }

    /// Ends what [`DoorbellMap::register`] started.
    fn unregister(&mut self, source: Source, page: u32) {
        let doorbell = doorbell(source, page);
        if self.registered.remove(&doorbell) {
            self.registry.unregister(doorbell);
            if let Some(group) = self.group(source) {
                self.groups[group].1.retain(|other| *other != source);
            }
        }
    }

    /// Forgets all objects.
    pub(crate) fn unregister_all(&mut self) {
        for doorbell in self.registered.drain() {
            self.registry.unregister(doorbell);
        }
        for (_, sources) in &mut self.groups {
            sources.clear();
        }
    }

    /// The group whose bell announces work of `source`; none for empty polls.
    const fn group(&self, source: Source) -> Option<usize> {
        match source {
            Source::Send(handle) | Source::Recv(handle) | Source::Srq(handle) => {
                Some(handle as usize % self.groups.len())
            }
            Source::Poll(_) => None,
        }
    }
}

impl Core {
    /// Registers the doorbell of a new object of `context`.
    pub(crate) fn attach(&mut self, source: Source, context: u32) {
        if let Some(page) = self.objects.page_of(context) {
            self.doorbells.register(source, page);
            self.polled.add(source, context);
        }
    }

    /// Unregisters the doorbell of an object that is gone.
    pub(crate) fn detach(&mut self, source: Source, context: u32) {
        if let Some(page) = self.objects.page_of(context) {
            self.doorbells.unregister(source, page);
            self.polled.remove(source, context);
        }
    }

    /// Looks at the rings of every object in the groups whose bells rang.
    pub(crate) fn enqueue_rung(&mut self) {
        let rung = std::mem::take(&mut self.rung);
        for group in (0..self.doorbells.groups.len()).filter(|group| rung & (1 << group) != 0) {
            let sources = std::mem::take(&mut self.doorbells.groups[group].1);
            for source in &sources {
                self.enqueue(*source);
            }
            self.doorbells.groups[group].1 = sources;
        }
    }

    /// Handles a doorbell that arrived as a register write.
    pub(crate) fn ring_doorbell(&mut self, page: u32, offset: u64, value: u32) {
        self.counters.doorbells += 1;
        let handle = value & HANDLE_MASK;
        let known = match offset {
            QP_OFFSET => self.ring_qp(page, handle, value),
            CQ_OFFSET => self.ring_cq(page, handle, value),
            SRQ_OFFSET => self.ring_srq(page, handle, value),
            _ => return,
        };
        if !known {
            self.counters.bad_doorbells += 1;
        }
    }

    /// Whether `page` is that of `context`. Nothing in the guest stops a process from ringing for another's objects.
    fn owns(&self, page: u32, context: Option<u32>) -> bool {
        context.and_then(|context| self.objects.page_of(context)) == Some(page)
    }

    fn ring_qp(&mut self, page: u32, handle: u32, value: u32) -> bool {
        if !self.owns(page, self.objects.qp(handle).map(|qp| qp.context)) {
            return false;
        }
        if value & QP_SEND != 0 {
            self.enqueue(Source::Send(handle));
        }
        if value & QP_RECV != 0 {
            self.enqueue(Source::Recv(handle));
        }
        true
    }

    fn ring_cq(&mut self, page: u32, handle: u32, value: u32) -> bool {
        let context = self.objects.cqs.get(handle).map(|cq| cq.context);
        if !self.owns(page, context) {
            return false;
        }
        context.into_iter().for_each(|context| self.cool(context));
        if value & CQ_ARM != 0 {
            self.arm(handle, Arm::Any);
        } else if value & CQ_ARM_SOL != 0 {
            self.arm(handle, Arm::Solicited);
        }
        true
    }

    fn ring_srq(&mut self, page: u32, handle: u32, value: u32) -> bool {
        if !self.owns(page, self.objects.srqs.get(handle).map(|srq| srq.context)) {
            return false;
        }
        if value & SRQ_RECV != 0 {
            self.enqueue(Source::Srq(handle));
        }
        true
    }
}
