//! The device as it is saved. What the guest may have changed in its shared area since it was activated is not read again.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use device_model::net::MacAddr;
use device_model::save::{Record, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};

use crate::control::{Active, Control};
use crate::device::{RxSlot, TxSlot, Vmxnet3, lock};
use crate::policy::RxPolicy;
use crate::rx::RxQueue;
use crate::spec::shared::INTERRUPT_CONTROL;
use crate::spec::{Events, Features, MAX_VECTORS, RxMode};
use crate::stats::{RxStats, TxStats};
use crate::tx::TxQueue;

/// Most addresses of the multicast table: its length in bytes has 16 bits.
const MAX_MULTICAST: usize = 0xffff / 6;

#[derive(Debug, Serialize, Deserialize)]
struct ControlState {
    shared_low: u32,
    shared_high: u32,
    result: u32,
    mac_low: u32,
    events: u32,
    active: Option<Active>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PolicyState {
    mac: MacAddr,
    mode: u32,
    multicast: Vec<MacAddr>,
    vlans: Vec<u32>,
    features: u64,
    mtu: u32,
    queues: u8,
}

/// Everything the device knows.
#[derive(Debug, Serialize, Deserialize)]
struct NicState {
    permanent_mac: MacAddr,
    control: ControlState,
    policy: PolicyState,
    tx: Vec<(Option<TxQueue>, TxStats)>,
    rx: Vec<(Option<RxQueue>, RxStats)>,
    rx_unwanted: u64,
    auto_mask: bool,
    vectors: Vec<u8>,
    link_up: bool,
}

impl Saved for NicState {
    const KIND: &'static str = "vmxnet3";
    const VERSION: u16 = 1;
}

impl ControlState {
    const fn of(control: &Control) -> Self {
        let Control { shared_low, shared_high, result, mac_low, events, active } = control;
        Self {
            shared_low: *shared_low,
            shared_high: *shared_high,
            result: *result,
            mac_low: *mac_low,
            events: events.bits(),
            active: *active,
        }
    }
}

impl From<ControlState> for Control {
    fn from(state: ControlState) -> Self {
        let ControlState { shared_low, shared_high, result, mac_low, events, active } = state;
        Self { shared_low, shared_high, result, mac_low, events: Events::from_bits_retain(events), active }
    }
}

impl PolicyState {
    fn of(policy: &RxPolicy) -> Self {
        let RxPolicy { mac, mode, multicast, vlans, features, mtu, queues } = policy;
        Self {
            mac: *mac,
            mode: mode.bits(),
            multicast: multicast.clone(),
            vlans: vlans.to_vec(),
            features: features.bits(),
            mtu: *mtu,
            queues: *queues,
        }
    }
}

impl TryFrom<PolicyState> for RxPolicy {
    type Error = RestoreError;

    fn try_from(state: PolicyState) -> Result<Self, RestoreError> {
        let PolicyState { mac, mode, mut multicast, vlans, features, mtu, queues } = state;
        let invalid = |why: &str| RestoreError::invalid::<NicState>(why);
        if multicast.len() > MAX_MULTICAST {
            return Err(invalid("multicast table"));
        }
        // Looked up by halves.
        multicast.sort_unstable();
        Ok(Self {
            mac,
            mode: RxMode::from_bits_truncate(mode),
            multicast,
            vlans: vlans.try_into().map_err(|_| invalid("VLAN table"))?,
            features: Features::from_bits_truncate(features),
            mtu,
            queues,
        })
    }
}

impl NicState {
    /// Checks that queues are there exactly as far as the driver has activated them, and could be.
    fn check(&self, nic: &Vmxnet3) -> Result<(), RestoreError> {
        let invalid = |why: &str| Err(RestoreError::invalid::<Self>(why));
        if self.permanent_mac != nic.config.mac {
            return invalid("it has another permanent MAC address");
        }
        let (tx, rx) = match &self.control.active {
            Some(Active { shared, table, event_vector }) => {
                if shared.checked_add(INTERRUPT_CONTROL).is_none()
                    || !table.is_valid(nic.limits())
                    || *event_vector >= MAX_VECTORS
                {
                    return invalid("shared area");
                }
                (usize::from(table.tx), usize::from(table.rx))
            }
            None => (0, 0),
        };
        let ram = &*nic.ram;
        let tx_ok = self.tx.len() == nic.tx.len()
            && self.tx.iter().enumerate().all(|(index, (queue, _))| match queue {
                Some(queue) => index < tx && queue.is_valid(ram),
                None => index >= tx,
            });
        let rx_ok = self.rx.len() == nic.rx.len()
            && self.rx.iter().enumerate().all(|(index, (queue, _))| match queue {
                Some(queue) => index < rx && queue.is_valid(ram),
                None => index >= rx,
            });
        if tx_ok && rx_ok && usize::from(self.policy.queues) == rx { Ok(()) } else { invalid("queues") }
    }
}

impl Vmxnet3 {
    pub(crate) fn save_state(&self) -> Result<Record, SaveError> {
        let control = lock(&self.control);
        let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        let (auto_mask, vectors) = self.vectors.state();
        let tx = self.tx.iter().map(lock).map(|slot| (slot.queue.clone(), slot.stats));
        let rx = self.rx.iter().map(lock).map(|slot| (slot.queue.clone(), slot.stats));
        Record::new(&NicState {
            permanent_mac: self.config.mac,
            control: ControlState::of(&control),
            policy: PolicyState::of(&policy),
            tx: tx.collect(),
            rx: rx.collect(),
            rx_unwanted: self.rx_unwanted.load(Ordering::Relaxed),
            auto_mask,
            vectors,
            link_up: self.is_link_up(),
        })
    }

    pub(crate) fn restore_state(&self, record: &Record) -> Result<(), RestoreError> {
        let state: NicState = record.open()?;
        state.check(self)?;
        let interrupt_control = state.control.active.map_or(0, |active| active.shared + INTERRUPT_CONTROL);
        let policy = state.policy.try_into()?;
        if !self.vectors.restore(state.auto_mask, &state.vectors) {
            return Err(RestoreError::invalid::<NicState>("interrupt vectors"));
        }
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
        for (slot, (queue, stats)) in self.tx.iter().zip(state.tx) {
            *lock(slot) = TxSlot { queue, stats, interrupt_control, ..TxSlot::default() };
        }
        for (slot, (queue, stats)) in self.rx.iter().zip(state.rx) {
            *lock(slot) = RxSlot { queue, stats, interrupt_control };
        }
        self.rx_unwanted.store(state.rx_unwanted, Ordering::Relaxed);
        *lock(&self.control) = state.control.into();
        // The cable here may be plugged in or not; the guest knows how it was there.
        let up = self.link_up.swap(state.link_up, Ordering::Relaxed);
        self.set_link(up);
        self.ring_bell();
        Ok(())
    }
}
