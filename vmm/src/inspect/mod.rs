//! A running machine as its operator sees it: answers to the commands of the API socket.
//!
//! Everything here reads. Devices are asked for a copy of what they are, in bounded pieces, and put into words without
//! any of their locks.

mod advice;
mod nic;
mod rdma;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pci::Bdf;
use pvrdma::Pvrdma;
use vmm_api::{Answer, ApiError, ErrorKind, RdmaReport, RdmaShow, Request, VmInfo};
use vmxnet3::Vmxnet3;

use crate::api::Service;
use crate::config::VmConfig;

/// A slot with a network interface, to be looked at.
#[derive(Clone)]
pub struct SlotView {
    /// Its name.
    pub name: String,
    /// Address of function 0.
    pub address: Bdf,
    /// What it is plugged into.
    pub link: String,
    /// Largest IP packet of the link in bytes.
    pub mtu: u16,
    /// Function 0.
    pub nic: Arc<Vmxnet3>,
    /// Function 1.
    pub rdma: Option<Arc<Pvrdma>>,
}

/// Answers what can be asked about a machine, whichever of its lives it is in.
pub struct Inspector {
    cpus: u8,
    memory_bytes: u64,
    /// Slots of the machine that runs. Held while a request is answered, so that a machine does not go away meanwhile.
    slots: Mutex<Option<Vec<SlotView>>>,
}

impl Inspector {
    /// An inspector of machines made from `config`.
    pub fn new(config: &VmConfig) -> Self {
        Self { cpus: config.cpus, memory_bytes: config.memory.size.0, slots: Mutex::new(None) }
    }

    /// A machine with these slots starts.
    pub fn enter(&self, slots: Vec<SlotView>) {
        *self.lock() = Some(slots);
    }

    /// The machine is about to go. On return nothing of it is held here.
    pub fn leave(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<SlotView>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn info(&self, slots: &[SlotView]) -> VmInfo {
        VmInfo {
            monitor_version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            cpus: self.cpus,
            memory_bytes: self.memory_bytes,
            slots: slots.iter().map(nic::describe).collect(),
        }
    }
}

impl Service for Inspector {
    fn serve(&self, request: &Request) -> Result<Answer, ApiError> {
        let slots = self.lock();
        let Some(slots) = &*slots else {
            let message = "The machine is being started or on its way out: try again";
            return Err(ApiError::new(ErrorKind::NotRunning, message));
        };
        match request {
            Request::VmInfo {} => Ok(Answer::VmInfo(self.info(slots))),
            Request::RdmaShow(show) => report(slots, show).map(Answer::RdmaShow),
        }
    }
}

fn report(slots: &[SlotView], show: &RdmaShow) -> Result<RdmaReport, ApiError> {
    let wanted = match &show.slot {
        None => slots,
        Some(name) => std::slice::from_ref(find(slots, name)?),
    };
    let describe = |slot: &SlotView| {
        slot.rdma.as_ref().map(|device| rdma::describe(slot, &rdma::look(device, show.first_qp)))
    };
    Ok(RdmaReport { devices: wanted.iter().filter_map(describe).collect() })
}

/// The slot of a name, which must have an RDMA device.
fn find<'a>(slots: &'a [SlotView], name: &str) -> Result<&'a SlotView, ApiError> {
    let Some(slot) = slots.iter().find(|slot| slot.name == name) else {
        let names: Vec<_> = slots.iter().map(|slot| slot.name.as_str()).collect();
        let there_are = if names.is_empty() { "no slots".to_owned() } else { names.join(", ") };
        let message = format!("There is no slot {name}; there are {there_are}");
        return Err(ApiError::new(ErrorKind::NoSuchSlot, message));
    };
    if slot.rdma.is_none() {
        let message = format!("Slot {name} has no RDMA device: it was started with rdma=off");
        return Err(ApiError::new(ErrorKind::NoRdma, message));
    }
    Ok(slot)
}

#[cfg(test)]
mod tests;
