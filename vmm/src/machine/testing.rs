//! Tiny ring 3 guests, run step by step.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bare_abi::{PORT_EXIT, PORT_HALT};
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress};

use super::bare::{halt, test_start};
use super::build::create_vm;
use super::cpuid::CpuTemplate;
use super::doorbell_pages::DoorbellPages;
use super::interrupts::InterruptRouter;
use super::layout::HIGH_RAM;
use super::{memory, registers};
use crate::config::MemoryConfig;
use crate::config::values::ByteSize;
use crate::kvm::{ExitCounter, Kicker, RunningVcpu, VmWithRam, install_kick_handler};

#[path = "../../tests/common/asm.rs"]
pub mod asm;

/// Longest a guest may run before its test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a guest did.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A port write other than those below.
    Out(u16, Vec<u8>),
    /// A store that reached user space.
    Store(u64, Vec<u8>),
    /// It wrote to a page that rested, and that is awake now.
    Wake,
    /// It wants to wait for an interrupt, and is halted.
    Halt,
    /// It ended, with this status.
    Exit(u32),
}

/// A guest with one CPU and 4 MiB.
pub struct TinyGuest {
    pub vm: Arc<VmWithRam>,
    pub pages: Arc<DoorbellPages>,
    pub interrupts: Arc<InterruptRouter>,
    vcpu: RunningVcpu,
}

impl TinyGuest {
    /// A guest that starts with `code` at [`HIGH_RAM`]; `None`, said aloud, without KVM.
    pub fn new(code: &[u8]) -> Option<Self> {
        let kvm = match Kvm::new() {
            Ok(kvm) => kvm,
            Err(error) => {
                eprintln!("SKIPPED: /dev/kvm cannot be used: {error}");
                return None;
            }
        };
        install_kick_handler().unwrap();
        let ram = memory::create(&MemoryConfig { size: ByteSize(4 << 20), hugepages: false }).unwrap();
        let vm = Arc::new(VmWithRam::new(create_vm(&kvm).unwrap(), ram).unwrap());
        let interrupts = InterruptRouter::new(Arc::clone(&vm)).unwrap();
        let vcpu = vm.fd().create_vcpu(0).unwrap();
        vcpu.set_cpuid2(&CpuTemplate::new(&kvm, 1).unwrap().for_cpu(0).unwrap()).unwrap();
        registers::init_cpu(&vcpu).unwrap();
        vm.ram().write_slice(code, GuestAddress(HIGH_RAM)).unwrap();
        test_start(vm.ram(), &vcpu, HIGH_RAM);
        let kicker = Arc::new(Kicker::default());
        let watchdog = Arc::clone(&kicker);
        thread::spawn(move || {
            thread::sleep(PATIENCE);
            watchdog.kick();
        });
        let pages = DoorbellPages::new(Arc::clone(&vm));
        Some(Self { vcpu: RunningVcpu::new(vcpu, Arc::clone(&vm), kicker), vm, pages, interrupts })
    }

    /// Runs to the guest's next step.
    pub fn step(&mut self) -> Step {
        let wakes = self.pages.wakes();
        let step = match self.vcpu.run() {
            Err(error) if error.errno() == libc::EFAULT => return self.faulted(wakes),
            Ok(VcpuExit::MemoryFault { .. }) => return self.faulted(wakes),
            exit => exit.expect("the guest does something within a minute"),
        };
        let step = match step {
            VcpuExit::IoOut(PORT_EXIT, data) => Step::Exit(u32::from_le_bytes(data.try_into().unwrap())),
            VcpuExit::IoOut(PORT_HALT, _) => Step::Halt,
            VcpuExit::IoOut(port, data) => Step::Out(port, data.to_vec()),
            VcpuExit::MmioWrite(address, data) => Step::Store(address, data.to_vec()),
            other => panic!("{other:?}"),
        };
        if step == Step::Halt {
            halt(self.vcpu.fd()).unwrap();
        }
        step
    }

    /// Runs to a write to a page that rests; whether there was one.
    pub fn run_into_fault(&mut self) -> bool {
        match self.vcpu.run() {
            Err(error) => error.errno() == libc::EFAULT,
            Ok(exit) => matches!(exit, VcpuExit::MemoryFault { .. }),
        }
    }

    /// The guest wrote to a page that rested.
    fn faulted(&mut self, wakes: u64) -> Step {
        assert!(self.pages.wake(wakes), "there is no reason for a fault");
        Step::Wake
    }

    /// Exits of the CPU so far; `None` where KVM does not count them.
    pub fn exits(&mut self) -> Option<u64> {
        ExitCounter::of(self.vcpu.fd()).map(|counter| counter.read().unwrap())
    }
}
