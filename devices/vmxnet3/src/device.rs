//! The device: what the outside sees, and which lock guards what.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use device_model::doorbell::{Bell, Doorbell, Doorbells};
use device_model::irq::Interrupts;
use device_model::net::{Link, MacAddr};
use device_model::ram::GuestRam;

use crate::activation::Limits;
use crate::control::Control;
use crate::policy::RxPolicy;
use crate::rx::RxQueue;
use crate::spec::regs::{BAR_DATA, STRIDE, TXPROD};
use crate::spec::{Events, INTERRUPTS_DISABLE_ALL, MAX_RX_QUEUES, MAX_TX_QUEUES};
use crate::stats::{RxStats, Stats, TxStats};
use crate::tx::{Outlet, Scratch, TxQueue};
use crate::vectors::Vectors;

/// What a device is made with; constant for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Permanent address.
    pub mac: MacAddr,
    /// Transmit queues on offer, 1 to 8.
    pub tx_queues: u8,
    /// Receive queues on offer, 1 to 8.
    pub rx_queues: u8,
    /// Speed reported for a link that is up, in Mbit/s.
    pub speed_mbps: u16,
}

impl Config {
    /// As many queues as the Linux driver can use, at 10 Gbit/s.
    pub fn new(mac: MacAddr) -> Self {
        Self { mac, tx_queues: MAX_TX_QUEUES, rx_queues: MAX_RX_QUEUES, speed_mbps: 10_000 }
    }
}

/// A vmxnet3 network interface.
///
/// vCPU threads access registers through [`pci::Device`]; an I/O thread moves frames with [`Vmxnet3::process_tx`] and
/// [`Vmxnet3::receive`]. All methods take `&self` and may run at the same time.
///
/// # Locks
///
/// `control`, then `policy`, then one queue at a time. The bus master flag is checked with the lock of the queue or of
/// `control` held, and whoever clears it then takes every lock once: nothing moves after that. Quiescing removes the
/// queues from under their locks, to the same effect.
pub struct Vmxnet3 {
    pub(crate) config: Config,
    pub(crate) ram: Arc<dyn GuestRam>,
    link: Arc<dyn Link>,
    doorbells: Arc<dyn Doorbells>,
    bell: Arc<dyn Bell>,
    pub(crate) vectors: Vectors,
    bus_master: AtomicBool,
    pub(crate) link_up: AtomicBool,
    pub(crate) rx_unwanted: AtomicU64,
    pub(crate) control: Mutex<Control>,
    pub(crate) policy: RwLock<RxPolicy>,
    pub(crate) tx: [Mutex<TxSlot>; MAX_TX_QUEUES as usize],
    pub(crate) rx: [Mutex<RxSlot>; MAX_RX_QUEUES as usize],
}

/// A transmit queue's place.
#[derive(Debug, Default)]
pub(crate) struct TxSlot {
    pub(crate) queue: Option<TxQueue>,
    pub(crate) stats: TxStats,
    pub(crate) scratch: Scratch,
    /// Address of the word that can disable all interrupts.
    pub(crate) interrupt_control: u64,
}

/// A receive queue's place.
#[derive(Debug, Default)]
pub(crate) struct RxSlot {
    pub(crate) queue: Option<RxQueue>,
    pub(crate) stats: RxStats,
    /// Address of the word that can disable all interrupts.
    pub(crate) interrupt_control: u64,
}

impl Vmxnet3 {
    /// Makes a device in its power-on state, with the link as `link` says.
    ///
    /// The transmit doorbells are registered with `doorbells`; after a ring of `bell` the I/O thread calls
    /// [`Vmxnet3::process_tx`]. The link's MTU bounds what the guest can send.
    pub fn new(
        config: Config,
        ram: Arc<dyn GuestRam>,
        link: Arc<dyn Link>,
        interrupts: Arc<dyn Interrupts>,
        doorbells: Arc<dyn Doorbells>,
        bell: Arc<dyn Bell>,
    ) -> Self {
        for doorbell in tx_doorbells(&config) {
            // A write that is not caught arrives as a register write and rings the bell all the same.
            if let Err(error) = doorbells.register(doorbell, bell.clone()) {
                tracing::debug!(?doorbell, %error, "Transmit doorbell will be a register access");
            }
        }
        let link_up = AtomicBool::new(link.is_up());
        Self {
            config,
            ram,
            link,
            doorbells,
            bell,
            vectors: Vectors::new(interrupts),
            bus_master: AtomicBool::new(false),
            link_up,
            rx_unwanted: AtomicU64::new(0),
            control: Mutex::new(Control::new(config.mac)),
            policy: RwLock::new(RxPolicy::inactive(config.mac)),
            tx: Default::default(),
            rx: Default::default(),
        }
    }

    /// Sends what the guest has queued, up to a batch of packets per queue. `true` if there is more: call again.
    pub fn process_tx(&self) -> bool {
        let mut more = false;
        let mut failed = false;
        for slot in &self.tx {
            let mut slot = lock(slot);
            let TxSlot { queue: Some(queue), stats, scratch, interrupt_control } = &mut *slot else {
                continue;
            };
            if !self.is_bus_master() {
                break;
            }
            let link_up = self.link_up.load(Ordering::Relaxed);
            let progress = queue.process(&*self.ram, scratch, &mut Outlet::new(&*self.link, link_up, stats));
            if progress.completed {
                self.vectors.raise(queue.vector, self.interrupts_enabled(*interrupt_control));
            }
            more |= progress.more;
            failed |= progress.failed;
        }
        if failed {
            self.post_event(Events::TX_QUEUE_ERROR);
        }
        more
    }

    /// Connects or disconnects the cable. The guest is told; frames are dropped while it is out.
    pub fn set_link(&self, up: bool) {
        if self.link_up.swap(up, Ordering::Relaxed) != up {
            self.post_event(Events::LINK);
        }
    }

    /// Whether the cable is connected.
    pub fn is_link_up(&self) -> bool {
        self.link_up.load(Ordering::Relaxed)
    }

    /// Address in use: the permanent one, unless the guest has set another.
    pub fn mac(&self) -> MacAddr {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).mac
    }

    /// All counters, since power-on or the last [`pci::Device::reset`].
    pub fn stats(&self) -> Stats {
        Stats {
            tx: std::array::from_fn(|queue| {
                self.tx.get(queue).map(|slot| lock(slot).stats).unwrap_or_default()
            }),
            rx: std::array::from_fn(|queue| {
                self.rx.get(queue).map(|slot| lock(slot).stats).unwrap_or_default()
            }),
            rx_unwanted: self.rx_unwanted.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            tx_queues: self.config.tx_queues.min(MAX_TX_QUEUES),
            rx_queues: self.config.rx_queues.min(MAX_RX_QUEUES),
        }
    }

    pub(crate) fn ring_bell(&self) {
        self.bell.ring();
    }

    pub(crate) fn is_bus_master(&self) -> bool {
        self.bus_master.load(Ordering::Acquire)
    }

    /// Sets the bus master flag; when cleared, no access to guest memory is under way any more on return.
    pub(crate) fn set_bus_master_flag(&self, enabled: bool) {
        self.bus_master.store(enabled, Ordering::Release);
        if !enabled {
            drop(lock(&self.control));
            for slot in &self.tx {
                drop(lock(slot));
            }
            for slot in &self.rx {
                drop(lock(slot));
            }
        }
    }

    /// Whether the driver lets interrupts through, by the word at `address` that it changes at will.
    pub(crate) fn interrupts_enabled(&self, address: u64) -> bool {
        self.ram
            .load_u32(address, Ordering::Acquire)
            .is_ok_and(|control| control & INTERRUPTS_DISABLE_ALL == 0)
    }

    /// Back to the power-on state. The fields are named so that a new one is not forgotten.
    pub(crate) fn power_on(&self) {
        let Self {
            config,
            ram: _,
            link: _,
            doorbells: _,
            bell: _,
            vectors,
            bus_master: _,
            link_up: _,
            rx_unwanted,
            control,
            policy,
            tx,
            rx,
        } = self;
        self.set_bus_master_flag(false);
        *lock(control) = Control::new(config.mac);
        *policy.write().unwrap_or_else(PoisonError::into_inner) = RxPolicy::inactive(config.mac);
        for slot in tx {
            *lock(slot) = TxSlot::default();
        }
        for slot in rx {
            *lock(slot) = RxSlot::default();
        }
        rx_unwanted.store(0, Ordering::Relaxed);
        vectors.reset();
    }
}

impl Drop for Vmxnet3 {
    fn drop(&mut self) {
        for doorbell in tx_doorbells(&self.config) {
            self.doorbells.unregister(doorbell);
        }
    }
}

fn tx_doorbells(config: &Config) -> impl Iterator<Item = Doorbell> {
    (0..config.tx_queues.min(MAX_TX_QUEUES)).map(|queue| Doorbell {
        bar: BAR_DATA,
        offset: TXPROD + u64::from(queue) * STRIDE,
        value: None,
    })
}

/// Locks; a thread that panicked with the lock held left plain data behind, which is as good as any guest's.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
