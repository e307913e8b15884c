//! Registers and commands.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use device_model::guest_warn;
use device_model::net::MacAddr;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::activation::{Activation, ActivationError, QueueTable};
use crate::device::{Vmxnet3, lock};
use crate::policy::RxPolicy;
use crate::spec::command::Command;
use crate::spec::regs::{ControlRegister, DataRegister};
use crate::spec::shared::{
    EVENTS, FEATURES, INTERRUPT_CONTROL, QUEUE_STATS, QUEUE_STATUS, QueueStatus, RX_FILTER, RxFilterConf,
};
use crate::spec::{Events, Features, PCI_DEVICE, PCI_REVISION, QueueError, REVISION_1, RxMode};

/// Result of a command that failed or that the device does not know.
const FAILED: u32 = 1;

/// State behind the control registers. Plain data.
#[derive(Debug)]
pub(crate) struct Control {
    /// Address of the shared area, as written to DSAL and DSAH.
    pub(crate) shared_low: u32,
    pub(crate) shared_high: u32,
    /// What a read of CMD gives.
    pub(crate) result: u32,
    /// MACL as written; takes effect with MACH.
    pub(crate) mac_low: u32,
    /// Outstanding events; the shared area holds a copy.
    pub(crate) events: Events,
    /// Set from activation to quiescence.
    pub(crate) active: Option<Active>,
}

/// What commands need of an activated shared area.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Active {
    pub(crate) shared: u64,
    pub(crate) table: QueueTable,
    pub(crate) event_vector: u8,
}

impl Control {
    pub(crate) fn new(mac: MacAddr) -> Self {
        Self {
            shared_low: 0,
            shared_high: 0,
            result: 0,
            mac_low: mac_words(mac).0,
            events: Events::empty(),
            active: None,
        }
    }

    fn shared(&self) -> u64 {
        u64::from(self.shared_high) << 32 | u64::from(self.shared_low)
    }
}

impl Vmxnet3 {
    /// Whether the guest has the interface up: from activation to quiescence.
    pub fn is_active(&self) -> bool {
        lock(&self.control).active.is_some()
    }

    pub(crate) fn read_data(&self, register: DataRegister) -> u32 {
        match register {
            DataRegister::InterruptMask(vector) => u32::from(self.vectors.is_masked(vector)),
            DataRegister::TxProducer(_) | DataRegister::RxProducer(_) => 0,
        }
    }

    pub(crate) fn write_data(&self, register: DataRegister, value: u32) {
        match register {
            // The Linux driver unmasks its vectors before it clears "disable all"; what happened until then would stay
            // unseen if that word counted here.
            DataRegister::InterruptMask(vector) if value & 1 == 0 => {
                self.vectors.unmask(vector, self.is_bus_master());
            }
            DataRegister::InterruptMask(vector) => self.vectors.mask(vector),
            DataRegister::TxProducer(_) => self.ring_bell(),
            // Posted buffers are found by their generation bit.
            DataRegister::RxProducer(_) => {}
        }
    }

    pub(crate) fn read_control(&self, register: ControlRegister) -> u32 {
        let control = lock(&self.control);
        match register {
            ControlRegister::Revisions | ControlRegister::UptVersions => REVISION_1,
            ControlRegister::SharedLow => control.shared_low,
            ControlRegister::SharedHigh => control.shared_high,
            ControlRegister::Command => control.result,
            ControlRegister::MacLow => mac_words(self.mac()).0,
            ControlRegister::MacHigh => mac_words(self.mac()).1,
            ControlRegister::InterruptCause => 0,
            ControlRegister::EventCause => control.events.bits(),
        }
    }

    pub(crate) fn write_control(&self, register: ControlRegister, value: u32) {
        let mut control = lock(&self.control);
        match register {
            // There is one revision to choose, and no pin interrupt.
            ControlRegister::Revisions | ControlRegister::UptVersions | ControlRegister::InterruptCause => {}
            ControlRegister::SharedLow => control.shared_low = value,
            ControlRegister::SharedHigh => control.shared_high = value,
            ControlRegister::Command => control.result = self.execute(&mut control, value),
            ControlRegister::MacLow => control.mac_low = value,
            ControlRegister::MacHigh => self.change_policy(|policy| policy.mac = mac(control.mac_low, value)),
            ControlRegister::EventCause => {
                control.events.remove(Events::from_bits_retain(value));
                self.publish_events(&control);
            }
        }
    }

    /// Executes a command and returns its result.
    fn execute(&self, control: &mut Control, value: u32) -> u32 {
        let command = match Command::try_from(value) {
            Ok(command) => command,
            Err(error) => {
                guest_warn!(%error, "Ignored a command");
                return FAILED;
            }
        };
        tracing::debug!(?command, "Command");
        match command {
            Command::Activate => return self.activate(control),
            Command::Quiesce => self.quiesce(control),
            Command::Reset => {
                self.quiesce(control);
                *control = Control::new(self.config.mac);
                self.change_policy(|policy| policy.mac = self.config.mac);
                self.vectors.reset();
            }
            Command::UpdateRxMode | Command::UpdateMacFilters | Command::UpdateVlanFilters => {
                self.update_filter(control, command);
            }
            Command::UpdateFeature => self.update_features(control),
            Command::UpdateUnused => {}
            Command::GetQueueStatus => self.write_queue_status(control),
            Command::GetStats => self.write_stats(control),
            Command::GetLink => return self.link_status(),
            Command::GetPermanentMacLow => return mac_words(self.config.mac).0,
            Command::GetPermanentMacHigh => return mac_words(self.config.mac).1,
            Command::GetDeviceIdLow => return u32::from(PCI_DEVICE),
            Command::GetDeviceIdHigh => return u32::from(PCI_REVISION),
            Command::GetExtraInfo | Command::GetInterruptConf => {}
        }
        0
    }

    /// Loads the shared area and starts the queues. An active device starts anew.
    fn activate(&self, control: &mut Control) -> u32 {
        self.quiesce(control);
        let read = if self.is_bus_master() {
            Activation::read(&*self.ram, control.shared(), self.limits())
        } else {
            Err(ActivationError::NoBusMaster)
        };
        match read {
            Ok(activation) => {
                self.start(control, activation);
                0
            }
            Err(error) => {
                guest_warn!(%error, "Driver's activation refused");
                FAILED
            }
        }
    }

    fn start(&self, control: &mut Control, activation: Activation) {
        let shared = control.shared();
        let table = QueueTable::of(&activation);
        let Activation { shared: copy, tx, rx } = activation;
        let interrupt_control = shared + INTERRUPT_CONTROL;
        control.events = Events::empty();
        control.active = Some(Active { shared, table, event_vector: copy.interrupts.event_vector });
        self.publish_events(control);
        self.vectors.activate(copy.interrupts.auto_mask != 0);
        self.change_policy(|policy| {
            policy.features = Features::from_bits_truncate(copy.misc.features.get());
            policy.mode = RxMode::from_bits_truncate(copy.rx_filter.mode.get());
            policy.load_vlans(&copy.rx_filter);
            policy.mtu = copy.misc.mtu.get();
            policy.queues = table.rx;
        });
        for (slot, queue) in self.tx.iter().zip(tx) {
            let mut slot = lock(slot);
            slot.queue = Some(queue);
            slot.interrupt_control = interrupt_control;
        }
        for (slot, queue) in self.rx.iter().zip(rx) {
            let mut slot = lock(slot);
            slot.queue = Some(queue);
            slot.interrupt_control = interrupt_control;
        }
    }

    /// Stops the queues. On return no access to guest memory is under way, nor will there be one before activation.
    fn quiesce(&self, control: &mut Control) {
        control.active = None;
        self.change_policy(|policy| *policy = RxPolicy::inactive(policy.mac));
        for slot in &self.tx {
            lock(slot).queue = None;
        }
        for slot in &self.rx {
            lock(slot).queue = None;
        }
    }

    /// The activated shared area, if the device may look at it.
    fn active(&self, control: &Control) -> Option<Active> {
        control.active.filter(|_| self.is_bus_master())
    }

    fn update_filter(&self, control: &Control, command: Command) {
        let Some(active) = self.active(control) else { return };
        let Ok(conf) = self.ram.read_obj::<RxFilterConf>(active.shared + RX_FILTER) else { return };
        self.change_policy(|policy| match command {
            Command::UpdateRxMode => policy.mode = RxMode::from_bits_truncate(conf.mode.get()),
            Command::UpdateMacFilters => policy.load_multicast(&*self.ram, &conf),
            _ => policy.load_vlans(&conf),
        });
    }

    fn update_features(&self, control: &Control) {
        let Some(active) = self.active(control) else { return };
        let Ok(features) = self.ram.read_obj::<U64>(active.shared + FEATURES) else { return };
        self.change_policy(|policy| policy.features = Features::from_bits_truncate(features.get()));
    }

    fn write_queue_status(&self, control: &Control) {
        let Some(Active { table, .. }) = self.active(control) else { return };
        for (index, slot) in (0..table.tx).zip(&self.tx) {
            let stopped = lock(slot).queue.as_ref().and_then(|queue| queue.stopped);
            self.write_block(table.tx_desc(index) + QUEUE_STATUS, queue_status(stopped).as_bytes());
        }
        for (index, slot) in (0..table.rx).zip(&self.rx) {
            let stopped = lock(slot).queue.as_ref().and_then(|queue| queue.stopped);
            self.write_block(table.rx_desc(index) + QUEUE_STATUS, queue_status(stopped).as_bytes());
        }
    }

    fn write_stats(&self, control: &Control) {
        let Some(Active { table, .. }) = self.active(control) else { return };
        for (index, slot) in (0..table.tx).zip(&self.tx) {
            let block = lock(slot).stats.block();
            self.write_block(table.tx_desc(index) + QUEUE_STATS, block.as_bytes());
        }
        for (index, slot) in (0..table.rx).zip(&self.rx) {
            let block = lock(slot).stats.block();
            self.write_block(table.rx_desc(index) + QUEUE_STATS, block.as_bytes());
        }
    }

    fn write_block(&self, address: u64, bytes: &[u8]) {
        if let Err(error) = self.ram.write(address, bytes) {
            guest_warn!(%error, "Queue descriptor table is not RAM any more");
        }
    }

    fn link_status(&self) -> u32 {
        if self.link_up.load(Ordering::Relaxed) { u32::from(self.config.speed_mbps) << 16 | 1 } else { 0 }
    }

    /// Tells an active driver about `events`.
    pub(crate) fn post_event(&self, events: Events) {
        let mut control = lock(&self.control);
        let Some(active) = self.active(&control) else { return };
        control.events |= events;
        self.publish_events(&control);
        self.vectors.raise(active.event_vector, self.interrupts_enabled(active.shared + INTERRUPT_CONTROL));
    }

    /// Copies the outstanding events into the shared area.
    fn publish_events(&self, control: &Control) {
        let Some(active) = self.active(control) else { return };
        if let Err(error) =
            self.ram.store_u32(active.shared + EVENTS, control.events.bits(), Ordering::Release)
        {
            guest_warn!(%error, "Shared area is not RAM any more");
        }
    }

    fn change_policy(&self, change: impl FnOnce(&mut RxPolicy)) {
        change(&mut self.policy.write().unwrap_or_else(PoisonError::into_inner));
    }
}

fn queue_status(stopped: Option<QueueError>) -> QueueStatus {
    QueueStatus {
        stopped: u8::from(stopped.is_some()),
        pad: [0; 3],
        error: U32::new(stopped.map_or(0, |error| error as u32)),
    }
}

/// An address as MACL and MACH hold it.
fn mac_words(MacAddr([a, b, c, d, e, f]): MacAddr) -> (u32, u32) {
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
}

fn mac(low: u32, high: u32) -> MacAddr {
    let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
    MacAddr([a, b, c, d, e, f])
}
