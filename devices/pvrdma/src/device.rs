//! The device as the virtual machine monitor sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::doorbell::Bell;
use device_model::save::{Record, RestoreError, SaveError};
use device_model::time::Instant;
use parking_lot::{Mutex, MutexGuard};
use pci::{BarKind, BarSpec, Device, Identity, MsixSpec};
use pvrdma_spec::doorbell::{CQ_OFFSET, CQ_POLL};
use pvrdma_spec::register::{BAR_MSIX, BAR_REGISTERS, BAR_UAR, Register, Vector};
use pvrdma_spec::{PAGE_SIZE, PCI_DEVICE, PCI_VENDOR, version};

use crate::config::{Config, ConfigError, Parts};
use crate::counters::{Counters, ObjectCounts};
use crate::event::RETRY;
use crate::inspect::Snapshot;
use crate::state::Core;

/// Class of the function: network controller, other.
const CLASS: [u8; 3] = [0x02, 0x80, 0x00];
/// Revision of the function.
const REVISION: u8 = 1;
/// Where the interrupt table is: needed before the device, which is made with its interrupts.
pub const MSIX: MsixSpec =
    MsixSpec { vectors: Vector::COUNT, bar: BAR_MSIX, table_offset: 0, pba_offset: 0x800 };

/// Work requests taken in one batch.
const FETCH_BATCH: u32 = 128;
/// Provider events passed on in one batch.
const EVENT_BATCH: u32 = 256;

/// When to call [`Pvrdma::service`] again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// At once, after looking at other descriptors.
    pub more: bool,
    /// Again and again: there are guests that post without ringing. Only where [`Pvrdma::allow_polling`] allows it.
    pub poll: bool,
    /// At this time even if nothing else happens.
    pub deadline: Option<Instant>,
}

/// A PVRDMA function.
///
/// Its registers are a [`pci::Device`]; the rest is for the I/O thread that serves the function's bells and its link.
pub struct Pvrdma {
    core: Mutex<Core>,
    /// Groups whose bell rang, not yet seen by the core.
    rung: AtomicU64,
    work: Arc<dyn Bell>,
    doorbell_pages: u32,
}

impl Pvrdma {
    /// A device in the power-on state.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when no guest driver could work with it.
    pub fn new(config: Config, parts: Parts) -> Result<Self, ConfigError> {
        let work = parts.bells.work.clone();
        let core = Core::new(config, parts)?;
        Ok(Self {
            core: Mutex::new(core),
            rung: AtomicU64::new(0),
            work,
            doorbell_pages: config.doorbell_pages,
        })
    }

    /// Notes that a group bell rang, by its place in [`crate::Bells::groups`]. [`Pvrdma::service`] must follow.
    pub fn rang(&self, group: usize) {
        if let Ok(group) = u32::try_from(group) {
            self.rung.fetch_or(1u64.checked_shl(group).unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Does a bounded batch of everything that waits: takes work requests from rings, lets the provider act, writes
    /// completions and events. Call it when a bell rang, after [`Pvrdma::receive`], and as the last call said.
    ///
    /// Look at the group bells and call [`Pvrdma::rang`] before each call: messages of the device to itself arrive one call
    /// after they were sent, and a receive request that was posted before is then always found in time.
    pub fn service(&self, now: Instant) -> Next {
        let mut core = self.core.lock();
        core.rung |= self.rung.swap(0, Ordering::Relaxed);
        if !core.is_running() {
            // It has no objects, but what is behind it on the host may ask to be let go of.
            return Next { more: core.provider.advance(now), poll: false, deadline: None };
        }
        core.follow_port();
        core.enqueue_rung();
        core.poll_processes(now);
        core.check_arms();
        core.fetch(now, FETCH_BATCH);
        let mut more = core.provider.advance(now);
        more |= core.pump(EVENT_BATCH);
        core.flush_events();
        core.flush_notifications();
        let untaken = core.watch_completions(now);
        core.begin_to_poll(now);
        more |= !core.ready.is_empty();
        let poll = core.polled.is_awake();
        more = more || (!poll && !core.provider.rest());
        let retry = (!core.events.is_empty()).then(|| now + RETRY);
        let deadline = core.provider.next_deadline().into_iter().chain(retry).chain(untaken).min();
        MutexGuard::unlock_fair(core);
        Next { more, poll, deadline }
    }

    /// Says whether processes of the guest that are busy may be polled, so that their doorbells cost nothing. At first
    /// they may not. [`Pvrdma::service`] must then be called again and again when it says so.
    pub fn allow_polling(&self, now: Instant, allowed: bool) {
        self.core.lock().allow_polling(now, allowed);
    }

    /// Takes a received frame if it is for this device and not for the paired network interface. Returns whether it was.
    /// [`Pvrdma::service`] must follow.
    ///
    /// Between reading a batch of frames from the link and calling this, look at the group bells and call
    /// [`Pvrdma::rang`]: a receive request that was posted before its message was sent is then always found in time.
    pub fn receive(&self, now: Instant, frame: &[u8]) -> bool {
        let mut core = self.core.lock();
        if !core.provider.claims(frame) {
            return false;
        }
        core.rung |= self.rung.swap(0, Ordering::Relaxed);
        if core.is_running() {
            core.enqueue_rung();
            core.poll_processes(now);
            core.fetch_receives(now, FETCH_BATCH);
            core.provider.receive(now, frame);
        }
        true
    }

    /// Whether a received frame is for this device and not for the paired network interface.
    pub fn claims(&self, frame: &[u8]) -> bool {
        self.core.lock().provider.claims(frame)
    }

    /// Looks whether the paired network interface is up. [`Pvrdma::service`] does that too; it is for who is about to hand over
    /// frames, which are lost while the interface is down.
    pub fn look_at_interface(&self) {
        self.core.lock().follow_port();
    }

    /// Says whether the link is up. The guest is told of changes.
    pub fn set_link(&self, up: bool) {
        self.core.lock().set_link(up);
    }

    /// What the device has done so far.
    pub fn counters(&self) -> Counters {
        self.core.lock().totals()
    }

    /// What the guest has created.
    pub fn objects(&self) -> ObjectCounts {
        self.core.lock().objects.counts()
    }

    /// What the device is and has done, with at most `max_qps` queue pairs from the handle `first_qp` on.
    ///
    /// The lock is held for as long as copying that takes, and handed on to whoever waits for it.
    pub fn snapshot(&self, first_qp: u32, max_qps: usize) -> Snapshot {
        let core = self.core.lock();
        let snapshot = core.snapshot(first_qp, max_qps);
        MutexGuard::unlock_fair(core);
        snapshot
    }

    fn read_register(&self, register: Register) -> u32 {
        let mut core = self.core.lock();
        match register {
            Register::Version => version::QP_HANDLE,
            Register::Err => core.error,
            Register::Icr => core.irq.take_causes(),
            Register::Imr => core.irq.mask(),
            Register::MacLow => u32::from_le_bytes([core.mac[0], core.mac[1], core.mac[2], core.mac[3]]),
            Register::MacHigh => u32::from_le_bytes([core.mac[4], core.mac[5], 0, 0]),
            Register::DsrLow | Register::DsrHigh | Register::Ctl | Register::Request => 0,
        }
    }

    fn write_register(&self, register: Register, value: u32) {
        let mut core = self.core.lock();
        match register {
            Register::DsrLow => core.dsr_low = value,
            Register::DsrHigh => {
                let address = u64::from(value) << 32 | u64::from(core.dsr_low);
                core.load_region(address);
            }
            Register::Ctl => core.control(value),
            Register::Request => {
                core.request(value);
                self.work.ring();
            }
            Register::Imr => core.irq.set_mask(value),
            Register::MacLow => core.mac[..4].copy_from_slice(&value.to_le_bytes()),
            Register::MacHigh => core.mac[4..].copy_from_slice(&value.to_le_bytes()),
            Register::Version | Register::Err | Register::Icr => {}
        }
    }

    fn write_doorbell(&self, offset: u64, value: u32) {
        let (page, offset) = (offset / PAGE_SIZE, offset % PAGE_SIZE);
        if offset == CQ_OFFSET && value & CQ_POLL != 0 {
            // The queue was empty and nothing can be done about it: by far the most frequent doorbell.
            return;
        }
        let Ok(page) = u32::try_from(page) else { return };
        let mut core = self.core.lock();
        core.ring_doorbell(page, offset, value);
        if !core.ready.is_empty() || !core.events.is_empty() {
            self.work.ring();
        }
    }
}

impl Device for Pvrdma {
    fn identity(&self) -> Identity {
        Identity {
            vendor: PCI_VENDOR,
            device: PCI_DEVICE,
            class: CLASS,
            revision: REVISION,
            subsystem_vendor: PCI_VENDOR,
            subsystem: PCI_DEVICE,
        }
    }

    fn bars(&self) -> Vec<BarSpec> {
        let bar = |index, size, kind| BarSpec { index, size, kind };
        let doorbells = u64::from(self.doorbell_pages) * PAGE_SIZE;
        vec![
            bar(BAR_MSIX, PAGE_SIZE, BarKind::Memory32),
            bar(BAR_REGISTERS, PAGE_SIZE, BarKind::Memory32),
            bar(BAR_UAR, doorbells, BarKind::Memory32),
        ]
    }

    fn msix(&self) -> Option<MsixSpec> {
        Some(MSIX)
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if bar == BAR_REGISTERS
            && let Some(register) = Register::at(offset)
            && data.len() == size_of::<u32>()
        {
            data.copy_from_slice(&self.read_register(register).to_le_bytes());
        }
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        let Ok(word) = data.try_into().map(u32::from_le_bytes) else { return };
        match bar {
            BAR_REGISTERS => {
                if let Some(register) = Register::at(offset) {
                    self.write_register(register, word);
                }
            }
            BAR_UAR => self.write_doorbell(offset, word),
            _ => {}
        }
    }

    /// Without access to memory all that came of the shared region is dropped. Linux takes it away when one kernel starts
    /// another (kexec), and gives it back before the new driver names a region; by then the rings and queues of the
    /// old one are somebody else's memory.
    fn set_bus_master(&self, enabled: bool) {
        let mut core = self.core.lock();
        if !enabled {
            core.drop_everything();
        }
        core.irq.set_bus_master(enabled);
        drop(core);
        self.work.ring();
    }

    fn reset(&self) {
        self.core.lock().power_on();
    }

    fn save(&self) -> Result<Record, SaveError> {
        self.core.lock().save()
    }

    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        let restored = self.core.lock().restore(record);
        self.work.ring();
        restored
    }
}

impl fmt::Debug for Pvrdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pvrdma").field("doorbell_pages", &self.doorbell_pages).finish_non_exhaustive()
    }
}
