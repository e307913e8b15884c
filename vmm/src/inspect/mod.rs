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
use vmm_api::{
    Answer, ApiError, Done, ErrorKind, Migrate, MigrationPhase, RdmaReport, RdmaShow, Request, Snapshot,
    VmInfo,
};
use vmxnet3::Vmxnet3;

use crate::api::Service;
use crate::config::VmConfig;
use crate::error::Error;
use crate::machine::{Event, Events};
use crate::migrate::{Board, Migration, Origin};
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
    /// How moving it is going, or went.
    board: Arc<Board>,
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

    /// Begins to move it.
    fn migrate(self: Arc<Self>, how: &Migrate, board: Arc<Board>) -> Result<Migration, Error>;
}

impl Control for Origin {
    fn pause(&self) -> Result<(), Error> {
        self.controls().pause()
    }

    fn resume(&self) {
        self.controls().resume();
    }

    fn is_paused(&self) -> bool {
        self.controls().is_paused()
    }

    fn save(&self, directory: &Path, about: About) -> Result<(), Error> {
        snapshot::save(self.controls(), directory, about)
    }

    fn migrate(self: Arc<Self>, how: &Migrate, board: Arc<Board>) -> Result<Migration, Error> {
        Migration::begin(self, how, board)
    }
}

/// A machine that runs, or is paused.
struct Live {
    slots: Vec<SlotView>,
    control: Arc<dyn Control>,
    migration: Option<Migration>,
}

impl Live {
    /// Refuses what would come in the way of a migration.
    fn check_stays(&self) -> Result<(), ApiError> {
        if self.migration.as_ref().is_some_and(Migration::is_live) {
            let message =
                "The machine is being moved: wait for that, or cancel it with `verbena migrate --cancel`";
            return Err(ApiError::new(ErrorKind::Failed, message));
        }
        Ok(())
    }
}

impl Inspector {
    /// An inspector of machines made from `config`.
    pub fn new(config: &VmConfig, events: Events) -> Self {
        Self {
            cpus: config.cpus,
            memory_bytes: config.memory.size.0,
            events,
            board: Arc::default(),
            live: Mutex::new(None),
        }
    }

    /// How moving the machine is going.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// A machine with these slots has started.
    pub fn enter(&self, slots: Vec<SlotView>, control: Arc<dyn Control>) {
        *self.lock() = Some(Live { slots, control, migration: None });
    }

    /// The machine is about to go. On return nothing of it is held here, and nobody moves it.
    pub fn leave(&self) {
        let live = self.lock().take();
        drop(live);
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

    /// Begins to move the machine.
    fn migrate(&self, live: &mut Live, how: &Migrate) -> Result<Answer, ApiError> {
        // An earlier one that has failed.
        live.migration = None;
        let begun = Arc::clone(&live.control).migrate(how, Arc::clone(&self.board)).map_err(failed)?;
        live.migration = Some(begun);
        Ok(Answer::Migrate(Done {}))
    }

    /// Answers what is asked about a migration, whether the machine is still here, already here, or neither. `None` for
    /// other requests.
    fn about_migration(&self, request: &Request) -> Option<Result<Answer, ApiError>> {
        use MigrationPhase as P;
        let phase = || self.board.status().phase;
        let refuse = |why| Some(Err(ApiError::new(ErrorKind::Failed, why)));
        Some(Ok(match request {
            Request::MigrationStatus {} => Answer::MigrationStatus(self.board.status()),
            Request::MigrateCancel {} if matches!(phase(), P::Connecting | P::Copying | P::Stopped) => {
                self.board.cancel();
                Answer::MigrateCancel(Done {})
            }
            Request::MigrateCancel {} => return refuse("There is no migration that could be cancelled"),
            Request::MigrateResolve(wanted) if phase() == P::Undecided => {
                self.board.resolve(wanted.side);
                Answer::MigrateResolve(Done {})
            }
            Request::MigrateResolve(_) => return refuse("There is nothing to decide"),
            _ => return None,
        }))
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
        if let Some(answer) = self.about_migration(request) {
            return answer;
        }
        let mut live = self.lock();
        let Some(live) = &mut *live else {
            let message = "The machine is being started or on its way out: try again";
            return Err(ApiError::new(ErrorKind::NotRunning, message));
        };
        if !matches!(request, Request::VmInfo {} | Request::RdmaShow(_)) {
            live.check_stays()?;
        }
        match request {
            Request::VmInfo {} => Ok(Answer::VmInfo(self.info(&live.slots))),
            Request::RdmaShow(show) => report(&live.slots, show).map(Answer::RdmaShow),
            Request::Pause {} => live.control.pause().map(|()| Answer::Pause(Done {})).map_err(failed),
            Request::Resume {} => {
                live.control.resume();
                Ok(Answer::Resume(Done {}))
            }
            Request::Snapshot(wanted) => self.snapshot(live, wanted),
            Request::Migrate(how) => self.migrate(live, how),
            Request::MigrationStatus {} | Request::MigrateCancel {} | Request::MigrateResolve(_) => {
                Err(ApiError::new(ErrorKind::Internal, "It was answered before"))
            }
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
