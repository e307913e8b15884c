//! A running machine as its operator sees it: answers to the commands of the API socket. Those that stop or save the machine
//! take as long as that takes.
//!
//! Looking only reads: devices are asked for a copy of what they are, in bounded pieces, and put into words without
//! any of their locks.

mod advice;
mod nic;
mod rdma;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pci::Bdf;
use pvrdma::Pvrdma;
use verbs::{QpState, QpType};
use vmm_api::{Answer, ApiError, Done, ErrorKind, RdmaReport, RdmaShow, Request, Snapshot, VmInfo};
use vmxnet3::Vmxnet3;

use crate::api::Service;
use crate::config::VmConfig;
use crate::error::Error;
use crate::machine::{Controls, Event, Events};
use crate::snapshot::{self, About};

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
    events: Events,
    /// The machine that runs. Held while a request is answered, so that a machine does not go away meanwhile.
    live: Mutex<Option<Live>>,
}

/// What its operator can do to a machine.
pub trait Control: Send + Sync {
    /// Stops CPUs and devices; nothing happens if they are stopped.
    fn pause(&self) -> Result<(), Error>;

    /// Lets them go on.
    fn resume(&self);

    /// Whether they are stopped.
    fn is_paused(&self) -> bool;

    /// Saves the machine, which is paused.
    fn save(&self, directory: &Path, about: About) -> Result<(), Error>;
}

impl Control for Controls {
    fn pause(&self) -> Result<(), Error> {
        self.pause()
    }

    fn resume(&self) {
        self.resume();
    }

    fn is_paused(&self) -> bool {
        self.is_paused()
    }

    fn save(&self, directory: &Path, about: About) -> Result<(), Error> {
        snapshot::save(self, directory, about)
    }
}

/// A machine that runs, or is paused.
struct Live {
    slots: Vec<SlotView>,
    control: Arc<dyn Control>,
}

impl Inspector {
    /// An inspector of machines made from `config`.
    pub fn new(config: &VmConfig, events: Events) -> Self {
        Self { cpus: config.cpus, memory_bytes: config.memory.size.0, events, live: Mutex::new(None) }
    }

    /// A machine with these slots has started.
    pub fn enter(&self, slots: Vec<SlotView>, control: Arc<dyn Control>) {
        *self.lock() = Some(Live { slots, control });
    }

    /// The machine is about to go. On return nothing of it is held here.
    pub fn leave(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves the machine, which goes on as it was, or ends.
    fn snapshot(&self, live: &Live, wanted: &Snapshot) -> Result<Answer, ApiError> {
        let was_paused = live.control.is_paused();
        live.control.pause().map_err(failed)?;
        let connections =
            live.slots.iter().filter_map(|slot| slot.rdma.as_ref()).map(|rdma| connections(rdma));
        let about = About { origin_goes_on: !wanted.stop, connections: connections.sum() };
        let saved = live.control.save(&wanted.to, about);
        match (&saved, wanted.stop) {
            (Ok(()), true) => self.events.send(Event::Saved),
            _ if was_paused => {}
            _ => live.control.resume(),
        }
        saved.map(|()| Answer::Snapshot(Done {})).map_err(failed)
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
        let live = self.lock();
        let Some(live) = &*live else {
            let message = "The machine is being started or on its way out: try again";
            return Err(ApiError::new(ErrorKind::NotRunning, message));
        };
        match request {
            Request::VmInfo {} => Ok(Answer::VmInfo(self.info(&live.slots))),
            Request::RdmaShow(show) => report(&live.slots, show).map(Answer::RdmaShow),
            Request::Pause {} => live.control.pause().map(|()| Answer::Pause(Done {})).map_err(failed),
            Request::Resume {} => {
                live.control.resume();
                Ok(Answer::Resume(Done {}))
            }
            Request::Snapshot(wanted) => self.snapshot(live, wanted),
        }
    }
}

fn failed(error: Error) -> ApiError {
    ApiError::new(ErrorKind::Failed, error.chain())
}

/// Reliable connections that are up.
fn connections(rdma: &Pvrdma) -> u64 {
    let up = |qp: &&pvrdma::QueuePair| {
        let up = matches!(qp.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        up && qp.qp_type == QpType::Rc
    };
    rdma.snapshot(0, usize::MAX).queue_pairs.iter().filter(up).count() as u64
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
