//! The machine: a PC as far as a stock kernel needs one.
//!
//! A [`Machine`] is made from a [`VmConfig`](crate::config::VmConfig), started, and stopped; a reset makes a new one, so
//! that nothing of the old one can be left over. What outlives it (consoles, disks, network ports) is in [`HostSide`].

mod acpi;
mod bare;
mod boot;
mod build;
mod bus;
mod cpuid;
mod devices;
mod doorbells;
mod event;
mod interrupts;
mod layout;
mod memory;
mod panic_port;
mod power;
mod registers;
mod slots;
#[cfg(test)]
mod testing;
mod vcpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use build::{HostSide, Machine};
pub use bus::{Bus, PortDevice};
pub use doorbells::KvmDoorbells;
pub use event::{Event, Events};
pub use interrupts::{InterruptRouter, KvmMessages};
pub use slots::{FunctionKit, SlotBuilder};

use crate::io::IoThread;
use power::PowerManagement;
use vcpu::VcpuThread;

/// A started machine; dropping it stops it.
pub struct RunningMachine {
    stop: Arc<AtomicBool>,
    vcpus: Vec<VcpuThread>,
    power: Arc<PowerManagement>,
    /// Device threads, stopped after the vCPUs so that nobody waits for them.
    _io_threads: Vec<IoThread>,
}

impl RunningMachine {
    /// Presses the power button: a guest that listens to it shuts down.
    pub fn press_power_button(&self) {
        self.power.press_power_button();
    }
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.vcpus.iter().for_each(VcpuThread::kick);
        self.vcpus.drain(..).for_each(VcpuThread::join);
    }
}
