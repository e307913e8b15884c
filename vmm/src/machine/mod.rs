//! The machine: a PC as far as a stock kernel needs one.
//!
//! A [`Machine`] is made from a [`VmConfig`](crate::config::VmConfig), started, and stopped; a reset makes a new one, so
//! that nothing of the old one can be left over. What outlives it (consoles, disks, network ports) is in [`HostSide`].

mod acpi;
mod bare;
mod boot;
mod build;
mod bus;
mod controls;
mod cpuid;
mod devices;
mod doorbell_pages;
mod doorbells;
mod event;
mod gate;
mod interrupts;
mod layout;
mod memory;
mod panic_port;
mod power;
mod registers;
mod slots;
mod state;
#[cfg(test)]
mod testing;
mod vcpu;

use std::sync::Arc;

pub use build::{HostSide, Images, Machine, Start};
pub use bus::{Bus, PortDevice};
pub use controls::Controls;
pub use doorbell_pages::DoorbellPages;
pub use doorbells::KvmDoorbells;
pub use event::{Event, Events};
pub use interrupts::{InterruptRouter, KvmMessages};
pub use slots::{FunctionKit, SlotBuilder};

use vcpu::VcpuThread;

/// A started machine; dropping it stops it.
pub struct RunningMachine {
    vcpus: Vec<VcpuThread>,
    controls: Arc<Controls>,
}

impl RunningMachine {
    /// Presses the power button: a guest that listens to it shuts down.
    pub fn press_power_button(&self) {
        self.controls.resume();
        self.controls.parts.power.press_power_button();
    }

    /// For those who pause and save the machine.
    pub fn controls(&self) -> Arc<Controls> {
        Arc::clone(&self.controls)
    }
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        self.controls.gate.stop();
        self.controls.kickers.iter().for_each(|kicker| kicker.kick());
        self.vcpus.drain(..).for_each(VcpuThread::join);
        // After the vCPUs, so that nobody waits for them. What a paused machine had not done yet it must not do now: a
        // copy of it may.
        self.controls.stop_devices();
    }
}
