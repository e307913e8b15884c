//! What a migration and those who ask about it have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmm_api::{MigrationPhase, MigrationStatus, Side};

/// How a migration is going, and what the operator wants of it.
#[derive(Default)]
pub struct Board {
    status: Mutex<MigrationStatus>,
    cancel: AtomicBool,
    quit: AtomicBool,
    resolve: Mutex<Option<Side>>,
    told: AtomicBool,
}

impl Board {
    /// How it is going, or went.
    pub fn status(&self) -> MigrationStatus {
        let status = lock(&self.status).clone();
        if status.phase == MigrationPhase::Completed {
            self.told.store(true, Ordering::Release);
        }
        status
    }

    /// Whether somebody has heard that the machine is gone.
    pub fn was_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// The operator wants no migration any more.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }

    /// The process ends, whatever is undecided.
    pub fn quit(&self) {
        self.quit.store(true, Ordering::Release);
    }

    /// The operator decides who has the machine.
    pub fn resolve(&self, side: Side) {
        *lock(&self.resolve) = Some(side);
    }

    /// A new migration begins.
    pub(super) fn begin(&self, status: MigrationStatus) {
        *lock(&self.status) = status;
        *lock(&self.resolve) = None;
        self.cancel.store(false, Ordering::Release);
        self.quit.store(false, Ordering::Release);
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut MigrationStatus)) {
        change(&mut lock(&self.status));
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire) || self.has_quit()
    }

    pub(super) fn has_quit(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }

    /// What the operator has decided.
    pub(super) fn resolved(&self) -> Option<Side> {
        *lock(&self.resolve)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
