//! The foreign-function boundary: the calls whose safety the compiler cannot see.
//!
//! Nothing else in this crate is `unsafe`. Each function here takes safe types whose invariants are what the call needs.

#![allow(unsafe_code)]

mod access;
mod kick;
mod page;
mod stats;
mod terminal;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_model::ram::Ram;
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_userspace_memory_region, kvm_xsave};
use kvm_ioctls::{Cap, VcpuFd, VmFd};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::eventfd::EventFd;

pub use access::{KvmAbsence, open_kvm};
pub use kick::{Kicker, RunningVcpu, install_kick_handler};
pub use page::GuestPage;
pub use stats::ExitCounter;
pub use terminal::restore_on_fatal_signals;

use crate::error::{Error, Result};

/// Bytes of a page.
const PAGE_SIZE: u64 = 4096;
/// First memory slot of pages, behind those of memory.
const FIRST_PAGE_SLOT: u32 = 16;

/// A virtual machine with its memory: the memory cannot go away before the machine.
#[derive(Debug)]
pub struct VmWithRam {
    // Declared before the memory, so dropped before it.
    vm: VmFd,
    ram: Ram,
    /// Pages the guest has been given, by their slots.
    pages: Mutex<HashMap<u32, Arc<GuestPage>>>,
}

impl VmWithRam {
    /// Maps every region of `ram` into `vm`, one memory slot each, in address order.
    ///
    /// # Errors
    ///
    /// When KVM refuses a slot.
    pub fn new(vm: VmFd, ram: Ram) -> Result<Self> {
        let machine = Self { vm, ram, pages: Mutex::default() };
        machine.set_slots(0)?;
        Ok(machine)
    }

    /// Whether KVM keeps a log of the pages that CPUs write to.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn log_dirty(&self, on: bool) -> Result<()> {
        self.set_slots(if on { KVM_MEM_LOG_DIRTY_PAGES } else { 0 })
    }

    /// The pages of each region that CPUs wrote to since the last call, a bit each, in the order of addresses. The log must
    /// be on.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn take_dirty(&self) -> Result<Vec<Vec<u64>>> {
        let log = |(slot, region): (u32, &GuestRegionMmap<_>)| {
            self.vm
                .get_dirty_log(slot, region.size())
                .map_err(|e| Error::kvm("read which pages were written to", e))
        };
        (0..).zip(self.ram.iter()).map(log).collect()
    }

    fn set_slots(&self, flags: u32) -> Result<()> {
        for (slot, region) in (0..).zip(self.ram.iter()) {
            let slot = kvm_userspace_memory_region {
                slot,
                flags,
                guest_phys_addr: region.start_addr().raw_value(),
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // SAFETY: the address range is a live mapping of `region.len()` bytes. It outlives the slot: the mapping is
            // owned by `ram`, which is dropped after `vm`, and closing the last descriptor of the virtual machine ends
            // the slot. vCPU descriptors keep the virtual machine alive in the kernel, but `RunningVcpu`, which alone
            // enters the guest, holds this structure.
            unsafe { self.vm.set_user_memory_region(slot) }.map_err(|e| Error::kvm("map guest memory", e))?;
        }
        Ok(())
    }

    /// Gives the guest a page at an address where there is nothing else. What it writes there nobody is told of.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn add_page(&self, address: u64, page: &Arc<GuestPage>) -> Result<PageSlot> {
        let mut pages = self.lock_pages();
        let number = (FIRST_PAGE_SLOT..).find(|slot| !pages.contains_key(slot)).unwrap_or(FIRST_PAGE_SLOT);
        let slot = kvm_userspace_memory_region {
            slot: number,
            flags: 0,
            guest_phys_addr: address,
            memory_size: PAGE_SIZE,
            userspace_addr: page.address(),
        };
        // SAFETY: the range is a live mapping of a page. It outlives the slot: `pages` holds it until the slot is gone, and
        // is dropped after `vm`; see above.
        unsafe { self.vm.set_user_memory_region(slot) }.map_err(|e| Error::kvm("give a guest a page", e))?;
        pages.insert(number, Arc::clone(page));
        Ok(PageSlot(number))
    }

    /// Takes a page from the guest. On return it writes there no more.
    ///
    /// # Errors
    ///
    /// When KVM refuses; the guest has the page then.
    pub fn remove_page(&self, slot: PageSlot) -> Result<()> {
        let mut pages = self.lock_pages();
        let none = kvm_userspace_memory_region { slot: slot.0, ..Default::default() };
        // SAFETY: a slot without a size is taken away, and no memory is given.
        unsafe { self.vm.set_user_memory_region(none) }
            .map_err(|e| Error::kvm("take a page from a guest", e))?;
        pages.remove(&slot.0);
        Ok(())
    }

    fn lock_pages(&self) -> MutexGuard<'_, HashMap<u32, Arc<GuestPage>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The virtual machine's descriptor.
    pub fn fd(&self) -> &VmFd {
        &self.vm
    }

    /// Its memory.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }
}

/// The memory slot of a page that a guest has.
#[derive(Debug)]
pub struct PageSlot(u32);

/// A second handle to an eventfd, in the type that kvm-ioctls takes.
///
/// # Errors
///
/// When the process has no descriptor left.
pub fn event_fd(fd: BorrowedFd<'_>) -> std::io::Result<EventFd> {
    let owned = fd.try_clone_to_owned()?;
    // SAFETY: the descriptor was just made, is open and has no other owner.
    Ok(unsafe { EventFd::from_raw_fd(owned.into_raw_fd()) })
}

/// Restores the registers that XSAVE covers.
///
/// # Errors
///
/// When the host has larger ones than were saved, or KVM refuses them.
pub fn set_xsave(vm: &VmFd, vcpu: &VcpuFd, xsave: &kvm_xsave) -> Result<()> {
    let size = usize::try_from(vm.check_extension_int(Cap::Xsave2)).unwrap_or(0);
    if size > size_of::<kvm_xsave>() {
        return Err(Error::Failure(format!(
            "This host has {size} bytes of extended registers: too many to restore"
        )));
    }
    // SAFETY: KVM reads the size it was just asked for, or 4096 bytes if it does not know that question, and `xsave` has
    // as many.
    unsafe { vcpu.set_xsave(xsave) }.map_err(|e| Error::kvm("restore extended registers", e))
}
