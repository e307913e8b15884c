//! Getting a vCPU thread out of the guest.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

use super::VmWithRam;
use crate::error::{Error, Result};

extern "C" fn do_nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Installs the handler of the signal that interrupts KVM_RUN; without it the signal would end the process.
///
/// # Errors
///
/// When the host refuses the handler.
pub fn install_kick_handler() -> Result<()> {
    register_signal_handler(SIGRTMIN(), do_nothing).map_err(|e| {
        Error::io("install the vCPU signal handler", std::io::Error::from_raw_os_error(e.errno()))
    })
}

struct Target {
    immediate_exit: NonNull<AtomicU8>,
    thread: libc::pthread_t,
}

// SAFETY: the pointer is to a byte of a shared mapping that only atomic operations touch from this side, and the thread
// id is plain data; `Kicker` uses both only while their owner keeps them alive.
unsafe impl Send for Target {}

/// Interrupts one vCPU from any thread.
#[derive(Default)]
pub struct Kicker {
    target: Mutex<Option<Target>>,
}

impl Kicker {
    /// Makes the vCPU leave the guest; if it is not in the guest, its next entry returns at once. No kick is lost:
    /// KVM looks at `immediate_exit` before entry, and at pending signals after.
    pub fn kick(&self) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = &*target else { return };
        // SAFETY: a target is present only between `RunningVcpu::new` and its drop, while the mapping exists.
        unsafe { target.immediate_exit.as_ref() }.store(1, Ordering::SeqCst);
        // SAFETY: likewise the thread: it clears the target, under this lock, before it ends. The signal has a handler.
        unsafe { libc::pthread_kill(target.thread, SIGRTMIN()) };
    }

    fn set(&self, target: Option<Target>) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }
}

/// A vCPU bound to the thread that runs it, reachable by its [`Kicker`].
pub struct RunningVcpu {
    // Dropped before `_vm`: the memory stays mapped for as long as the guest may be entered.
    vcpu: VcpuFd,
    _vm: Arc<VmWithRam>,
    kicker: Arc<Kicker>,
    // Not `Send`: the kicker signals the thread that called `new`.
    bound: PhantomData<*const ()>,
}

impl RunningVcpu {
    /// Binds `vcpu`, a CPU of `vm`, to the calling thread.
    pub fn new(mut vcpu: VcpuFd, vm: Arc<VmWithRam>, kicker: Arc<Kicker>) -> Self {
        let byte = NonNull::from(&mut vcpu.get_kvm_run().immediate_exit).cast::<AtomicU8>();
        // SAFETY: takes no argument and cannot fail.
        let thread = unsafe { libc::pthread_self() };
        kicker.set(Some(Target { immediate_exit: byte, thread }));
        Self { vcpu, _vm: vm, kicker, bound: PhantomData }
    }

    /// Enters the guest until it needs something or is kicked.
    ///
    /// # Errors
    ///
    /// `EINTR` after a kick; anything else is a failure of KVM.
    pub fn run(&mut self) -> std::result::Result<VcpuExit<'_>, kvm_ioctls::Error> {
        self.vcpu.run()
    }

    /// Makes the next [`RunningVcpu::run`] finish what the guest's last access left to do, and nothing more: it gives
    /// `EINTR` then.
    pub fn leave_at_once(&mut self) {
        self.vcpu.set_kvm_immediate_exit(1);
    }

    /// The kick has been heeded. What it was for must be looked at afterwards.
    pub fn forget_kick(&mut self) {
        self.vcpu.set_kvm_immediate_exit(0);
    }

    /// The vCPU, to inspect it between entries.
    pub fn fd(&mut self) -> &mut VcpuFd {
        &mut self.vcpu
    }

    /// The sub-error and data of the last KVM_EXIT_INTERNAL_ERROR.
    pub fn internal_error(&mut self) -> (u32, Vec<u64>) {
        // SAFETY: every member of the union is plain data for which all bit patterns are valid.
        let internal = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
        let count = usize::try_from(internal.ndata).unwrap_or(usize::MAX).min(internal.data.len());
        (internal.suberror, internal.data[..count].to_vec())
    }
}

impl Drop for RunningVcpu {
    fn drop(&mut self) {
        self.kicker.set(None);
    }
}
