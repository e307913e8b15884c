//! The PCI function's view of the device.

use device_model::save::{Record, RestoreError, SaveError};
use pci::{BarKind, BarSpec, Device, Identity, MsixSpec};

use crate::device::Vmxnet3;
use crate::spec::regs::{BAR_CONTROL, BAR_DATA, BAR_MSIX, BAR_SIZE, ControlRegister, DataRegister};
use crate::spec::{MAX_VECTORS, PCI_DEVICE, PCI_REVISION, PCI_VENDOR};

/// Network controller, Ethernet.
const CLASS: [u8; 3] = [2, 0, 0];

/// Where the interrupt table is: needed before the device, which is made with its interrupts.
pub const MSIX: MsixSpec =
    MsixSpec { vectors: MAX_VECTORS as u16, bar: BAR_MSIX, table_offset: 0, pba_offset: 0x800 };

impl Device for Vmxnet3 {
    fn identity(&self) -> Identity {
        Identity {
            vendor: PCI_VENDOR,
            device: PCI_DEVICE,
            class: CLASS,
            revision: PCI_REVISION,
            subsystem_vendor: PCI_VENDOR,
            subsystem: PCI_DEVICE,
        }
    }

    fn bars(&self) -> Vec<BarSpec> {
        [BAR_DATA, BAR_CONTROL, BAR_MSIX]
            .map(|index| BarSpec { index, size: BAR_SIZE, kind: BarKind::Memory32 })
            .to_vec()
    }

    fn msix(&self) -> Option<MsixSpec> {
        Some(MSIX)
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let Ok(word) = <&mut [u8; 4]>::try_from(data) else { return };
        let value = match bar {
            BAR_DATA => DataRegister::at(offset).map(|register| self.read_data(register)),
            BAR_CONTROL => ControlRegister::at(offset).map(|register| self.read_control(register)),
            _ => None,
        };
        *word = value.unwrap_or(0).to_le_bytes();
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        let Ok(word) = <[u8; 4]>::try_from(data) else { return };
        let value = u32::from_le_bytes(word);
        match bar {
            BAR_DATA => {
                if let Some(register) = DataRegister::at(offset) {
                    self.write_data(register, value);
                }
            }
            BAR_CONTROL => {
                if let Some(register) = ControlRegister::at(offset) {
                    self.write_control(register, value);
                }
            }
            _ => {}
        }
    }

    fn set_bus_master(&self, enabled: bool) {
        self.set_bus_master_flag(enabled);
        if enabled {
            // Packets may have been queued in the meantime.
            self.ring_bell();
        }
    }

    fn reset(&self) {
        self.power_on();
    }

    fn save(&self) -> Result<Record, SaveError> {
        self.save_state()
    }

    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        self.restore_state(record)
    }
}
