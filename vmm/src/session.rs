//! One `verbena run`: machines, one after the other, until the guest is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::api;
use crate::config::{BootConfig, OnReboot, SerialType, VmConfig};
use crate::error::{Error, Exit, Result};
use crate::inspect::Inspector;
use crate::kvm::{install_kick_handler, open_kvm};
use crate::machine::{Event, Events, HostSide, Machine, RunningMachine, Start};
use crate::serial::RawTerminal;
use crate::snapshot;

/// How long a guest may take to shut down after SIGTERM has pressed its power button.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);

/// Runs `config` to its end and says how the guest ended.
///
/// # Errors
///
/// When a machine cannot be built, fails, or its guest crashes.
pub fn run(config: &VmConfig) -> Result<Exit> {
    let kvm = open_kvm()?;
    install_kick_handler()?;
    allow_descriptors();
    let (sender, receiver) = channel();
    let events = Events::new(sender);
    watch_signals(events.clone())?;
    let host = HostSide::open(config, &events)?;
    let inspector = Arc::new(Inspector::new(config, events.clone()));
    let _api = config.api_socket.as_deref().map(|path| api::listen(path, inspector.clone())).transpose()?;
    // Built before the terminal changes, so that most errors are shown in a terminal as it was.
    let start = match &config.restore {
        Some(restore) => Start::Restore(Box::new(|ram| snapshot::load(restore, ram))),
        None => Start::Boot,
    };
    let mut machine = Machine::build(&kvm, config, &host, &events, start)?;
    let _terminal = if uses_stdio(config) {
        RawTerminal::enter().map_err(|e| Error::io("set up the terminal", e))?
    } else {
        None
    };
    loop {
        let views = machine.views();
        let running = machine.start()?;
        inspector.enter(views, running.controls());
        let event = watch(&running, &receiver);
        host.consoles.disconnect();
        inspector.leave();
        drop(running);
        match event {
            Event::PowerOff | Event::ExitKey | Event::Saved => return Ok(Exit::PoweredOff),
            Event::Reset if config.on_reboot == OnReboot::Exit => return Ok(Exit::Rebooted),
            Event::Reset if config.boot == BootConfig::Nothing => {
                tracing::warn!("The guest rebooted, and there is no --kernel to start");
                return Ok(Exit::Rebooted);
            }
            Event::Reset => {}
            Event::Crashed(cause) => return Err(Error::GuestCrashed(cause)),
            Event::Failed(cause) => return Err(Error::Failure(cause)),
            Event::Signal(_) => return Ok(Exit::Signalled),
        }
        // What the old machine still reported on its way out is not about the new one; what the operator wants is.
        let wanted: Vec<_> = receiver.try_iter().filter(Event::is_from_operator).collect();
        wanted.into_iter().for_each(|event| events.send(event));
        tracing::info!("Guest reset");
        machine = Machine::build(&kvm, config, &host, &events, Start::Boot)?;
    }
}

/// Waits for the event that ends `running`. SIGTERM and SIGHUP press the power button first.
fn watch(running: &RunningMachine, events: &Receiver<Event>) -> Event {
    let mut deadline: Option<Instant> = None;
    loop {
        let event = match deadline {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(Event::Signal(signal)) if matches!(signal, SIGTERM | SIGHUP) && deadline.is_none() => {
                tracing::info!(signal, "Asking the guest to shut down; a second signal ends it at once");
                running.press_power_button();
                deadline = Some(Instant::now() + SHUTDOWN_GRACE);
            }
            Ok(event) => return event,
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("The guest did not shut down in {} s", SHUTDOWN_GRACE.as_secs());
                return Event::Signal(SIGTERM);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Event::Failed("Nobody is left to report events".to_owned());
            }
        }
    }
}

/// Each interrupt vector and doorbell group takes a descriptor, and the usual soft limit is for programs with few.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::info!(%error, "Failed to raise the limit of open files");
    }
}

fn uses_stdio(config: &VmConfig) -> bool {
    config.serial.iter().flatten().any(|port| port.kind == SerialType::Stdio)
}

fn watch_signals(events: Events) -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map_err(|e| Error::io("watch for signals", e))?;
    Builder::new()
        .name("signals".to_owned())
        .spawn(move || signals.forever().for_each(|signal| events.send(Event::Signal(signal))))
        .map_err(|e| Error::io("start the signal thread", e))?;
    Ok(())
}
