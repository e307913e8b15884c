//! Virtual CPUs: one thread each, in and out of the guest.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use bare_abi::PORT_EXITS;
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::bare::{BarePorts, Request, enable_interrupts, halt};
use super::bus::Bus;
use super::doorbell_pages::DoorbellPages;
use super::event::{Event, Events};
use super::gate::Gate;
use super::state::{CpuState, excuse_pause};
use crate::error::{Error, Result};
use crate::kvm::{ExitCounter, Kicker, RunningVcpu, VmWithRam};

/// What a vCPU thread works with.
#[derive(Clone)]
pub(super) struct VcpuContext {
    pub(super) vm: Arc<VmWithRam>,
    /// Pages whose protection makes KVM_RUN fail.
    pub(super) pages: Arc<DoorbellPages>,
    pub(super) bus: Arc<Bus>,
    /// Ports of a bare-metal guest.
    pub(super) bare: Option<BarePorts>,
    pub(super) events: Events,
    pub(super) gate: Arc<Gate>,
    /// Model-specific registers to save.
    pub(super) msrs: Arc<[u32]>,
}

/// A vCPU thread.
pub(super) struct VcpuThread {
    kicker: Arc<Kicker>,
    thread: JoinHandle<()>,
}

impl VcpuThread {
    /// Starts to run `vcpu`.
    pub(super) fn spawn(index: u8, vcpu: VcpuFd, context: VcpuContext) -> Result<Self> {
        let kicker = Arc::new(Kicker::default());
        let own_kicker = Arc::clone(&kicker);
        let thread = Builder::new()
            .name(format!("vcpu{index}"))
            .spawn(move || {
                // A panic must end the run, not leave it without a CPU.
                let guard =
                    ThreadEnd { index, events: context.events.clone(), gate: Arc::clone(&context.gate) };
                let mut vcpu = RunningVcpu::new(vcpu, Arc::clone(&context.vm), own_kicker);
                if let Some(event) = run(&mut vcpu, index, &context) {
                    report(index, event, &context);
                }
                drop(guard);
            })
            .map_err(|e| Error::io("start a vCPU thread", e))?;
        Ok(Self { kicker, thread })
    }

    /// Gets the vCPU out of the guest.
    pub(super) fn kicker(&self) -> Arc<Kicker> {
        Arc::clone(&self.kicker)
    }

    /// Waits for the thread's end. The gate must be closed for good and the vCPU kicked.
    pub(super) fn join(self) {
        // A panic has been reported by then.
        let _ = self.thread.join();
    }
}

/// What must happen whichever way a vCPU thread ends.
struct ThreadEnd {
    index: u8,
    events: Events,
    gate: Arc<Gate>,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        self.gate.leave(self.index.into());
        if std::thread::panicking() {
            self.events
                .send(Event::Failed(format!("vCPU {} panicked: this is a bug in verbena", self.index)));
        }
    }
}

fn report(index: u8, event: Event, context: &VcpuContext) {
    tracing::debug!(index, ?event, "vCPU stopped");
    context.events.send(event);
}

/// Runs the guest until the gate is closed for good (`None`) or it can go no further.
fn run(vcpu: &mut RunningVcpu, index: u8, context: &VcpuContext) -> Option<Event> {
    let VcpuContext { bus, bare, gate, pages, .. } = context;
    let exits = bare.and_then(|_| ExitCounter::of(vcpu.fd()));
    loop {
        if gate.is_closed() {
            vcpu.leave_at_once();
        }
        let wakes = pages.wakes();
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => match bare.and_then(|bare| bare.parse(port, data)) {
                None => bus.port_write(port, data),
                Some(request) => {
                    if let Some(event) = serve(vcpu.fd(), request) {
                        return Some(event);
                    }
                }
            },
            Ok(VcpuExit::IoIn(PORT_EXITS, data)) if bare.is_some() => tell_exits(exits.as_ref(), data),
            Ok(VcpuExit::IoIn(port, data)) => bus.port_read(port, data),
            Ok(VcpuExit::MmioWrite(address, data)) => bus.memory_write(address, data),
            Ok(VcpuExit::MmioRead(address, data)) => bus.memory_read(address, data),
            Ok(VcpuExit::Intr) => {}
            // A page of doorbells rested, and the guest tries again.
            Ok(VcpuExit::MemoryFault { .. }) if pages.wake(wakes) => {}
            Err(error) if error.errno() == libc::EFAULT && pages.wake(wakes) => {}
            Ok(exit) => {
                let kind = ExitKind::of(&exit);
                return Some(explain(vcpu, kind));
            }
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) if error.errno() == libc::EINTR => {
                // Nothing of an access is left to be done now.
                vcpu.forget_kick();
                if gate.is_closed() {
                    let fd = vcpu.fd();
                    if !gate.wait(index.into(), || CpuState::read(fd, &context.msrs)) {
                        return None;
                    }
                    excuse_pause(vcpu.fd());
                }
            }
            Err(error) => return Some(Event::Failed(format!("KVM_RUN failed: {error}{}", place(vcpu)))),
        }
    }
}

/// Tells a bare-metal guest how often its CPU has left it.
fn tell_exits(counter: Option<&ExitCounter>, data: &mut [u8]) {
    data.fill(0xff);
    if let Some(Ok(exits)) = counter.map(ExitCounter::read) {
        let length = data.len().min(size_of::<u32>());
        data[..length].copy_from_slice(&exits.to_le_bytes()[..length]);
    }
}

/// Does what a bare-metal guest asks for; an event when that is its end.
fn serve(vcpu: &VcpuFd, request: Request) -> Option<Event> {
    let done = match request {
        Request::Halt => halt(vcpu),
        Request::Sleep(duration) => {
            if duration.is_zero() {
                std::thread::yield_now();
            } else {
                std::thread::sleep(duration);
            }
            enable_interrupts(vcpu)
        }
        Request::Exit(0) => return Some(Event::PowerOff),
        Request::Exit(status) => {
            return Some(Event::Crashed(format!("the bare-metal guest failed with status {status}")));
        }
    };
    done.err().map(|error| Event::Failed(format!("Failed to let a CPU rest: {error}")))
}

/// Exits the guest cannot continue from, without the borrow of the vCPU.
enum ExitKind {
    TripleFault,
    InternalError,
    FailedEntry(u64),
    Other(String),
}

impl ExitKind {
    fn of(exit: &VcpuExit<'_>) -> Self {
        match exit {
            VcpuExit::Shutdown => Self::TripleFault,
            VcpuExit::InternalError => Self::InternalError,
            VcpuExit::FailEntry(reason, _) => Self::FailedEntry(*reason),
            other => Self::Other(format!("{other:?}")),
        }
    }
}

fn explain(vcpu: &mut RunningVcpu, kind: ExitKind) -> Event {
    let place = place(vcpu);
    match kind {
        ExitKind::TripleFault => Event::Crashed(format!("triple fault{place}")),
        ExitKind::InternalError => {
            let (error, data) = vcpu.internal_error();
            Event::Crashed(format!(
                "KVM internal error: {}{place}; data {data:x?}",
                internal_error_name(error)
            ))
        }
        ExitKind::FailedEntry(reason) => {
            Event::Crashed(format!("the CPU refused to enter the guest (hardware reason {reason:#x}){place}"))
        }
        ExitKind::Other(exit) => Event::Failed(format!("unexpected exit from the guest: {exit}{place}")),
    }
}

/// Names of `KVM_INTERNAL_ERROR_*`.
fn internal_error_name(error: u32) -> String {
    match error {
        1 => "it could not emulate an instruction".to_owned(),
        2 => "two events at the same time".to_owned(),
        3 => "an exit while an event was delivered".to_owned(),
        4 => "an unexpected exit reason".to_owned(),
        other => format!("sub-error {other}"),
    }
}

fn place(vcpu: &mut RunningVcpu) -> String {
    let vcpu = vcpu.fd();
    match (vcpu.get_regs(), vcpu.get_sregs()) {
        (Ok(regs), Ok(sregs)) => {
            format!(
                " at rip {:#x} (rsp {:#x}, cr2 {:#x}, cr3 {:#x})",
                regs.rip, regs.rsp, sregs.cr2, sregs.cr3
            )
        }
        _ => String::new(),
    }
}
