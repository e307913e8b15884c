//! What KVM knows of a machine: CPUs, interrupt controllers, timer and clock, as they are saved.

use device_model::save::Saved;
use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, Msrs, kvm_clock_data, kvm_debugregs,
    kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_pit_state2, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::kvm::set_xsave;

/// Registers read or written with one call.
const MSR_BATCH: usize = 64;
/// Most registers a saved CPU can have.
const MAX_MSRS: usize = 4096;

/// Model-specific registers that hold a CPU's state on this host.
pub(super) fn msr_indices(kvm: &Kvm) -> Result<Vec<u32>> {
    let list = kvm.get_msr_index_list().map_err(|e| Error::kvm("list model-specific registers", e))?;
    Ok(list.as_slice().to_vec())
}

/// A CPU.
#[derive(Serialize, Deserialize)]
pub(super) struct CpuState {
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: kvm_xsave,
    xcrs: kvm_xcrs,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
}

impl Saved for CpuState {
    const KIND: &'static str = "CPU";
    const VERSION: u16 = 1;
}

impl CpuState {
    /// Reads the state of a CPU that is not in the guest and has no access to finish.
    pub(super) fn read(vcpu: &VcpuFd, msrs: &[u32]) -> Result<Self> {
        let failed = |e| Error::kvm("read the state of a CPU", e);
        Ok(Self {
            // First: it makes KVM take in what other CPUs have sent.
            mp_state: vcpu.get_mp_state().map_err(failed)?,
            regs: vcpu.get_regs().map_err(failed)?,
            sregs: vcpu.get_sregs().map_err(failed)?,
            xsave: vcpu.get_xsave().map_err(failed)?,
            xcrs: vcpu.get_xcrs().map_err(failed)?,
            debug: vcpu.get_debug_regs().map_err(failed)?,
            msrs: read_msrs(vcpu, msrs)?,
            lapic: vcpu.get_lapic().map_err(failed)?,
            events: vcpu.get_vcpu_events().map_err(failed)?,
        })
    }

    /// Puts a new CPU into this state.
    pub(super) fn write(&self, vm: &VmFd, vcpu: &VcpuFd) -> Result<()> {
        let failed = |e| Error::kvm("restore the state of a CPU", e);
        vcpu.set_mp_state(self.mp_state).map_err(failed)?;
        vcpu.set_regs(&self.regs).map_err(failed)?;
        vcpu.set_sregs(&self.sregs).map_err(failed)?;
        set_xsave(vm, vcpu, &self.xsave)?;
        if self.xcrs.nr_xcrs > 0 {
            vcpu.set_xcrs(&self.xcrs).map_err(failed)?;
        }
        vcpu.set_debug_regs(&self.debug).map_err(failed)?;
        // The deadline of its timer is among the registers that follow.
        vcpu.set_lapic(&self.lapic).map_err(failed)?;
        write_msrs(vcpu, &self.msrs)?;
        vcpu.set_vcpu_events(&self.events).map_err(failed)?;
        Ok(())
    }
}

/// Tells the guest's watchdogs that the time it did not run is not its fault; guests without KVM's clock do not care.
pub(super) fn excuse_pause(vcpu: &VcpuFd) {
    let _ = vcpu.kvmclock_ctrl();
}

fn read_msrs(vcpu: &VcpuFd, mut indices: &[u32]) -> Result<Vec<kvm_msr_entry>> {
    let mut found = Vec::with_capacity(indices.len());
    while !indices.is_empty() {
        let batch = &indices[..indices.len().min(MSR_BATCH)];
        let entries: Vec<_> =
            batch.iter().map(|index| kvm_msr_entry { index: *index, ..Default::default() }).collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|e| Error::Failure(format!("{e:?}")))?;
        let count = vcpu.get_msrs(&mut msrs).map_err(|e| Error::kvm("read model-specific registers", e))?;
        found.extend(msrs.as_slice().iter().take(count));
        // KVM stops at one that this CPU does not have.
        let skipped = usize::from(count < batch.len());
        indices = &indices[(count + skipped).min(indices.len())..];
    }
    Ok(found)
}

fn write_msrs(vcpu: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<()> {
    if entries.len() > MAX_MSRS {
        return Err(Error::Failure("The saved CPU has more registers than there are".to_owned()));
    }
    for batch in entries.chunks(MSR_BATCH) {
        let msrs = Msrs::from_entries(batch).map_err(|e| Error::Failure(format!("{e:?}")))?;
        let count = vcpu.set_msrs(&msrs).map_err(|e| Error::kvm("restore model-specific registers", e))?;
        if let Some(entry) = batch.get(count) {
            return Err(Error::Failure(format!(
                "This host does not take the saved value of the model-specific register {:#x}: restore on a host \
                 with the same kind of processor and kernel",
                entry.index
            )));
        }
    }
    Ok(())
}

/// Interrupt controllers, interval timer and clock.
#[derive(Serialize, Deserialize)]
pub(super) struct ChipState {
    irqchips: Vec<kvm_irqchip>,
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
}

impl Saved for ChipState {
    const KIND: &'static str = "interrupt controllers and clock";
    const VERSION: u16 = 1;
}

impl ChipState {
    pub(super) fn read(vm: &VmFd) -> Result<Self> {
        let chip = |chip_id| {
            let mut chip = kvm_irqchip { chip_id, ..Default::default() };
            vm.get_irqchip(&mut chip).map_err(|e| Error::kvm("read an interrupt controller", e))?;
            Ok(chip)
        };
        let ids = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];
        Ok(Self {
            irqchips: ids.into_iter().map(chip).collect::<Result<_>>()?,
            pit: vm.get_pit2().map_err(|e| Error::kvm("read the interval timer", e))?,
            clock: vm.get_clock().map_err(|e| Error::kvm("read the clock", e))?,
        })
    }

    pub(super) fn write(&self, vm: &VmFd) -> Result<()> {
        for chip in &self.irqchips {
            vm.set_irqchip(chip).map_err(|e| Error::kvm("restore an interrupt controller", e))?;
        }
        vm.set_pit2(&self.pit).map_err(|e| Error::kvm("restore the interval timer", e))?;
        // The guest's time goes on from where it stood. What else KVM said of its clock is about the host it was on.
        let clock = kvm_clock_data { clock: self.clock.clock, flags: 0, ..Default::default() };
        vm.set_clock(&clock).map_err(|e| Error::kvm("restore the clock", e))
    }
}
