//! A running machine in the hands of its operator: pausing, resuming, saving.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_model::save::{Record, Records, RestoreError, SaveError, Saved};
use pci::Root;
use serde::{Deserialize, Serialize};

use super::gate::Gate;
use super::power::PowerManagement;
use super::state::{ChipState, CpuState};
use crate::error::{Error, Result};
use crate::io::{IoThread, Parked};
use crate::kvm::{Kicker, VmWithRam};
use crate::serial::Uart;

/// What a saved machine must have in common with the one it is restored into, and no device knows.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) cpus: u8,
    pub(super) memory: u64,
    /// Every CPUID leaf of the first CPU.
    pub(super) cpuid: Vec<u8>,
}

impl Saved for Shape {
    const KIND: &'static str = "machine";
    const VERSION: u16 = 1;
}

/// The parts of a machine whose state makes up the machine's.
pub(super) struct Parts {
    pub(super) shape: Shape,
    pub(super) vm: Arc<VmWithRam>,
    pub(super) root: Arc<Root>,
    pub(super) power: Arc<PowerManagement>,
    pub(super) uarts: Vec<Arc<Uart>>,
}

impl Parts {
    fn save(&self, gate: &Gate) -> Result<Records> {
        let mut records = Records::default();
        records.put("machine", Record::new(&self.shape).map_err(not_saved)?);
        let cpus = gate.with_states(|index, state| {
            Ok((format!("cpu {index}"), Record::new::<CpuState>(state).map_err(not_saved)?))
        })?;
        cpus.into_iter().for_each(|(name, record)| records.put(name, record));
        let chips = ChipState::read(self.vm.fd())?;
        records.put("chips", Record::new(&chips).map_err(not_saved)?);
        records.put("power", self.power.save().map_err(not_saved)?);
        for (index, uart) in self.uarts.iter().enumerate() {
            records.put(format!("serial {index}"), uart.save().map_err(not_saved)?);
        }
        self.root.save(&mut records).map_err(not_saved)?;
        Ok(records)
    }

    /// Restores everything but the CPUs, which are returned.
    pub(super) fn restore(&self, records: &mut Records) -> Result<Vec<CpuState>> {
        let shape: Shape = take(records, "machine")?;
        if (shape.cpus, shape.memory) != (self.shape.cpus, self.shape.memory) {
            return Err(Error::Usage(format!(
                "The saved machine has {} CPUs and {} bytes of memory: give --cpus and --memory as it had them",
                shape.cpus, shape.memory
            )));
        }
        if shape.cpuid != self.shape.cpuid {
            return Err(Error::Failure(
                "This host's processor, or what KVM makes of it, is another than where the machine was saved"
                    .into(),
            ));
        }
        let cpus =
            (0..shape.cpus).map(|index| take(records, &format!("cpu {index}"))).collect::<Result<_>>()?;
        take::<ChipState>(records, "chips")?.write(self.vm.fd())?;
        self.power.restore(&records.take("power").map_err(not_restored)?).map_err(not_restored)?;
        for (index, uart) in self.uarts.iter().enumerate() {
            let record = records.take(&format!("serial {index}")).map_err(not_restored)?;
            uart.restore(&record).map_err(not_restored)?;
        }
        Ok(cpus)
    }
}

/// Takes the record of one part out of those of a machine.
fn take<S: Saved>(records: &mut Records, name: &str) -> Result<S> {
    records.take(name).and_then(|record| record.open()).map_err(not_restored)
}

pub(super) fn not_saved(error: SaveError) -> Error {
    Error::Failure(format!("The machine cannot be saved: {error}"))
}

pub(super) fn not_restored(error: RestoreError) -> Error {
    Error::Failure(format!("The machine cannot be restored: {error}"))
}

/// A running machine, for those who stop it for a while.
pub struct Controls {
    pub(super) gate: Arc<Gate>,
    pub(super) kickers: Vec<Arc<Kicker>>,
    pub(super) io_threads: Vec<IoThread>,
    pub(super) parts: Parts,
    /// Device threads that wait, while the machine is paused.
    pub(super) parked: Mutex<Option<Vec<Parked>>>,
    /// Whether another process may be running the machine.
    pub(super) given_away: AtomicBool,
}

impl Controls {
    /// Stops CPUs and devices. On return nothing of the machine moves. A machine that is paused stays so.
    ///
    /// # Errors
    ///
    /// When the guest has just ended, or a device thread has.
    pub fn pause(&self) -> Result<()> {
        let mut parked = self.lock();
        if parked.is_some() {
            return Ok(());
        }
        self.gate.pause();
        self.kickers.iter().for_each(|kicker| kicker.kick());
        let stopped = self
            .gate
            .wait_for_all()
            .and_then(|()| self.io_threads.iter().map(IoThread::park).collect::<Result<_>>());
        match stopped {
            Ok(threads) => *parked = Some(threads),
            Err(error) => {
                self.gate.open();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Lets a paused machine go on, unless it was given away.
    pub fn resume(&self) {
        let mut parked = self.lock();
        if !self.given_away.load(Ordering::Acquire) {
            *parked = None;
            self.gate.open();
        }
    }

    /// Gives a paused machine away: it stays paused, whoever wants it to go on.
    pub fn give_away(&self) {
        let _parked = self.lock();
        self.given_away.store(true, Ordering::Release);
    }

    /// Takes a machine back that was given away, and lets it go on.
    pub fn take_back(&self) {
        self.given_away.store(false, Ordering::Release);
        self.resume();
    }

    /// Lets no device work until what is returned is dropped; CPUs go on.
    ///
    /// # Errors
    ///
    /// When a device thread has ended.
    pub fn hold_devices(&self) -> Result<Vec<Parked>> {
        self.io_threads.iter().map(IoThread::park).collect()
    }

    /// Ends all device threads. They do nothing more, even if they were parked in the middle of something.
    pub(super) fn stop_devices(&self) {
        self.io_threads.iter().for_each(IoThread::stop);
        *self.lock() = None;
    }

    /// Whether the machine is paused.
    pub fn is_paused(&self) -> bool {
        self.lock().is_some()
    }

    /// Saves everything but memory. The machine must be paused.
    ///
    /// # Errors
    ///
    /// When a device cannot be saved, or the machine is not paused.
    pub fn save(&self) -> Result<Records> {
        let parked = self.lock();
        if parked.is_none() {
            return Err(Error::Failure("The machine is not paused".to_owned()));
        }
        self.parts.save(&self.gate)
    }

    /// The machine's memory.
    pub fn vm(&self) -> &VmWithRam {
        &self.parts.vm
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Parked>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
