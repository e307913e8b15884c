//! Building a machine out of its configuration.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use device_model::ram::Ram;
use device_model::save::Records;
use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use virtio::block::RawImage;
use virtio_fabric::frontend::Remote;

use super::bus::Bus;
use super::controls::{Controls, Parts, Shape, not_restored};
use super::cpuid::CpuTemplate;
use super::doorbell_pages::DoorbellPages;
use super::event::Events;
use super::gate::Gate;
use super::interrupts::InterruptRouter;
use super::layout::{
    KEYBOARD_COMMAND, KVM_IDENTITY_MAP, KVM_TSS, PANIC_PORT, PM1_CONTROL, PM1_EVENT, RESET_CONTROL,
    SERIAL_IRQS, SERIAL_PORTS, pci_windows,
};
use super::panic_port::PanicPort;
use super::power::{KeyboardReset, Pm1Control, Pm1Event, PowerManagement, ResetControl, SciLine};
use super::slots::SlotBuilder;
use super::vcpu::{VcpuContext, VcpuThread};
use super::{RunningMachine, acpi, bare, boot, memory, registers, state};
use crate::config::{BootConfig, DiskConfig, VmConfig};
use crate::error::{Error, Result};
use crate::fabric;
use crate::inspect::SlotView;
use crate::io::{IoThread, Parked};
use crate::kvm::VmWithRam;
use crate::nic::{NicPort, open_ports};
use crate::serial::{Consoles, Uart};

/// What a machine is connected to on the host, and what survives its resets.
pub struct HostSide {
    /// Serial ports.
    pub consoles: Consoles,
    /// Disk images, in the order of the disks.
    pub disks: Vec<Arc<RawImage>>,
    /// Disks at targets, in their order.
    pub fabric_disks: Vec<Arc<Remote>>,
    /// Network ports, in the order of their slots.
    pub ports: Vec<NicPort>,
}

impl HostSide {
    /// Opens everything that `config` names.
    ///
    /// # Errors
    ///
    /// When something cannot be opened or is in use.
    pub fn open(config: &VmConfig, events: &Events, images: Images) -> Result<Self> {
        let disks = config.disks.iter().map(|disk| open_disk(disk, images)).collect::<Result<_>>()?;
        let open = |disk| fabric::open_disk(disk, config.cpus);
        let fabric_disks = config.fabric_disks.iter().map(open).collect::<Result<_>>()?;
        let ports = open_ports(&config.nets)?;
        Ok(Self { consoles: Consoles::open(&config.serial, events)?, disks, fabric_disks, ports })
    }
}

/// Whose disk images are when they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// This process'.
    Ours,
    /// Those of another process, until it gives them up.
    Theirs,
}

fn open_disk(config: &DiskConfig, images: Images) -> Result<Arc<RawImage>> {
    let open = match images {
        Images::Ours => RawImage::open,
        Images::Theirs => RawImage::open_unlocked,
    };
    open(&config.path, config.readonly).map(Arc::new).map_err(|error| Error::disk_image(&config.path, &error))
}

/// Puts saved memory into place, and gives the rest of what was saved.
pub type Restore<'a> = dyn FnOnce(&Ram) -> Result<Records> + 'a;

/// How a machine begins.
pub enum Start<'a> {
    /// As its configuration says.
    Boot,
    /// With what was saved of another one.
    Restore(Box<Restore<'a>>),
    /// With what was saved of another one, in its memory if that is given. It stays paused until it is told to go on, and
    /// no device does anything before.
    Receive(Option<File>, Box<Restore<'a>>),
}

/// A machine that has not been started.
pub struct Machine {
    vcpus: Vec<VcpuFd>,
    context: VcpuContext,
    parts: Parts,
    // Dropped before the threads, which end when they go on.
    parked: Option<Vec<Parked>>,
    io_threads: Vec<IoThread>,
    views: Vec<SlotView>,
}

impl Machine {
    /// Builds the machine and loads what it starts, or puts it into a saved state.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be had on this host; the error says which part and, if known, the remedy.
    pub fn build(
        kvm: &Kvm,
        config: &VmConfig,
        host: &HostSide,
        events: &Events,
        mut start: Start<'_>,
    ) -> Result<Self> {
        let cpus = CpuTemplate::new(kvm, config.cpus)?;
        let windows = pci_windows(config.memory.size.0, cpus.address_bits())?;
        let handed_over = match &mut start {
            Start::Receive(file, _) => file.take(),
            Start::Boot | Start::Restore(_) => None,
        };
        let ram = match handed_over {
            Some(file) => memory::adopt(&config.memory, file)?,
            None => memory::create(&config.memory)?,
        };
        let vm = Arc::new(VmWithRam::new(create_vm(kvm)?, ram)?);
        let interrupts = InterruptRouter::new(Arc::clone(&vm))?;

        let pages = DoorbellPages::new(Arc::clone(&vm));
        let mut slots =
            SlotBuilder::new(Arc::clone(&vm), Arc::clone(&pages), Arc::clone(&interrupts), windows);
        super::devices::add_all(&mut slots, config, host)?;
        let (root, io_threads, views) = slots.finish()?;

        let power = Arc::new(PowerManagement::new(Box::new(SciLine(Arc::clone(&vm))), events.clone()));
        let root = Arc::new(root);
        let mut bus = Bus::new(Arc::clone(&root));
        add_port_devices(&mut bus, &power, events);
        let uarts = add_serial_ports(&mut bus, &interrupts, host)?;

        let mut vcpus = create_vcpus(vm.fd(), &cpus, config.cpus)?;
        let shape = Shape { cpus: config.cpus, memory: config.memory.size.0, cpuid: cpus.bytes()? };
        let parts = Parts { shape, vm: Arc::clone(&vm), root, power, uarts };
        let mut parked = None;
        match start {
            Start::Boot => {
                let rsdp = acpi::write(vm.ram(), config.cpus, &windows)?;
                start_at(&vm, &vcpus, &config.boot, rsdp)?;
            }
            Start::Restore(restore) => {
                let records = restore(vm.ram())?;
                resume_at(&parts, &vcpus, records)?;
            }
            Start::Receive(_, receive) => {
                warm_up(&mut vcpus);
                let records = receive(vm.ram())?;
                parked = Some(io_threads.iter().map(IoThread::park).collect::<Result<_>>()?);
                lock_disks(config, host)?;
                resume_at(&parts, &vcpus, records)?;
            }
        }

        // Not before: input that a restored port had taken already would be lost.
        for (index, uart) in parts.uarts.iter().enumerate() {
            host.consoles.port(index).connect(uart);
        }

        let context = VcpuContext {
            vm,
            pages,
            bare: config.is_bare().then_some(bare::BarePorts),
            bus: Arc::new(bus),
            events: events.clone(),
            gate: Arc::new(Gate::new(vcpus.len(), parked.is_none())),
            msrs: state::msr_indices(kvm)?.into(),
        };
        Ok(Self { vcpus, context, parts, parked, io_threads, views })
    }

    /// What the operator may look at.
    pub fn views(&self) -> Vec<SlotView> {
        self.views.clone()
    }

    /// Starts the vCPUs; those of a machine that was received wait.
    ///
    /// # Errors
    ///
    /// When the host has no room for their threads.
    pub fn start(self) -> Result<RunningMachine> {
        let gate = Arc::clone(&self.context.gate);
        let mut vcpus = Vec::new();
        for (index, vcpu) in (0..).zip(self.vcpus) {
            match VcpuThread::spawn(index, vcpu, self.context.clone()) {
                Ok(thread) => vcpus.push(thread),
                Err(error) => {
                    gate.stop();
                    vcpus.iter().for_each(|thread: &VcpuThread| thread.kicker().kick());
                    vcpus.drain(..).for_each(VcpuThread::join);
                    return Err(error);
                }
            }
        }
        let kickers = vcpus.iter().map(VcpuThread::kicker).collect();
        let controls = Controls {
            gate,
            kickers,
            io_threads: self.io_threads,
            parts: self.parts,
            parked: Mutex::new(self.parked),
            given_away: AtomicBool::new(false),
        };
        Ok(RunningMachine { vcpus, controls: Arc::new(controls) })
    }
}

/// A virtual machine with the interrupt controllers and the timer in the kernel.
pub(super) fn create_vm(kvm: &Kvm) -> Result<VmFd> {
    let vm = kvm.create_vm().map_err(|e| Error::kvm("create a virtual machine", e))?;
    vm.set_identity_map_address(KVM_IDENTITY_MAP).map_err(|e| Error::kvm("set the identity map", e))?;
    vm.set_tss_address(KVM_TSS).map_err(|e| Error::kvm("set the task state segment", e))?;
    vm.create_irq_chip().map_err(|e| Error::kvm("create the interrupt controllers", e))?;
    // The dummy speaker port keeps kernels that poke it from leaving the guest.
    let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    vm.create_pit2(pit).map_err(|e| Error::kvm("create the interval timer", e))?;
    Ok(vm)
}

fn create_vcpus(vm: &VmFd, template: &CpuTemplate, count: u8) -> Result<Vec<VcpuFd>> {
    (0..count)
        .map(|id| {
            let vcpu = vm.create_vcpu(id.into()).map_err(|e| Error::kvm("create a virtual CPU", e))?;
            vcpu.set_cpuid2(&template.for_cpu(id)?).map_err(|e| Error::kvm("set CPUID", e))?;
            registers::init_cpu(&vcpu)?;
            Ok(vcpu)
        })
        .collect()
}

/// Lets KVM prepare CPUs for their guest, which takes it some milliseconds the first time.
fn warm_up(vcpus: &mut [VcpuFd]) {
    for vcpu in vcpus {
        vcpu.set_kvm_immediate_exit(1);
        // It says that it was interrupted.
        let _ = vcpu.run();
        vcpu.set_kvm_immediate_exit(0);
    }
}

/// Takes the disk images, which the machine's former process has given up.
fn lock_disks(config: &VmConfig, host: &HostSide) -> Result<()> {
    for (disk, image) in config.disks.iter().zip(&host.disks) {
        image.lock().map_err(|error| Error::disk_image(&disk.path, &error))?;
    }
    Ok(())
}

fn add_port_devices(bus: &mut Bus, power: &Arc<PowerManagement>, events: &Events) {
    bus.add_ports(PM1_EVENT, 4, Arc::new(Pm1Event(Arc::clone(power))));
    bus.add_ports(PM1_CONTROL, 2, Arc::new(Pm1Control(Arc::clone(power))));
    bus.add_ports(RESET_CONTROL, 1, Arc::new(ResetControl(events.clone())));
    bus.add_ports(PANIC_PORT, 1, Arc::new(PanicPort(events.clone())));
    bus.add_ports(KEYBOARD_COMMAND, 1, Arc::new(KeyboardReset(events.clone())));
}

fn add_serial_ports(bus: &mut Bus, interrupts: &InterruptRouter, host: &HostSide) -> Result<Vec<Arc<Uart>>> {
    let mut uarts = Vec::new();
    for (index, (port, irq)) in SERIAL_PORTS.into_iter().zip(SERIAL_IRQS).enumerate() {
        let uart = host.consoles.port(index).make(interrupts.edge_line(irq)?);
        uarts.push(Arc::clone(&uart));
        bus.add_ports(port, 8, uart);
    }
    Ok(uarts)
}

/// Puts a machine that was just built into a saved state. Interrupt controllers come before devices, which may interrupt
/// at once.
fn resume_at(parts: &Parts, vcpus: &[VcpuFd], mut records: Records) -> Result<()> {
    let cpus = parts.restore(&mut records)?;
    for (vcpu, state) in vcpus.iter().zip(&cpus) {
        state.write(parts.vm.fd(), vcpu)?;
        state::excuse_pause(vcpu);
    }
    parts.root.restore(&mut records).and_then(|()| records.finish()).map_err(not_restored)
}

/// Loads what the machine starts and puts the boot CPU at its entry point. The other CPUs wait for a start-up IPI.
fn start_at(vm: &VmWithRam, vcpus: &[VcpuFd], boot: &BootConfig, rsdp: u64) -> Result<()> {
    let boot_cpu = vcpus.first().ok_or_else(|| Error::Usage("A machine needs a CPU".to_owned()))?;
    match boot {
        BootConfig::Linux { kernel, initramfs, cmdline } => {
            let initramfs = initramfs.as_deref().map(Path::new);
            let entry = boot::load_linux(vm.ram(), kernel, initramfs, cmdline, rsdp)?;
            registers::write_boot_tables(vm.ram())?;
            registers::enter_linux(boot_cpu, entry)
        }
        BootConfig::Bare { program, cmdline } => bare::start(vm.ram(), vcpus, program, cmdline),
        BootConfig::Nothing => Err(Error::Usage("Nothing to boot: give --kernel FILE".to_owned())),
    }
}
