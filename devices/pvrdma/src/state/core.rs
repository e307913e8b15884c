//! The whole of the device's state, and what starts and ends its life.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use device_model::guest_warn;
use device_model::ram::GuestRam;
use device_model::time::Instant;
use pvrdma_spec::register::Control;
use pvrdma_spec::shared::DeviceCaps;
use pvrdma_spec::version;
use verbs::{Gid, Provider};

use super::{Irq, Objects, Region};
use crate::command::Errno;
use crate::config::{Config, ConfigError, Parts, capabilities};
use crate::counters::Counters;
use crate::event::EventQueue;
use crate::inspect::Failure;
use crate::polling::PolledProcesses;
use crate::work::{DoorbellMap, ReadyQueue};

/// How far the driver has brought the device up.
#[derive(Debug)]
pub(crate) enum Phase {
    /// There is no shared region: no command and no ring can be reached.
    NoRegion,
    /// A shared region was handed over, but not activated.
    Loaded(Region),
    /// Commands are executed.
    Active(Region),
}

impl Phase {
    /// The region of an active device.
    pub(crate) const fn active(&self) -> Option<&Region> {
        if let Self::Active(region) = self { Some(region) } else { None }
    }

    /// The region of an active device.
    pub(crate) const fn active_mut(&mut self) -> Option<&mut Region> {
        if let Self::Active(region) = self { Some(region) } else { None }
    }
}

/// Everything behind the device's lock.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) caps: DeviceCaps,
    pub(crate) ram: Arc<dyn GuestRam>,
    pub(crate) provider: Box<dyn Provider>,
    pub(crate) clock: Box<dyn Fn() -> Instant + Send + Sync>,
    pub(crate) interface_up: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) irq: Irq,
    pub(crate) doorbells: DoorbellMap,
    pub(crate) phase: Phase,
    pub(crate) dsr_low: u32,
    /// `ERR`
    pub(crate) error: u32,
    pub(crate) mac: [u8; 8],
    pub(crate) link_up: bool,
    /// Whether the provider's own port is up; engines have none that could be down.
    pub(crate) provider_up: bool,
    pub(crate) objects: Objects,
    /// Rows of the GID table that hold something.
    pub(crate) gids: BTreeMap<u16, Gid>,
    /// Rings to look at.
    pub(crate) ready: ReadyQueue,
    /// Groups of objects whose bell rang.
    pub(crate) rung: u64,
    /// Processes whose rings are looked at without a doorbell.
    pub(crate) polled: PolledProcesses,
    /// Whether queues may be armed that hold completions nobody was told of.
    pub(crate) arms_unchecked: bool,
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// The latest failures of queue pairs; they survive resets, as counters do.
    pub(crate) failures: VecDeque<Failure>,
}

impl Core {
    /// A device in the power-on state.
    pub(crate) fn new(config: Config, parts: Parts) -> Result<Self, ConfigError> {
        let Parts { provider, ram, interrupts, doorbells, bells, clock, interface_up } = parts;
        let caps = capabilities(&config, &provider.limits())?;
        Ok(Self {
            config,
            caps,
            ram,
            provider,
            clock,
            interface_up,
            irq: Irq::new(interrupts),
            doorbells: DoorbellMap::new(doorbells, bells)?,
            phase: Phase::NoRegion,
            dsr_low: 0,
            error: Errno::NotReady as u32,
            mac: mac_registers(&config),
            link_up: config.link_up,
            provider_up: true,
            objects: Objects::new(&caps, version::QP_HANDLE),
            gids: BTreeMap::new(),
            ready: ReadyQueue::default(),
            rung: 0,
            polled: PolledProcesses::default(),
            arms_unchecked: false,
            events: EventQueue::default(),
            counters: Counters::default(),
            failures: VecDeque::new(),
        })
    }

    /// Whether commands and rings are served: there is a region, and the function may access memory.
    pub(crate) const fn is_running(&self) -> bool {
        self.irq.bus_master() && self.phase.active().is_some()
    }

    /// Takes over a shared region. One that is already there is dropped first, with all that came of it: a kernel that
    /// was started by a crashed one does not say good-bye for it.
    pub(crate) fn load_region(&mut self, address: u64) {
        self.drop_everything();
        self.error = Errno::NotReady as u32;
        if !self.irq.bus_master() {
            guest_warn!(address, "shared region while bus mastering is off");
            return;
        }
        match Region::load(&*self.ram, address, &self.caps) {
            Ok(region) => {
                self.objects = Objects::new(&self.caps, region.driver_version);
                self.phase = Phase::Loaded(region);
                self.error = 0;
            }
            Err(error) => guest_warn!(address, %error, "bad shared region"),
        }
    }

    /// Handles a write to `CTL`.
    pub(crate) fn control(&mut self, value: u32) {
        self.error = match Control::from_value(value) {
            Some(Control::Activate) => self.activate(),
            Some(Control::Unquiesce) => self.unquiesce(),
            Some(Control::Reset) => {
                self.drop_everything();
                Ok(())
            }
            None => Err(Errno::Invalid),
        }
        .map_or_else(|errno| errno as u32, |()| 0);
    }

    fn activate(&mut self) -> Result<(), Errno> {
        match std::mem::replace(&mut self.phase, Phase::NoRegion) {
            Phase::NoRegion => Err(Errno::NotReady),
            Phase::Loaded(region) | Phase::Active(region) => {
                self.phase = Phase::Active(region);
                Ok(())
            }
        }
    }

    /// The network interface came up. The driver may have ignored events until now, so it is reminded of them.
    fn unquiesce(&mut self) -> Result<(), Errno> {
        if self.phase.active().is_none() {
            return Err(Errno::NotReady);
        }
        self.remind_of_events();
        Ok(())
    }

    /// Drops the shared region and every object. On return no guest memory is accessed any more.
    pub(crate) fn drop_everything(&mut self) {
        if matches!(self.phase, Phase::NoRegion) {
            return;
        }
        self.phase = Phase::NoRegion;
        self.provider.reset();
        self.doorbells.unregister_all();
        self.polled.clear();
        self.arms_unchecked = false;
        self.objects = Objects::new(&self.caps, version::QP_HANDLE);
        self.gids.clear();
        self.ready.clear();
        self.rung = 0;
        self.events.clear();
    }

    /// Returns to the power-on state.
    pub(crate) fn power_on(&mut self) {
        self.drop_everything();
        self.irq.set_bus_master(false);
        self.irq.reset();
        self.dsr_low = 0;
        self.error = Errno::NotReady as u32;
        self.mac = mac_registers(&self.config);
    }
}

/// `MACL` and `MACH` at power-on.
fn mac_registers(config: &Config) -> [u8; 8] {
    let mac = config.mac.0;
    [mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0]
}
