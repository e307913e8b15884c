//! The host bridge at 00:00.0: an identity that guests expect, and nothing behind it.

use std::sync::Arc;

use device_model::save::{Record, RestoreError, SaveError};

use crate::config::ConfigSpace;
use crate::device::{BarSpec, Device, Identity, MsixSpec};
use crate::function::Function;
use crate::save::Stateless;

/// The generic PCI Express host bridge that virtual machines commonly have; no driver binds it.
const IDENTITY: Identity = Identity {
    vendor: 0x1b36,
    device: 0x0008,
    class: [0x06, 0x00, 0x00],
    revision: 0,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

struct HostBridge;

impl Device for HostBridge {
    fn identity(&self) -> Identity {
        IDENTITY
    }

    fn bars(&self) -> Vec<BarSpec> {
        Vec::new()
    }

    fn msix(&self) -> Option<MsixSpec> {
        None
    }

    fn read(&self, _: u8, _: u64, _: &mut [u8]) {}

    fn write(&self, _: u8, _: u64, _: &[u8]) {}

    fn set_bus_master(&self, _: bool) {}

    fn reset(&self) {}

    fn save(&self) -> Result<Record, SaveError> {
        Record::new(&Stateless)
    }

    fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        record.open().map(|Stateless| ())
    }
}

/// A host bridge, without capabilities.
pub(crate) fn host_bridge() -> Function {
    Function::with_config(Arc::new(HostBridge), None, Vec::new(), ConfigSpace::new(&IDENTITY))
}
