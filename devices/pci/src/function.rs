//! A function: a device wrapped in config space, BARs and MSI-X.

use std::sync::{Arc, Mutex};

use device_model::save::RestoreError;

use crate::config::{ConfigSpace, NoRoom, WindowAccess};
use crate::device::{BarKind, BarListener, BarSpec, Device, MsixSpec};
use crate::lock;
use crate::msix::{MAX_VECTORS, Msix};
use crate::save::FunctionState;

/// Smallest BAR: a page, so that no two functions share one.
const MIN_BAR: u64 = 4096;
/// Largest 32-bit BAR.
const MAX_BAR32: u64 = 1 << 31;
/// BAR registers of a type 0 header.
const BARS: u8 = 6;

/// Why a device cannot be a function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FunctionError {
    /// A BAR is outside the six registers, overlaps another, or its size is not a power of two in range.
    #[error("{0:?} is not a valid BAR: use free registers 0 to 5 and a power of two from 4096 bytes")]
    Bar(BarSpec),
    /// The MSI-X structures overlap, are misaligned, or lie outside their BAR.
    #[error(
        "{0:?} is not a valid MSI-X layout: use 1 to 2048 vectors, 8-aligned and disjoint inside an existing BAR"
    )]
    Msix(MsixSpec),
    /// The [`Msix`] was made for another layout than the device's.
    #[error("MSI-X was made for {given:?}, but the device asks for {wanted:?}")]
    MsixMismatch {
        /// What the device says.
        wanted: Option<MsixSpec>,
        /// What the `Msix` was made for.
        given: Option<MsixSpec>,
    },
    /// The capabilities do not fit 256 bytes of config space.
    #[error("No room in config space for the capabilities")]
    Capabilities,
}

impl From<NoRoom> for FunctionError {
    fn from(NoRoom: NoRoom) -> Self {
        Self::Capabilities
    }
}

/// A PCI function: a [`Device`] with its config space, BARs and MSI-X.
///
/// It is a root complex integrated endpoint with function level reset, which Linux uses for
/// `/sys/bus/pci/devices/…/reset`.
pub struct Function {
    device: Arc<dyn Device>,
    msix: Option<Arc<Msix>>,
    listener: Option<Arc<dyn BarListener>>,
    bars: Vec<BarSpec>,
    state: Mutex<State>,
}

struct State {
    config: ConfigSpace,
    /// Addresses given by firmware, in the order of `bars`; restored by a machine reset.
    assigned: Vec<u64>,
    /// What the device and the listener were last told.
    told: Told,
}

struct Told {
    bus_master: bool,
    bases: Vec<Option<u64>>,
}

impl Function {
    /// Wraps `device`. `msix` must have been made from the device's [`Device::msix`] and be the object that the device
    /// signals; `None` if the device has no interrupts.
    ///
    /// # Errors
    ///
    /// [`FunctionError`] when what the device says about itself cannot be expressed in config space.
    pub fn new(device: Arc<dyn Device>, msix: Option<Arc<Msix>>) -> Result<Self, FunctionError> {
        let bars = device.bars();
        check_bars(&bars)?;
        let wanted = device.msix();
        let given = msix.as_ref().map(|msix| *msix.spec());
        if wanted != given {
            return Err(FunctionError::MsixMismatch { wanted, given });
        }
        let mut config = ConfigSpace::new(&device.identity());
        bars.iter().for_each(|bar| config.add_bar(bar));
        config.add_express()?;
        if let Some(spec) = &wanted {
            check_msix(spec, &bars)?;
            config.add_msix(spec)?;
        }
        for capability in device.vendor_capabilities() {
            config.add_vendor(&capability)?;
        }
        Ok(Self::with_config(device, msix, bars, config))
    }

    /// A function with a config space made elsewhere.
    pub(crate) fn with_config(
        device: Arc<dyn Device>,
        msix: Option<Arc<Msix>>,
        bars: Vec<BarSpec>,
        config: ConfigSpace,
    ) -> Self {
        let told = Told { bus_master: false, bases: vec![None; bars.len()] };
        let state = Mutex::new(State { config, assigned: Vec::new(), told });
        Self { device, msix, listener: None, bars, state }
    }

    /// Reports moves of the BARs to `listener`.
    #[must_use]
    pub fn with_listener(mut self, listener: Arc<dyn BarListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// The device behind the function.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// BARs with the guest-physical addresses they are decoded at now; `None` while they are not.
    pub fn bars(&self) -> Vec<(BarSpec, Option<u64>)> {
        let state = lock(&self.state);
        self.bars.iter().map(|bar| (*bar, state.config.bar_base(bar))).collect()
    }

    /// Serves a guest read of config space, of any length; beyond the 256 bytes that exist it gives zeros.
    pub fn config_read(&self, offset: u16, data: &mut [u8]) {
        let window = lock(&self.state).config.window_access(offset, data.len());
        if let Some(access) = window.filter(|access| self.is_inside(access)) {
            let mut bytes = access.data;
            // Not with config space locked: the device may take its time.
            self.read(access.bar, access.offset, &mut bytes[..access.length]);
            lock(&self.state).config.set_window_data(&bytes[..access.length]);
        }
        lock(&self.state).config.read(offset, data);
    }

    /// Serves a guest write of config space and does what it asks for. Returns whether a BAR moved, in which case
    /// whoever routes memory accesses must ask [`Function::bars`] again.
    pub fn config_write(&self, offset: u16, data: &[u8]) -> bool {
        let mut state = lock(&self.state);
        state.config.write(offset, data);
        let moved = if state.config.take_reset_request() {
            self.reset_locked(&mut state)
        } else {
            self.follow(&mut state)
        };
        let window = state.config.window_access(offset, data.len());
        drop(state);
        if let Some(access) = window.filter(|access| self.is_inside(access)) {
            self.write(access.bar, access.offset, &access.data[..access.length]);
        }
        moved
    }

    /// Whether the guest's access by way of the window lies in a BAR.
    fn is_inside(&self, access: &WindowAccess) -> bool {
        let end = access.offset + access.length as u64;
        self.bars.iter().any(|bar| bar.index == access.bar && end <= bar.size)
    }

    /// Serves a guest read of a BAR that starts inside it.
    pub fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match &self.msix {
            Some(msix) if msix.contains(bar, offset) => msix.read(offset, data),
            _ => self.device.read(bar, offset, data),
        }
    }

    /// Serves a guest write to a BAR that starts inside it.
    pub fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        match &self.msix {
            Some(msix) if msix.contains(bar, offset) => msix.write(offset, data),
            _ => self.device.write(bar, offset, data),
        }
    }

    /// What is saved of the function itself.
    pub(crate) fn state(&self) -> FunctionState {
        let state = lock(&self.state);
        FunctionState {
            config: state.config.bytes().to_vec(),
            vectors: self.msix.as_ref().map(|msix| msix.state()).unwrap_or_default(),
        }
    }

    /// Takes over a saved state, and tells everyone who follows config space.
    pub(crate) fn restore(&self, saved: FunctionState) -> Result<(), RestoreError> {
        let mut state = lock(&self.state);
        if !state.config.restore(&saved.config) {
            return Err(RestoreError::invalid::<FunctionState>("it is of another function"));
        }
        self.follow(&mut state);
        let restored =
            self.msix.as_ref().map_or(saved.vectors.is_empty(), |msix| msix.restore(&saved.vectors));
        if restored { Ok(()) } else { Err(RestoreError::invalid::<FunctionState>("number of vectors")) }
    }

    /// Signals every interrupt that the driver has unmasked: one may have been on its way when the state was saved, and
    /// one too many is none to any driver.
    pub(crate) fn signal_all(&self) {
        if let Some(msix) = &self.msix {
            msix.signal_unmasked();
        }
    }

    /// Power-on state of device and config space, except that BARs hold the addresses firmware gave them.
    pub(crate) fn reset(&self) {
        let mut state = lock(&self.state);
        self.reset_locked(&mut state);
        self.program_bars(&mut state);
    }

    /// Gives the BARs their addresses, in the order of [`Device::bars`].
    pub(crate) fn assign(&self, bases: Vec<u64>) {
        let mut state = lock(&self.state);
        state.assigned = bases;
        self.program_bars(&mut state);
    }

    pub(crate) fn set_multifunction(&self) {
        lock(&self.state).config.set_multifunction();
    }

    fn program_bars(&self, state: &mut State) {
        for (bar, base) in self.bars.iter().zip(&state.assigned) {
            state.config.set_bar(bar, *base);
        }
    }

    fn reset_locked(&self, state: &mut State) -> bool {
        state.config.reset();
        let moved = self.follow(state);
        self.device.reset();
        if let Some(msix) = &self.msix {
            msix.reset();
        }
        moved
    }

    /// Tells listener, MSI-X and device what config space says now. Returns whether a BAR moved.
    fn follow(&self, state: &mut State) -> bool {
        let State { config, told, .. } = state;
        let mut moved = false;
        for (bar, told) in self.bars.iter().zip(&mut told.bases) {
            let base = config.bar_base(bar);
            if *told != base {
                *told = base;
                moved = true;
                if let Some(listener) = &self.listener {
                    listener.bar_moved(bar.index, base);
                }
            }
        }
        if let Some(msix) = &self.msix {
            let (enabled, masked) = config.msix_control();
            msix.set_control(enabled, masked);
        }
        let bus_master = config.is_bus_master();
        if told.bus_master != bus_master {
            told.bus_master = bus_master;
            if let Some(msix) = &self.msix {
                msix.set_bus_master(bus_master);
            }
            self.device.set_bus_master(bus_master);
        }
        moved
    }
}

fn check_bars(bars: &[BarSpec]) -> Result<(), FunctionError> {
    let mut used = [false; BARS as usize];
    for bar in bars {
        let max = match bar.kind {
            BarKind::Memory32 => MAX_BAR32,
            BarKind::Memory64 => 1 << 63,
        };
        let first = usize::from(bar.index);
        let registers = used.get_mut(first..first + bar.kind.registers()).ok_or(FunctionError::Bar(*bar))?;
        let sized = bar.size.is_power_of_two() && (MIN_BAR..=max).contains(&bar.size);
        if !sized || registers.contains(&true) {
            return Err(FunctionError::Bar(*bar));
        }
        registers.fill(true);
    }
    Ok(())
}

fn check_msix(spec: &MsixSpec, bars: &[BarSpec]) -> Result<(), FunctionError> {
    let (table, pba) = (u64::from(spec.table_offset), u64::from(spec.pba_offset));
    let (table_end, pba_end) = (table + spec.table_bytes(), pba + spec.pba_bytes());
    let fits = bars.iter().any(|bar| bar.index == spec.bar && table_end <= bar.size && pba_end <= bar.size);
    let aligned = table.is_multiple_of(8) && pba.is_multiple_of(8);
    let disjoint = table_end <= pba || pba_end <= table;
    let counted = (1..=MAX_VECTORS).contains(&spec.vectors);
    if fits && aligned && disjoint && counted { Ok(()) } else { Err(FunctionError::Msix(*spec)) }
}

impl BarKind {
    /// BAR registers it takes.
    pub(crate) const fn registers(self) -> usize {
        match self {
            Self::Memory32 => 1,
            Self::Memory64 => 2,
        }
    }
}

#[cfg(test)]
#[path = "function_tests.rs"]
mod tests;
