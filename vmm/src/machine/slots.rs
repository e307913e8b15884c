//! Putting devices on the PCI bus.

use std::sync::Arc;

use device_model::ram::{GuestRam, Ram};
use pci::{Bdf, Device, Function, Msix, MsixSpec, RootBuilder, Windows};

use super::doorbell_pages::DoorbellPages;
use super::doorbells::KvmDoorbells;
use super::interrupts::InterruptRouter;
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::io::{Clock, IoThread};
use crate::kvm::VmWithRam;
use crate::nic::PollingThreads;

/// What one PCI function gets from the machine. Make the device from it, then [`SlotBuilder::add_slot`] it.
pub struct FunctionKit {
    /// The function's interrupts; pass it to the device as its `Interrupts`. `None` without MSI-X.
    pub msix: Option<Arc<Msix>>,
    /// The function's doorbells; pass it to the device as its `Doorbells`.
    pub doorbells: Arc<KvmDoorbells>,
}

/// Collects the devices of a machine and their I/O threads.
pub struct SlotBuilder {
    vm: Arc<VmWithRam>,
    pages: Arc<DoorbellPages>,
    interrupts: Arc<InterruptRouter>,
    root: RootBuilder,
    clock: Clock,
    polling: PollingThreads,
    threads: Vec<IoThread>,
    views: Vec<SlotView>,
}

impl SlotBuilder {
    pub(super) fn new(
        vm: Arc<VmWithRam>,
        pages: Arc<DoorbellPages>,
        interrupts: Arc<InterruptRouter>,
        windows: Windows,
    ) -> Self {
        Self {
            vm,
            pages,
            interrupts,
            root: RootBuilder::new(windows),
            clock: Clock::start(),
            polling: PollingThreads::default(),
            threads: Vec::new(),
            views: Vec::new(),
        }
    }

    /// Guest memory, for devices.
    pub fn ram(&self) -> Arc<dyn GuestRam> {
        Arc::new(self.vm.ram().clone())
    }

    /// The same memory, for devices that use vm-memory's own interface.
    pub fn ram_regions(&self) -> Arc<Ram> {
        Arc::new(self.vm.ram().clone())
    }

    /// The machine's clock; the same for all devices.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The machine's threads that poll.
    pub fn polling_threads(&self) -> PollingThreads {
        self.polling.clone()
    }

    /// Interrupts and doorbells for a function whose device will report `msix`.
    pub fn kit(&self, msix: Option<MsixSpec>) -> FunctionKit {
        let msix = msix.map(|spec| Arc::new(Msix::new(spec, self.interrupts.messages(spec.vectors))));
        FunctionKit { msix, doorbells: KvmDoorbells::new(Arc::clone(&self.vm), Arc::clone(&self.pages)) }
    }

    /// Puts `functions` into the next free slot, as functions 0, 1 and so on, and returns the address of function 0.
    ///
    /// # Errors
    ///
    /// When the bus is full or a device's BARs or capabilities are impossible.
    pub fn add_slot(&mut self, functions: Vec<(Arc<dyn Device>, FunctionKit)>) -> Result<Bdf> {
        let failed =
            |why: &dyn std::fmt::Display| Error::Failure(format!("Failed to add a PCI device: {why}"));
        let slot = self.root.free_slot().ok_or_else(|| failed(&"all slots are taken"))?;
        let address =
            |function| Bdf::new(slot, function).ok_or_else(|| failed(&"a slot has eight functions at most"));
        for (number, (device, kit)) in (0..).zip(functions) {
            let function = Function::new(device, kit.msix).map_err(|e| failed(&e))?;
            let function = Arc::new(function.with_listener(kit.doorbells));
            self.root.plug(address(number)?, function).map_err(|e| failed(&e))?;
        }
        address(0)
    }

    /// Keeps `thread` running as long as the machine.
    pub fn add_thread(&mut self, thread: IoThread) {
        self.threads.push(thread);
    }

    /// Lets the operator look at a slot.
    pub fn show(&mut self, view: SlotView) {
        self.views.push(view);
    }

    pub(super) fn finish(self) -> Result<(pci::Root, Vec<IoThread>, Vec<SlotView>)> {
        let root =
            self.root.build().map_err(|e| Error::Failure(format!("Failed to lay out the PCI bus: {e}")))?;
        Ok((root, self.threads, self.views))
    }
}
