//! One `verbena run`: machines, one after the other, until the guest is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use host_io::tls;
use kvm_ioctls::Kvm;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::api;
use crate::config::{BootConfig, OnReboot, SerialType, VmConfig};
use crate::error::{Error, Exit, Result};
use crate::inspect::{Inspector, SlotView};
use crate::io::IoThread;
use crate::kvm::{install_kick_handler, open_kvm};
use crate::machine::{Event, Events, HostSide, Images, Machine, RunningMachine, Start};
use crate::migrate::{Address, Expected, Origin, Reception};
use crate::nic::announce;
use crate::serial::RawTerminal;
use crate::snapshot;

/// How long a guest may take to shut down after SIGTERM has pressed its power button.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);

/// How long the API goes on answering after a machine has moved, if nobody asks what became of it.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Runs `config` to its end and says how the guest ended.
///
/// # Errors
///
/// When a machine cannot be built, fails, or its guest crashes.
pub fn run(config: &VmConfig) -> Result<Exit> {
    let session = Session::open(config, Images::Ours)?;
    // Built before the terminal changes, so that most errors are shown in a terminal as it was.
    let machine = match &config.restore {
        Some(restore) => session.build(Start::Restore(Box::new(|ram| snapshot::load(restore, ram))))?,
        None => session.build(Start::Boot)?,
    };
    let _terminal = take_terminal(config)?;
    let views = machine.views();
    let running = machine.start()?;
    if config.restore.is_some() {
        session.announce(&views);
    }
    session.live(running, views)
}

/// Waits at `at` for a machine that comes from elsewhere, and runs it to its end.
///
/// # Errors
///
/// When it does not come, or as [`run`].
pub fn receive(config: &VmConfig, at: &Address, tls: Option<&tls::Files>) -> Result<Exit> {
    let session = Session::open(config, Images::Theirs)?;
    let reception = Reception::open(at, tls, Arc::clone(session.inspector.board()))?;
    let mut offer = reception.wait(Expected { memory: config.memory.size.0, cpus: config.cpus })?;
    let memory = offer.take_memory();
    let built = session.build(Start::Receive(memory, Box::new(|ram| offer.fill(ram))));
    let started = built.and_then(|machine| Ok((machine.views(), machine.start()?)));
    let (views, running) = match started {
        Ok(started) => started,
        Err(error) => {
            offer.refuse(&error);
            return Err(error);
        }
    };
    let _terminal = take_terminal(config)?;
    offer.decide(|| {
        session.announce(&views);
        running.controls().resume();
    })?;
    tracing::info!("The machine runs here");
    session.live(running, views)
}

/// What machines of one run have in common.
struct Session<'a> {
    config: &'a VmConfig,
    kvm: Kvm,
    events: Events,
    receiver: Receiver<Event>,
    host: HostSide,
    inspector: Arc<Inspector>,
    _api: Option<IoThread>,
}

impl<'a> Session<'a> {
    fn open(config: &'a VmConfig, images: Images) -> Result<Self> {
        let kvm = open_kvm()?;
        install_kick_handler()?;
        allow_descriptors();
        let (sender, receiver) = channel();
        let events = Events::new(sender);
        watch_signals(events.clone())?;
        let host = HostSide::open(config, &events, images)?;
        let inspector = Arc::new(Inspector::new(config, events.clone()));
        let api =
            config.api_socket.as_deref().map(|path| api::listen(path, inspector.clone())).transpose()?;
        Ok(Self { config, kvm, events, receiver, host, inspector, _api: api })
    }

    fn build(&self, start: Start<'_>) -> Result<Machine> {
        Machine::build(&self.kvm, self.config, &self.host, &self.events, start)
    }

    /// Tells the network where the machine is now.
    fn announce(&self, views: &[SlotView]) {
        announce(&self.host.ports, views);
    }

    /// Runs machine after machine until the guest is done.
    fn live(self, mut running: RunningMachine, mut views: Vec<SlotView>) -> Result<Exit> {
        loop {
            let origin = Origin::new(self.config, &self.host, running.controls(), self.events.clone());
            self.inspector.enter(views, Arc::new(origin));
            let event = watch(&running, &self.receiver);
            self.host.consoles.disconnect();
            self.inspector.leave();
            drop(running);
            if let Some(end) = self.end(event) {
                return end;
            }
            // What the old machine still reported on its way out is not about the new one; what the operator wants is.
            let wanted: Vec<_> = self.receiver.try_iter().filter(Event::is_from_operator).collect();
            wanted.into_iter().for_each(|event| self.events.send(event));
            tracing::info!("Guest reset");
            let machine = self.build(Start::Boot)?;
            views = machine.views();
            running = machine.start()?;
        }
    }

    /// What a run ends with after `event`; `None` if it goes on with a new machine.
    fn end(&self, event: Event) -> Option<Result<Exit>> {
        Some(match event {
            Event::PowerOff | Event::ExitKey | Event::Saved => Ok(Exit::PoweredOff),
            Event::Moved => {
                self.answer_the_last();
                Ok(Exit::PoweredOff)
            }
            Event::Reset if self.config.on_reboot == OnReboot::Exit => Ok(Exit::Rebooted),
            Event::Reset if self.config.boot == BootConfig::Nothing => {
                tracing::warn!("The guest rebooted, and there is no --kernel to start");
                Ok(Exit::Rebooted)
            }
            Event::Reset => return None,
            Event::Crashed(cause) => Err(Error::GuestCrashed(cause)),
            Event::Failed(cause) => Err(Error::Failure(cause)),
            Event::Signal(_) => Ok(Exit::Signalled),
        })
    }

    /// Gives whoever waits for the end of a migration the time to hear of it.
    fn answer_the_last(&self) {
        let end = Instant::now() + LAST_ANSWERS;
        while self.config.api_socket.is_some() && !self.inspector.board().was_told() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn take_terminal(config: &VmConfig) -> Result<Option<RawTerminal>> {
    match uses_stdio(config) {
        true => RawTerminal::enter().map_err(|e| Error::io("set up the terminal", e)),
        false => Ok(None),
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
