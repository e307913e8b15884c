//! A recording device, router and listener for the tests of this crate.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use device_model::save::{Record, RestoreError, SaveError};

use crate::device::*;
use crate::save::Stateless;
use crate::{Function, Msix, lock};

pub(crate) const MSIX: MsixSpec = MsixSpec { vectors: 70, bar: 0, table_offset: 0, pba_offset: 0x800 };

pub(crate) const BARS: [BarSpec; 3] = [
    BarSpec { index: 0, size: 0x1000, kind: BarKind::Memory32 },
    BarSpec { index: 1, size: 0x10_0000, kind: BarKind::Memory32 },
    BarSpec { index: 2, size: 0x4000, kind: BarKind::Memory64 },
];

/// What a function did to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Read(u8, u64, usize),
    Write(u8, u64, Vec<u8>),
    BusMaster(bool),
    Reset,
    Moved(u8, Option<u64>),
}

#[derive(Default)]
pub(crate) struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    /// The events since the last call.
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.0))
    }

    fn push(&self, event: Event) {
        lock(&self.0).push(event);
    }
}

impl Device for Recorder {
    fn identity(&self) -> Identity {
        Identity {
            vendor: 0x15ad,
            device: 0x0820,
            class: [0x02, 0x00, 0x01],
            revision: 3,
            subsystem_vendor: 0x15ad,
            subsystem: 0x0821,
        }
    }

    fn bars(&self) -> Vec<BarSpec> {
        BARS.to_vec()
    }

    fn msix(&self) -> Option<MsixSpec> {
        Some(MSIX)
    }

    fn vendor_capabilities(&self) -> Vec<VendorCapability> {
        let plain = |body| VendorCapability { body, window: false };
        vec![plain(vec![1, 2, 3]), plain(vec![9; 17]), VendorCapability { body: vec![0; 17], window: true }]
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0x5a);
        self.push(Event::Read(bar, offset, data.len()));
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        self.push(Event::Write(bar, offset, data.to_vec()));
    }

    fn set_bus_master(&self, enabled: bool) {
        self.push(Event::BusMaster(enabled));
    }

    fn reset(&self) {
        self.push(Event::Reset);
    }

    fn save(&self) -> Result<Record, SaveError> {
        Record::new(&Stateless)
    }

    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        record.open().map(|Stateless| ())
    }
}

impl BarListener for Recorder {
    fn bar_moved(&self, bar: u8, base: Option<u64>) {
        self.push(Event::Moved(bar, base));
    }
}

/// Counts what each vector fired and keeps what it was set to.
pub(crate) struct CountingRouter {
    pub(crate) fired: Vec<AtomicU64>,
    pub(crate) set: Mutex<Vec<(u16, MsiMessage)>>,
}

impl CountingRouter {
    pub(crate) fn new() -> Arc<Self> {
        let fired = (0..MSIX.vectors).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { fired, set: Mutex::default() })
    }

    pub(crate) fn count(&self, vector: u16) -> u64 {
        self.fired[usize::from(vector)].load(SeqCst)
    }
}

impl MsiRouter for CountingRouter {
    fn set(&self, vector: u16, message: MsiMessage) {
        lock(&self.set).push((vector, message));
    }

    fn fire(&self, vector: u16) {
        self.fired[usize::from(vector)].fetch_add(1, SeqCst);
    }
}

/// A function around a recorder.
pub(crate) struct Fixture {
    pub(crate) function: Arc<Function>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) router: Arc<CountingRouter>,
    pub(crate) msix: Arc<Msix>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let recorder = Arc::new(Recorder::default());
        let router = CountingRouter::new();
        let msix = Arc::new(Msix::new(MSIX, router.clone()));
        let function = Function::new(recorder.clone(), Some(msix.clone())).unwrap();
        let function = Arc::new(function.with_listener(recorder.clone()));
        Self { function, recorder, router, msix }
    }

    pub(crate) fn config_u32(&self, offset: u16) -> u32 {
        let mut data = [0; 4];
        self.function.config_read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub(crate) fn config_u16(&self, offset: u16) -> u16 {
        let mut data = [0; 2];
        self.function.config_read(offset, &mut data);
        u16::from_le_bytes(data)
    }

    pub(crate) fn set_config_u32(&self, offset: u16, value: u32) -> bool {
        self.function.config_write(offset, &value.to_le_bytes())
    }

    pub(crate) fn set_config_u16(&self, offset: u16, value: u16) -> bool {
        self.function.config_write(offset, &value.to_le_bytes())
    }

    /// Offsets of the capabilities with `id`, found as a guest finds them.
    pub(crate) fn capabilities(&self, id: u8) -> Vec<u16> {
        let mut found = Vec::new();
        let mut at = self.config_u16(0x34) & 0xff;
        while at != 0 {
            let [this, next] = self.config_u16(at).to_le_bytes();
            if this == id {
                found.push(at);
            }
            at = u16::from(next);
        }
        found
    }
}
