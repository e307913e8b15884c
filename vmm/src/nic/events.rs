//! What a NIC slot's I/O thread does when something happens.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use device_model::doorbell::Bell;
use device_model::net::Link;
use device_model::time::Instant;
use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use host_io::direct::Driver;
use pvrdma::{Next, Pvrdma};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use vmm_sys_util::errno;
use vmm_sys_util::timerfd::TimerFd;
use vmxnet3::Vmxnet3;

use super::inbox::{BATCH_FRAMES, Inbox};
use super::polling::Permit;
use crate::io::{Clock, EventBell};

/// Calls of the RDMA device before other events get their turn.
const SERVICE_ROUNDS: usize = 8;
/// Calls of a device that polls before other events get their turn.
const POLL_ROUNDS: usize = 64;
/// Calls of a device that polls and finds nothing before its bells are looked at again.
const ROUNDS_PER_LOOK: usize = 16;
/// Shortest time the timer is set to: zero would disarm it.
const MIN_WAIT: Duration = Duration::from_micros(1);

/// Event data: which descriptor became ready.
const LINK: u32 = 0;
const NIC_BELL: u32 = 1;
const TIMER: u32 = 2;
const RDMA_WORK: u32 = 3;
const RDMA_HOST: u32 = 4;
const CHANNELS: u32 = 5;
const RDMA_GROUPS: u32 = 6;

/// The RDMA half of a slot.
pub(super) struct RdmaEvents {
    /// The device.
    pub(super) device: Arc<Pvrdma>,
    /// Rung by register accesses.
    pub(super) work: Arc<EventBell>,
    /// Rung by doorbells.
    pub(super) groups: Vec<Arc<EventBell>>,
    /// Becomes readable when the provider's host device has something to tell.
    pub(super) wakeup: Option<OwnedFd>,
    /// Makes channels to other machines.
    pub(super) channels: Option<Driver>,
    /// Whether the thread may poll.
    pub(super) permit: Permit,
    /// Whether it does.
    pub(super) polls: bool,
}

/// Serves both functions of a slot and their link.
pub(super) struct NicEvents {
    clock: Clock,
    link: Arc<dyn Link>,
    link_up: bool,
    nic: Arc<Vmxnet3>,
    nic_bell: Arc<EventBell>,
    rdma: Option<RdmaEvents>,
    timer: TimerFd,
    /// When the timer fires; `None` while it is disarmed.
    armed: Option<Instant>,
    inbox: Inbox,
}

impl NicEvents {
    pub(super) fn new(
        clock: Clock,
        link: Arc<dyn Link>,
        nic: Arc<Vmxnet3>,
        nic_bell: Arc<EventBell>,
        rdma: Option<RdmaEvents>,
    ) -> Result<Self, errno::Error> {
        Ok(Self {
            clock,
            link_up: link.is_up(),
            link,
            nic,
            nic_bell,
            rdma,
            timer: TimerFd::new()?,
            armed: None,
            inbox: Inbox::new(),
        })
    }

    /// Takes frames from the link and gives each to the function it is for.
    ///
    /// Doorbells are looked at in between: whoever sent a frame may have waited for a receive request of this guest, and
    /// that must then be found before the frame.
    fn receive(&mut self) {
        let now = self.clock.now();
        if let Err(error) = self.inbox.fill(&*self.link) {
            device_model::guest_warn!(%error, "Failed to receive from a link");
        }
        if let Some(rdma) = &self.rdma {
            rdma.look_at_bells();
            rdma.device.look_at_interface();
        }
        let taken = |frame: &&[u8]| self.rdma.as_ref().is_some_and(|rdma| rdma.device.receive(now, frame));
        // Not while the interface works at them: each function has locks of its own.
        let left: SmallVec<[&[u8]; BATCH_FRAMES]> =
            self.inbox.frames().filter(|frame| !taken(frame)).collect();
        self.nic.receive(left);
    }

    /// Passes a change of the link on to both functions.
    fn follow_link(&mut self) {
        let up = self.link.is_up();
        if up != self.link_up {
            self.link_up = up;
            self.nic.set_link(up);
            if let Some(rdma) = &self.rdma {
                rdma.device.set_link(up);
            }
        }
    }

    fn transmit(&self) {
        self.nic_bell.clear();
        if self.nic.process_tx() {
            self.nic_bell.ring();
        }
    }

    /// Lets the RDMA device work, and comes back when it must.
    fn service(&mut self) {
        let clock = self.clock;
        if let Some(deadline) = self.rdma.as_mut().and_then(|rdma| rdma.service(clock)) {
            self.wake_at(deadline);
        }
    }

    /// Arms the timer unless it fires early enough as it is; firing too early does no harm and saves re-arming it for
    /// every packet.
    fn wake_at(&mut self, deadline: Instant) {
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        let wait = deadline.saturating_since(self.clock.now()).max(MIN_WAIT);
        match self.timer.reset(wait, None) {
            Ok(()) => self.armed = Some(deadline),
            Err(error) => tracing::error!(%error, "Failed to arm a timer"),
        }
    }

    /// Disarming also takes back the readiness; reading could block, if the timer was set again meanwhile.
    fn timer_fired(&mut self) {
        self.armed = None;
        if let Err(error) = self.timer.clear() {
            tracing::error!(%error, "Failed to disarm a timer");
        }
    }
}

impl MutEventSubscriber for NicEvents {
    fn init(&mut self, ops: &mut EventOps) {
        let mut add = |events: Events| {
            if let Err(error) = ops.add(events) {
                tracing::error!(?error, "Failed to watch a descriptor of a NIC");
            }
        };
        if let Some(fd) = self.link.readable_fd() {
            add(Events::with_data(&fd, LINK, EventSet::IN));
        }
        add(Events::with_data(&*self.nic_bell, NIC_BELL, EventSet::IN));
        add(Events::with_data(&self.timer, TIMER, EventSet::IN));
        if let Some(rdma) = &self.rdma {
            add(Events::with_data(&*rdma.work, RDMA_WORK, EventSet::IN));
            if let Some(fd) = &rdma.wakeup {
                // It stays readable while nobody asks the provider.
                add(Events::with_data(fd, RDMA_HOST, EventSet::IN | EventSet::EDGE_TRIGGERED));
            }
            if let Some(driver) = &rdma.channels {
                add(Events::with_data(&driver.as_fd().as_raw_fd(), CHANNELS, EventSet::IN));
            }
            for (data, bell) in (RDMA_GROUPS..).zip(&rdma.groups) {
                add(Events::with_data(&**bell, data, EventSet::IN));
            }
        }
    }

    fn process(&mut self, events: Events, _: &mut EventOps) {
        match events.data() {
            LINK => {
                self.receive();
                self.follow_link();
            }
            NIC_BELL => return self.transmit(),
            TIMER => self.timer_fired(),
            RDMA_HOST => {}
            bell => {
                if let Some(rdma) = &mut self.rdma {
                    rdma.rang(bell);
                }
            }
        }
        self.service();
    }
}

impl RdmaEvents {
    /// Lets the device work. Gives when it wants to be called again at the latest, unless it is anyway.
    ///
    /// Doorbells are looked at before each round: what the device sent to itself in the round before arrives in this one,
    /// and must find the receive requests that the guest had posted by then. While the device polls and finds nothing
    /// they are looked at now and then.
    fn service(&mut self, clock: Clock) -> Option<Instant> {
        let now = clock.now();
        let allowed = self.permit.look(now, self.polls);
        self.device.allow_polling(now, allowed);
        let mut next = Next { more: true, poll: false, deadline: None };
        for round in 0..POLL_ROUNDS {
            if !next.poll && (!next.more || round >= SERVICE_ROUNDS) {
                break;
            }
            if next.more || round % ROUNDS_PER_LOOK == 0 {
                self.look_at_bells();
            }
            next = self.device.service(clock.now());
        }
        self.polls = next.poll;
        if next.more || next.poll {
            self.work.ring();
            return None;
        }
        next.deadline
    }

    /// Notes the group bells that have rung, with one system call if none has.
    fn look_at_bells(&self) {
        let mut fds: SmallVec<[PollFd<'_>; 8]> =
            self.groups.iter().map(|bell| PollFd::new(&**bell, PollFlags::IN)).collect();
        // A failure leaves the bells to the event loop.
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(rung) if rung > 0) {
            return;
        }
        for (group, _) in fds.iter().enumerate().filter(|(_, fd)| fd.revents().contains(PollFlags::IN)) {
            self.groups[group].clear();
            self.device.rang(group);
        }
    }

    fn rang(&mut self, data: u32) {
        if data == RDMA_WORK {
            self.work.clear();
        } else if data == CHANNELS {
            if let Some(driver) = &mut self.channels {
                driver.process();
            }
        } else if let Ok(group) = usize::try_from(data - RDMA_GROUPS)
            && let Some(bell) = self.groups.get(group)
        {
            bell.clear();
            self.device.rang(group);
        }
    }
}
