//! The gate that vCPU threads pass on their way into the guest: open, closed for a while, or closed for good.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::state::CpuState;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Paused,
    Stopped,
}

/// What a CPU's thread does.
enum Cpu {
    /// It is in the guest, or on its way out of it.
    Running,
    /// It waits at the gate, and left its state there.
    Waiting(Result<Box<CpuState>>),
    /// It has ended.
    Gone,
}

struct Gates {
    phase: Phase,
    cpus: Vec<Cpu>,
}

/// The gate of a machine.
pub(super) struct Gate {
    /// Whether threads have to stop; read on every way in.
    closed: AtomicBool,
    gates: Mutex<Gates>,
    changed: Condvar,
}

impl Gate {
    /// A gate for so many CPUs, open or closed for a while.
    pub(super) fn new(cpus: usize, open: bool) -> Self {
        let cpus = (0..cpus).map(|_| Cpu::Running).collect();
        let phase = if open { Phase::Open } else { Phase::Paused };
        let gates = Mutex::new(Gates { phase, cpus });
        Self { closed: AtomicBool::new(!open), gates, changed: Condvar::new() }
    }

    /// Whether a thread should not enter the guest.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the gate for a while. CPUs must be kicked.
    pub(super) fn pause(&self) {
        self.turn(Phase::Paused);
    }

    /// Opens the gate again.
    pub(super) fn open(&self) {
        self.turn(Phase::Open);
    }

    /// Closes the gate for good. CPUs must be kicked.
    pub(super) fn stop(&self) {
        self.turn(Phase::Stopped);
    }

    /// Waits until all CPUs wait at the gate.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        let running = |gates: &mut Gates| {
            !gates.cpus.iter().any(|cpu| matches!(cpu, Cpu::Gone))
                && gates.cpus.iter().any(|cpu| matches!(cpu, Cpu::Running))
        };
        let gates = self.changed.wait_while(self.lock(), running).unwrap_or_else(PoisonError::into_inner);
        if gates.cpus.iter().any(|cpu| matches!(cpu, Cpu::Gone)) {
            return Err(Error::Failure("The guest has just ended".to_owned()));
        }
        Ok(())
    }

    /// The states that waiting CPUs have left, in their order.
    pub(super) fn with_states<T>(&self, mut f: impl FnMut(usize, &CpuState) -> Result<T>) -> Result<Vec<T>> {
        let gates = self.lock();
        let state = |(index, cpu): (usize, &Cpu)| match cpu {
            Cpu::Waiting(Ok(state)) => f(index, state),
            Cpu::Waiting(Err(error)) => Err(Error::Failure(error.chain())),
            Cpu::Running | Cpu::Gone => Err(Error::Failure(format!("CPU {index} is not paused"))),
        };
        gates.cpus.iter().enumerate().map(state).collect()
    }

    /// A CPU leaves its state and waits. Returns whether it may go on.
    pub(super) fn wait(&self, index: usize, state: impl FnOnce() -> Result<CpuState>) -> bool {
        let mut gates = self.lock();
        if gates.phase == Phase::Paused {
            gates.set(index, Cpu::Waiting(state().map(Box::new)));
            self.changed.notify_all();
            gates = self
                .changed
                .wait_while(gates, |gates| gates.phase == Phase::Paused)
                .unwrap_or_else(PoisonError::into_inner);
            gates.set(index, Cpu::Running);
        }
        gates.phase == Phase::Open
    }

    /// A CPU's thread ends.
    pub(super) fn leave(&self, index: usize) {
        self.lock().set(index, Cpu::Gone);
        self.changed.notify_all();
    }

    fn turn(&self, phase: Phase) {
        let mut gates = self.lock();
        if gates.phase != Phase::Stopped {
            gates.phase = phase;
        }
        self.closed.store(gates.phase != Phase::Open, Ordering::Release);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gates {
    fn set(&mut self, index: usize, cpu: Cpu) {
        if let Some(slot) = self.cpus.get_mut(index) {
            *slot = cpu;
        }
    }
}
