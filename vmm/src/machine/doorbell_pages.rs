//! Pages of doorbells that are memory.
//!
//! A page that is memory is a memory slot of its own over the function's BAR: while it is there, writes stop no CPU. Taking
//! the slot away makes them doorbells again, which takes KVM up to a millisecond. A page that only rests keeps its slot, and
//! the host page behind it is protected, some 10 microseconds; the next write then makes KVM_RUN fail with EFAULT, and is
//! done by letting the guest try again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use device_model::doorbell::{Bell, DoorbellPage};

use crate::kvm::{GuestPage, PageSlot, VmWithRam};

/// All pages of doorbells of a machine that are memory.
pub struct DoorbellPages {
    vm: Arc<VmWithRam>,
    pages: Mutex<Vec<Weak<Page>>>,
    /// Times a page that rested did so no more.
    wakes: Arc<AtomicU64>,
}

/// A page, whoever knows it.
pub(super) struct Page {
    vm: Arc<VmWithRam>,
    wakes: Arc<AtomicU64>,
    memory: Arc<GuestPage>,
    bell: Arc<dyn Bell>,
    state: Mutex<State>,
}

struct State {
    slot: Option<PageSlot>,
    /// Whether the next write rings the bell.
    resting: bool,
    /// Whether it is one of doorbells again, for good.
    retired: bool,
}

impl DoorbellPages {
    /// None yet.
    pub(super) fn new(vm: Arc<VmWithRam>) -> Arc<Self> {
        Arc::new(Self { vm, pages: Mutex::default(), wakes: Arc::default() })
    }

    /// A page that is memory once it is placed; `None` when the host has none left.
    pub(super) fn add(&self, bell: Arc<dyn Bell>) -> Option<Arc<Page>> {
        let memory = GuestPage::new().ok()?;
        let state = Mutex::new(State { slot: None, resting: false, retired: false });
        let (vm, wakes) = (Arc::clone(&self.vm), Arc::clone(&self.wakes));
        let page = Arc::new(Page { vm, wakes, memory: Arc::new(memory), bell, state });
        let mut pages = self.lock();
        pages.retain(|page| page.strong_count() > 0);
        pages.push(Arc::downgrade(&page));
        Some(page)
    }

    /// Times a page that rested did so no more, for [`DoorbellPages::wake`].
    pub(super) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Acquire)
    }

    /// Wakes all pages that rest, since a CPU has failed to write somewhere. Whether that may have been the reason, and the
    /// CPU can try again: a page rested, or did so after there had been `before` wakes.
    pub(super) fn wake(&self, before: u64) -> bool {
        self.lock().iter().filter_map(Weak::upgrade).for_each(|page| page.wake());
        self.wakes() != before
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Page>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Moves the page to a guest-physical address; without one it is nowhere. Whether it is where it should be.
    pub(super) fn place(&self, address: Option<u64>) -> bool {
        let mut state = self.lock();
        if state.retired || !self.remove(&mut state) {
            return false;
        }
        let Some(address) = address else { return true };
        match self.vm.add_page(address, &self.memory) {
            Ok(slot) => state.slot = Some(slot),
            // Writes are doorbells as before.
            Err(error) => tracing::debug!(%error, "A page of doorbells cannot be memory"),
        }
        state.slot.is_some()
    }

    /// Takes the page from the guest, if it has it.
    fn remove(&self, state: &mut State) -> bool {
        let Some(slot) = state.slot.take() else { return true };
        match self.vm.remove_page(slot) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "A page of doorbells stays memory");
                state.resting = !set_writable(&self.memory, true);
                false
            }
        }
    }

    /// Lets the guest write again if it could not.
    fn wake(&self) {
        let mut state = self.lock();
        if state.resting && set_writable(&self.memory, true) {
            state.resting = false;
            self.wakes.fetch_add(1, Ordering::AcqRel);
            self.bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set_writable(memory: &GuestPage, writable: bool) -> bool {
    let set = memory.set_writable(writable);
    if let Err(error) = &set {
        tracing::error!(%error, writable, "Failed to change the protection of a page of doorbells");
    }
    set.is_ok()
}

/// A page in the hands of its device.
pub(super) struct SharedPage(pub(super) Arc<Page>);

impl DoorbellPage for SharedPage {
    fn load(&self, offset: u64) -> u32 {
        self.0.memory.load(offset)
    }

    fn rest(&self) {
        let mut state = self.0.lock();
        if !state.resting && !state.retired {
            // If that fails the page stays awake, and its device goes on to poll.
            state.resting = set_writable(&self.0.memory, false);
        }
    }

    fn is_awake(&self) -> bool {
        !self.0.lock().resting
    }

    fn retire(&self) {
        let mut state = self.0.lock();
        state.retired = true;
        if self.0.remove(&mut state) && std::mem::take(&mut state.resting) {
            // A CPU may have failed to write a moment ago, and asks for the reason when the page is gone.
            self.0.wakes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        self.retire();
    }
}
