//! The modern virtio-pci transport (section 4.1): registers on the one side, queues and a device type on the other.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use device_model::doorbell::{Bell, Doorbell, Doorbells};
use device_model::guest_warn;
use device_model::irq::Interrupts;
use device_model::ram::Ram;
use device_model::save::{Record, RestoreError, SaveError};
use pci::{BarSpec, Device, Identity, MsixSpec, VendorCapability};
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::common::{Field, Half, field};
use crate::device::VirtioDevice;
use crate::layout::{
    BAR, COMMON, DEVICE, ISR, MAX_QUEUES, NOTIFY, NOTIFY_MULTIPLIER, capabilities, msix_spec, notify_offset,
};
use crate::lock;
use crate::queue::{NO_VECTOR, VirtQueue};

const VENDOR: u16 = 0x1af4;
/// Device ids of modern devices start here.
const DEVICE_BASE: u16 = 0x1040;
/// Subsystem id from which drivers take a device not to be transitional.
const SUBSYSTEM: u16 = 0x0040;

const FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX;

pub(crate) const FEATURES_OK: u8 = VIRTIO_CONFIG_S_FEATURES_OK as u8;
pub(crate) const DRIVER_OK: u8 = VIRTIO_CONFIG_S_DRIVER_OK as u8;
const NEEDS_RESET: u8 = VIRTIO_CONFIG_S_NEEDS_RESET as u8;
/// Status bits that a driver sets without a condition.
const DRIVER_BITS: u8 =
    VIRTIO_CONFIG_S_ACKNOWLEDGE as u8 | VIRTIO_CONFIG_S_DRIVER as u8 | VIRTIO_CONFIG_S_FAILED as u8;

/// Bits of the ISR status, used by drivers without MSI-X.
pub(crate) const ISR_QUEUE: u8 = 1 << 0;
const ISR_CONFIG: u8 = 1 << 1;

/// What a virtual machine monitor supplies to a virtio device.
pub struct Wiring {
    /// The guest's memory.
    pub ram: Arc<Ram>,
    /// The function's interrupts, made for [`msix_spec`].
    pub interrupts: Arc<dyn Interrupts>,
    /// The function's doorbells.
    pub doorbells: Arc<dyn Doorbells>,
    /// One bell per queue; after it rings, call [`VirtioPci::process_queue`].
    pub bells: Vec<Arc<dyn Bell>>,
}

/// A device type that the transport cannot carry.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Not one bell per queue.
    #[error("Device has {queues} queues, but {bells} bells were given")]
    Bells {
        /// Queues of the device.
        queues: usize,
        /// Bells given.
        bells: usize,
    },
    /// No queue, or too many.
    #[error("Device asks for {0} queues: use 1 to 255")]
    Queues(usize),
    /// A queue size that is not a power of two up to 32768.
    #[error("Virtqueue of {size} entries: use a power of two up to 32768")]
    QueueSize {
        /// Size asked for.
        size: u16,
        /// The ring's refusal.
        source: virtio_queue::Error,
    },
}

/// A virtio device as a PCI function.
pub struct VirtioPci {
    pub(crate) device: Arc<dyn VirtioDevice>,
    pub(crate) interrupts: Arc<dyn Interrupts>,
    pub(crate) queues: Vec<Mutex<VirtQueue>>,
    pub(crate) bells: Vec<Arc<dyn Bell>>,
    pub(crate) common: Mutex<Common>,
    // Read and written beside `common`, because a queue that breaks must not wait for it.
    pub(crate) status: AtomicU8,
    pub(crate) isr: AtomicU8,
    pub(crate) config_vector: AtomicU16,
    pub(crate) config_generation: AtomicU8,
}

/// Registers of the common configuration that belong to no queue. Locked before any queue.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Common {
    device_feature_select: u32,
    driver_feature_select: u32,
    driver_features: u64,
    queue_select: u16,
}

impl Common {
    pub(crate) const fn driver_features(&self) -> u64 {
        self.driver_features
    }
}

impl VirtioPci {
    /// Puts `device` behind the transport and registers its notification doorbells.
    ///
    /// # Errors
    ///
    /// [`TransportError`] when the number or size of the queues does not fit.
    pub fn new(device: Arc<dyn VirtioDevice>, wiring: Wiring) -> Result<Self, TransportError> {
        let Wiring { ram, interrupts, doorbells, bells } = wiring;
        let sizes = device.queue_sizes();
        if sizes.is_empty() || sizes.len() > usize::from(MAX_QUEUES) {
            return Err(TransportError::Queues(sizes.len()));
        }
        if sizes.len() != bells.len() {
            return Err(TransportError::Bells { queues: sizes.len(), bells: bells.len() });
        }
        let mut queues = Vec::new();
        for (size, bell) in sizes.into_iter().zip(&bells) {
            let queue = VirtQueue::new(size, ram.clone(), bell.clone());
            queues.push(Mutex::new(queue.map_err(|source| TransportError::QueueSize { size, source })?));
        }
        for (queue, bell) in (0..).zip(&bells) {
            let doorbell = Doorbell { bar: BAR.index, offset: notify_offset(queue), value: None };
            // Without it the notification arrives as a register write.
            let _ = doorbells.register(doorbell, bell.clone());
        }
        Ok(Self {
            device,
            interrupts,
            queues,
            bells,
            common: Mutex::default(),
            status: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            config_generation: AtomicU8::new(0),
        })
    }

    /// Number of queues.
    pub fn queue_count(&self) -> u16 {
        u16::try_from(self.queues.len()).unwrap_or(MAX_QUEUES)
    }

    /// Takes what the driver has put into queue `index` and gives back what is complete. Bounded: when there is more to
    /// do, the queue's bell rings again. Called by one thread per queue; does nothing for a queue that does not exist.
    pub fn process_queue(&self, index: u16) {
        let Some(queue) = self.queues.get(usize::from(index)) else { return };
        let mut queue = lock(queue);
        let vector = queue.vector();
        let result =
            queue.process(|buffer| self.device.handle(index, buffer), || self.signal(vector, ISR_QUEUE));
        if let Err(broken) = result {
            guest_warn!(device = self.device.id(), queue = index, %broken, "Virtio queue is broken");
            // With the queue locked, so that a reset cannot come in between.
            self.status.fetch_or(NEEDS_RESET, Ordering::SeqCst);
            self.signal(self.config_vector.load(Ordering::SeqCst), ISR_CONFIG);
        }
    }

    /// Tells the driver that the device-specific configuration has changed.
    pub fn config_changed(&self) {
        self.config_generation.fetch_add(1, Ordering::SeqCst);
        if self.status.load(Ordering::SeqCst) & DRIVER_OK != 0 {
            self.signal(self.config_vector.load(Ordering::SeqCst), ISR_CONFIG);
        }
    }

    pub(crate) fn signal(&self, vector: u16, isr: u8) {
        if vector == NO_VECTOR {
            self.isr.fetch_or(isr, Ordering::SeqCst);
        } else {
            self.interrupts.signal(vector);
        }
    }

    fn features(&self) -> u64 {
        FEATURES | self.device.features()
    }

    fn reset_device(&self) {
        let mut common = lock(&self.common);
        *common = Common::default();
        for queue in &self.queues {
            lock(queue).reset();
        }
        self.device.quiesce();
        self.config_vector.store(NO_VECTOR, Ordering::SeqCst);
        self.isr.store(0, Ordering::SeqCst);
        // Last: it tells the driver that the reset is complete.
        self.status.store(0, Ordering::SeqCst);
    }

    fn write_status(&self, value: u8) {
        if value == 0 {
            return self.reset_device();
        }
        let common = lock(&self.common);
        let before = self.status.load(Ordering::SeqCst);
        let mut set = value & DRIVER_BITS;
        if value & FEATURES_OK != 0 && self.accepts(common.driver_features) {
            set |= FEATURES_OK;
        }
        if value & DRIVER_OK != 0 && (before | set) & FEATURES_OK != 0 {
            set |= DRIVER_OK;
        }
        self.status.fetch_or(set, Ordering::SeqCst);
        if set & !before & DRIVER_OK != 0 {
            self.start(common.driver_features);
        }
    }

    pub(crate) fn accepts(&self, driver_features: u64) -> bool {
        driver_features & 1 << VIRTIO_F_VERSION_1 != 0 && driver_features & !self.features() == 0
    }

    fn start(&self, features: u64) {
        self.device.activate(features);
        for queue in &self.queues {
            lock(queue).start(features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        }
    }

    fn selected(&self, common: &Common) -> Option<&Mutex<VirtQueue>> {
        self.queues.get(usize::from(common.queue_select))
    }

    fn read_common(&self, field: Field) -> u32 {
        let common = lock(&self.common);
        let of_queue =
            |read: &dyn Fn(&VirtQueue) -> u32| self.selected(&common).map_or(0, |queue| read(&lock(queue)));
        match field {
            Field::DeviceFeatureSelect => common.device_feature_select,
            Field::DeviceFeature => feature_word(self.features(), common.device_feature_select),
            Field::DriverFeatureSelect => common.driver_feature_select,
            Field::DriverFeature => feature_word(common.driver_features, common.driver_feature_select),
            Field::ConfigMsixVector => self.config_vector.load(Ordering::SeqCst).into(),
            Field::NumQueues => self.queue_count().into(),
            Field::DeviceStatus => self.status.load(Ordering::SeqCst).into(),
            Field::ConfigGeneration => self.config_generation.load(Ordering::SeqCst).into(),
            Field::QueueSelect => common.queue_select.into(),
            Field::QueueSize => of_queue(&|queue| queue.size().into()),
            Field::QueueMsixVector => of_queue(&|queue| queue.vector().into()),
            Field::QueueEnable => of_queue(&|queue| queue.is_enabled().into()),
            Field::QueueNotifyOff => of_queue(&|_| common.queue_select.into()),
            Field::QueueAddress(part, half) => of_queue(&|queue| half.of(queue.address(part))),
        }
    }

    fn write_common(&self, field: Field, value: u32) {
        if field == Field::DeviceStatus {
            return self.write_status(low_byte(value));
        }
        let mut common = lock(&self.common);
        let of_queue = |write: &dyn Fn(&mut VirtQueue)| {
            if let Some(queue) = self.selected(&common) {
                write(&mut lock(queue));
            }
        };
        match field {
            Field::DeviceFeatureSelect => common.device_feature_select = value,
            Field::DriverFeatureSelect => common.driver_feature_select = value,
            Field::DriverFeature => self.write_driver_features(&mut common, value),
            Field::ConfigMsixVector => self.config_vector.store(self.vector(value), Ordering::SeqCst),
            Field::QueueSelect => common.queue_select = low_half(value),
            Field::QueueSize => of_queue(&|queue| queue.set_size(low_half(value))),
            Field::QueueMsixVector => of_queue(&|queue| queue.set_vector(self.vector(value))),
            Field::QueueEnable if value == 1 => of_queue(&VirtQueue::enable),
            Field::QueueAddress(part, half) => of_queue(&|queue| queue.set_address(part, half, value)),
            Field::QueueEnable
            | Field::DeviceFeature
            | Field::NumQueues
            | Field::DeviceStatus
            | Field::ConfigGeneration
            | Field::QueueNotifyOff => {}
        }
    }

    /// Fixed once the driver has set `FEATURES_OK`.
    fn write_driver_features(&self, common: &mut Common, value: u32) {
        if self.status.load(Ordering::SeqCst) & FEATURES_OK != 0 {
            return;
        }
        let half = match common.driver_feature_select {
            0 => Half::Low,
            1 => Half::High,
            _ => return,
        };
        common.driver_features = half.replace(common.driver_features, value);
    }

    /// The vector a driver asked for, or none if there is no such vector.
    fn vector(&self, value: u32) -> u16 {
        let vector = low_half(value);
        if vector <= self.queue_count() { vector } else { NO_VECTOR }
    }
}

impl Device for VirtioPci {
    fn identity(&self) -> Identity {
        Identity {
            vendor: VENDOR,
            device: DEVICE_BASE + self.device.id(),
            class: self.device.class(),
            revision: 1,
            subsystem_vendor: VENDOR,
            subsystem: SUBSYSTEM,
        }
    }

    fn bars(&self) -> Vec<BarSpec> {
        vec![BAR]
    }

    fn msix(&self) -> Option<MsixSpec> {
        Some(msix_spec(self.queue_count()))
    }

    fn vendor_capabilities(&self) -> Vec<VendorCapability> {
        capabilities()
    }

    fn read(&self, _bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = COMMON.offset_of(offset) {
            for (offset, word) in (offset..).step_by(4).zip(data.chunks_mut(4)) {
                if let Some(field) = field(offset, word.len()) {
                    word.copy_from_slice(&self.read_common(field).to_le_bytes()[..word.len()]);
                }
            }
        } else if let Some(offset) = DEVICE.offset_of(offset) {
            self.device.read_config(offset, data);
        } else if ISR.offset_of(offset).is_some()
            && let [isr, ..] = data
        {
            *isr = self.isr.swap(0, Ordering::SeqCst);
        }
    }

    fn write(&self, _bar: u8, offset: u64, data: &[u8]) {
        if let Some(offset) = COMMON.offset_of(offset) {
            for (offset, word) in (offset..).step_by(4).zip(data.chunks(4)) {
                if let Some(field) = field(offset, word.len()) {
                    let mut bytes = [0; 4];
                    bytes[..word.len()].copy_from_slice(word);
                    self.write_common(field, u32::from_le_bytes(bytes));
                }
            }
        } else if let Some(offset) = NOTIFY.offset_of(offset)
            && let Ok(queue) = usize::try_from(offset / u64::from(NOTIFY_MULTIPLIER))
            && let Some(bell) = self.bells.get(queue)
        {
            bell.ring();
        }
    }

    fn set_bus_master(&self, enabled: bool) {
        for queue in &self.queues {
            lock(queue).set_bus_master(enabled);
        }
        if !enabled {
            self.device.quiesce();
        }
    }

    fn reset(&self) {
        self.reset_device();
    }

    fn save(&self) -> Result<Record, SaveError> {
        self.save_state()
    }

    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        self.restore_state(record)
    }
}

fn feature_word(features: u64, select: u32) -> u32 {
    match select {
        0 => Half::Low.of(features),
        1 => Half::High.of(features),
        _ => 0,
    }
}

const fn low_half(value: u32) -> u16 {
    (value & 0xffff) as u16
}

const fn low_byte(value: u32) -> u8 {
    (value & 0xff) as u8
}
