//! The PCI root: bus 0, its functions, and the three ways a guest reaches them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;

use crate::assign::{AssignError, Windows, assign};
use crate::bdf::Bdf;
use crate::bridge::host_bridge;
use crate::decode::{DecodeTable, Hit};
use crate::function::Function;
use crate::lock;

/// First of the four ports of the config address register.
pub const CONFIG_ADDRESS: u16 = 0xcf8;
/// First of the four ports of the config data register.
pub const CONFIG_DATA: u16 = 0xcfc;
/// Bytes of the enhanced configuration access mechanism (ECAM) window of the one bus there is.
pub const ECAM_SIZE: u64 = 1 << 20;

/// Enable bit of the config address register.
const ADDRESS_ENABLE: u32 = 1 << 31;
/// Bits of the config address register that can be set: enable, bus, device, function, dword register.
const ADDRESS_BITS: u32 = ADDRESS_ENABLE | 0x00ff_fffc;
/// Functions of the bus.
const FUNCTIONS: usize = Bdf::SLOTS as usize * Bdf::FUNCTIONS as usize;

/// Why a root cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// Two functions at one address, or one at the host bridge's.
    #[error("PCI address {0} is taken: choose another slot")]
    Taken(Bdf),
    /// A slot without function 0, which guests would not look into.
    #[error("PCI function {0} has no function 0 beside it: add one")]
    NoFunctionZero(Bdf),
    /// The BARs do not fit their window.
    #[error(transparent)]
    Assign(#[from] AssignError),
}

/// Collects the functions of a [`Root`].
pub struct RootBuilder {
    windows: Windows,
    functions: Vec<Option<Arc<Function>>>,
}

impl RootBuilder {
    /// A bus with a host bridge at [`Bdf::HOST_BRIDGE`] and nothing else.
    pub fn new(windows: Windows) -> Self {
        let mut functions = vec![None; FUNCTIONS];
        functions[Bdf::HOST_BRIDGE.index()] = Some(Arc::new(host_bridge()));
        Self { windows, functions }
    }

    /// The first slot without functions; `None` when the bus is full.
    pub fn free_slot(&self) -> Option<u8> {
        let slots = self.functions.chunks_exact(usize::from(Bdf::FUNCTIONS));
        (0..).zip(slots).find(|(_, slot)| slot.iter().all(Option::is_none)).map(|(number, _)| number)
    }

    /// Puts `function` at `bdf`.
    ///
    /// # Errors
    ///
    /// [`RootError::Taken`] when there is one already.
    pub fn plug(&mut self, bdf: Bdf, function: Arc<Function>) -> Result<(), RootError> {
        match &mut self.functions[bdf.index()] {
            Some(_) => Err(RootError::Taken(bdf)),
            free => {
                *free = Some(function);
                Ok(())
            }
        }
    }

    /// Marks multifunction slots, assigns BAR addresses and freezes the bus.
    ///
    /// # Errors
    ///
    /// [`RootError::NoFunctionZero`] and [`RootError::Assign`].
    pub fn build(self) -> Result<Root, RootError> {
        self.mark_multifunction()?;
        self.assign_bars()?;
        Ok(Root {
            functions: self.functions,
            address: AtomicU32::new(0),
            decode: ArcSwap::default(),
            rebuild: Mutex::new(()),
        })
    }

    fn mark_multifunction(&self) -> Result<(), RootError> {
        for (bdf, _) in present(&self.functions).filter(|(bdf, _)| bdf.function() != 0) {
            let zero = self.functions[bdf.function_zero().index()].as_ref();
            zero.ok_or(RootError::NoFunctionZero(bdf))?.set_multifunction();
        }
        Ok(())
    }

    fn assign_bars(&self) -> Result<(), RootError> {
        let bars: Vec<Vec<_>> = present(&self.functions)
            .map(|(_, function)| function.bars().into_iter().map(|(bar, _)| bar).collect())
            .collect();
        let mut bases = assign(&bars.concat(), &self.windows)?.into_iter();
        for ((_, function), bars) in present(&self.functions).zip(&bars) {
            function.assign(bases.by_ref().take(bars.len()).collect());
        }
        Ok(())
    }
}

/// Bus 0 and the functions on it.
///
/// All methods may be called by several vCPU threads at once. A memory access takes no lock: it reads a snapshot of the
/// decoded BARs, which a config write that moves one replaces before it returns.
pub struct Root {
    functions: Vec<Option<Arc<Function>>>,
    /// The config address register.
    address: AtomicU32,
    decode: ArcSwap<DecodeTable>,
    /// Orders rebuilds of `decode`, so that the last one sees every move.
    rebuild: Mutex<()>,
}

impl Root {
    /// All functions in the order of their addresses, the host bridge first.
    pub fn functions(&self) -> impl Iterator<Item = (Bdf, &Arc<Function>)> {
        present(&self.functions)
    }

    /// Serves a guest read of ports [`CONFIG_ADDRESS`] to `CONFIG_DATA + 3`; `data` has 1, 2 or 4 bytes.
    pub fn port_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match self.config_port(port) {
            Some((bdf, register)) => self.config_read(bdf, register, data),
            None if port == CONFIG_ADDRESS && data.len() == 4 => {
                data.copy_from_slice(&self.address.load(Ordering::Relaxed).to_le_bytes());
            }
            None => {}
        }
    }

    /// Serves a guest write of the same ports. The address register takes 4-byte writes only; port 0xcf9 is not here.
    pub fn port_write(&self, port: u16, data: &[u8]) {
        match self.config_port(port) {
            Some((bdf, register)) => self.config_write(bdf, register, data),
            None if port == CONFIG_ADDRESS => {
                if let Ok(bytes) = data.try_into() {
                    self.address.store(u32::from_le_bytes(bytes) & ADDRESS_BITS, Ordering::Relaxed);
                }
            }
            None => {}
        }
    }

    /// Serves a guest read at `offset` in the ECAM window.
    pub fn ecam_read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((bdf, register)) = ecam_register(offset) {
            self.config_read(bdf, register, data);
        }
    }

    /// Serves a guest write at `offset` in the ECAM window.
    pub fn ecam_write(&self, offset: u64, data: &[u8]) {
        if let Some((bdf, register)) = ecam_register(offset) {
            self.config_write(bdf, register, data);
        }
    }

    /// Serves a guest read of device memory. `false`, and ones in `data`, when no BAR is decoded at `address`.
    pub fn memory_read(&self, address: u64, data: &mut [u8]) -> bool {
        data.fill(0xff);
        let table = self.decode.load();
        let Some(Hit { function, bar, offset, room }) = table.find(address) else { return false };
        let length = clamp(data.len(), room);
        function.read(bar, offset, &mut data[..length]);
        true
    }

    /// Serves a guest write of device memory. `false` when no BAR is decoded at `address`.
    pub fn memory_write(&self, address: u64, data: &[u8]) -> bool {
        let table = self.decode.load();
        let Some(Hit { function, bar, offset, room }) = table.find(address) else { return false };
        function.write(bar, offset, &data[..clamp(data.len(), room)]);
        true
    }

    /// Machine reset: every device and config space is as after [`RootBuilder::build`]. vCPUs must be stopped.
    pub fn reset(&self) {
        self.address.store(0, Ordering::Relaxed);
        self.functions().for_each(|(_, function)| function.reset());
        self.rebuild_decode();
    }

    pub(crate) fn config_address(&self) -> u32 {
        self.address.load(Ordering::Relaxed)
    }

    pub(crate) fn set_config_address(&self, address: u32) {
        self.address.store(address & ADDRESS_BITS, Ordering::Relaxed);
    }

    fn config_port(&self, port: u16) -> Option<(Bdf, u16)> {
        let byte = port.checked_sub(CONFIG_DATA).filter(|byte| *byte < 4)?;
        let address = self.address.load(Ordering::Relaxed);
        let [register, devfn, bus, _] = address.to_le_bytes();
        (address & ADDRESS_ENABLE != 0 && bus == 0)
            .then_some((Bdf::from_devfn(devfn), u16::from(register) + byte))
    }

    fn config_read(&self, bdf: Bdf, register: u16, data: &mut [u8]) {
        if let Some(function) = &self.functions[bdf.index()] {
            function.config_read(register, data);
        }
    }

    fn config_write(&self, bdf: Bdf, register: u16, data: &[u8]) {
        if let Some(function) = &self.functions[bdf.index()]
            && function.config_write(register, data)
        {
            self.rebuild_decode();
        }
    }

    pub(crate) fn rebuild_decode(&self) {
        let _ordered = lock(&self.rebuild);
        self.decode.store(Arc::new(DecodeTable::new(self.functions().map(|(_, function)| function))));
    }
}

fn present(functions: &[Option<Arc<Function>>]) -> impl Iterator<Item = (Bdf, &Arc<Function>)> {
    (0..=u8::MAX)
        .zip(functions)
        .filter_map(|(devfn, function)| Some((Bdf::from_devfn(devfn), function.as_ref()?)))
}

fn ecam_register(offset: u64) -> Option<(Bdf, u16)> {
    let [register, high, devfn_high, 0, 0, 0, 0, 0] = offset.to_le_bytes() else { return None };
    let devfn = devfn_high << 4 | high >> 4;
    (offset < ECAM_SIZE).then(|| (Bdf::from_devfn(devfn), u16::from_le_bytes([register, high & 0xf])))
}

fn clamp(length: usize, room: u64) -> usize {
    usize::try_from(room).map_or(length, |room| length.min(room))
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
