//! Receiving a machine: the target's state machine with sockets, memory and a machine at its hands.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use device_model::ram::Ram;
use device_model::save::Records;
use host_io::tls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use vmm_api::{MigrationPhase, MigrationStatus};

use super::address::Address;
use super::board::Board;
use super::copy;
use super::ram::{Layout, Memory};
use super::random;
use super::stream::{Connection, Door, Lost, Stop};
use super::target::{Action, Event, Target};
use super::wire::{Damaged, Hello, Instance, MAX_CONNECTIONS, Message, Transfer, VERSION};
use crate::error::{Error, Result};

/// How long a source may show no sign of life before it is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one who has just connected may take to say who it is.
const GREETING: Duration = Duration::from_secs(3);
/// How long all connections for memory may take to be made.
const JOINING: Duration = Duration::from_secs(10);
/// How long is listened to a source before others are looked for: it may have had to connect anew.
const LISTENING: Duration = Duration::from_millis(500);

/// A place where a machine is received.
pub struct Reception {
    door: Door,
    instance: Instance,
    board: Arc<Board>,
    stop: Stop,
}

/// What it must have in common with the machine here.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Bytes of memory.
    pub memory: u64,
    /// CPUs.
    pub cpus: u8,
}

impl Reception {
    /// Listens at `at`. A signal that ends programs ends the wait.
    ///
    /// # Errors
    ///
    /// When the place or the files of TLS cannot be had.
    pub fn open(at: &Address, tls: Option<&tls::Files>, board: Arc<Board>) -> Result<Self> {
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::clone(&signalled))
                .map_err(|e| Error::io("watch for signals", e))?;
        }
        let door = Door::open(at, tls)?;
        match door.port() {
            Some(port) => tracing::info!(port, "Waiting for a machine at {at}"),
            None => tracing::info!("Waiting for a machine at {at}"),
        }
        board.begin(MigrationStatus { phase: MigrationPhase::Connecting, ..MigrationStatus::default() });
        let asked = Arc::clone(&board);
        let stop: Stop = Arc::new(move || {
            signalled.load(Ordering::Acquire) || asked.is_cancelled() || asked.resolved().is_some()
        });
        Ok(Self { door, instance: Instance(random()?), board, stop })
    }

    /// Waits for a machine that fits. Whoever comes with something else is sent away.
    ///
    /// # Errors
    ///
    /// When the wait is given up.
    pub fn wait(self, expected: Expected) -> Result<Offer> {
        loop {
            let Some(mut control) = self.door.accept(&self.stop, GREETING)? else { continue };
            match greet(&mut control, expected) {
                Ok((hello, memory)) => {
                    control.set_patience(PATIENCE);
                    let target = Target::new(hello.session, self.instance);
                    self.board.update(|status| status.phase = MigrationPhase::Copying);
                    let source = control.process();
                    return Ok(Offer {
                        reception: self,
                        control: Some(control),
                        hello,
                        memory,
                        target,
                        source,
                    });
                }
                Err(Lost::Stopped) => return Err(Lost::Stopped.into()),
                Err(lost) => {
                    tracing::warn!("Sent away who came with no machine for this place: {lost}");
                    let _ = control.send(&Message::Refused(lost.to_string()));
                }
            }
        }
    }
}

/// Hears who comes, and takes the memory that is handed over.
fn greet(control: &mut Connection, expected: Expected) -> Result<(Hello, Option<File>), Lost> {
    let refuse = |why: String| Err(Lost::Unfit(why));
    let Message::Hello(hello) = control.receive()? else {
        return Err(Damaged("it does not begin with a greeting").into());
    };
    if hello.version != VERSION {
        return refuse(format!("Version {} of the stream is not known here, only {VERSION}", hello.version));
    }
    if (hello.memory, hello.cpus) != (expected.memory, expected.cpus) {
        return refuse(format!(
            "The machine has {} bytes of memory and {} CPUs: give `verbena receive` the same options",
            hello.memory, hello.cpus
        ));
    }
    match hello.transfer {
        Transfer::HandOver => Ok((hello, Some(control.receive_file()?))),
        Transfer::Copy { connections: 1..=MAX_CONNECTIONS } => Ok((hello, None)),
        Transfer::Copy { .. } => Err(Damaged("it has too many connections").into()),
    }
}

/// A machine that wants to come.
pub struct Offer {
    reception: Reception,
    control: Option<Connection>,
    hello: Hello,
    memory: Option<File>,
    target: Target,
    /// The source's process, if it is on this host.
    source: Option<OwnedFd>,
}

impl Offer {
    /// The machine's memory, if it is handed over.
    pub fn take_memory(&mut self) -> Option<File> {
        self.memory.take()
    }

    /// Tells the source that it may begin, fills `ram`, and gives the rest.
    ///
    /// # Errors
    ///
    /// When the source is lost, has given up, or sends what makes no sense.
    pub fn fill(&mut self, ram: &Ram) -> Result<Records> {
        let reception = &self.reception;
        let control = self.control.as_mut().ok_or(Lost::Closed)?;
        control.send(&Message::Welcome(reception.instance))?;
        let records = match self.hello.transfer {
            Transfer::HandOver => control.receive()?,
            Transfer::Copy { connections } => copy_from(reception, &self.hello, connections, control, ram)?,
        };
        reception.board.update(|status| status.phase = MigrationPhase::Stopped);
        match records {
            Message::Records(records) => Ok(records),
            Message::Abort => Err(Error::Failure("The source keeps the machine".to_owned())),
            _ => Err(Lost::from(Damaged("it does not go on with a machine's state")).into()),
        }
    }

    /// Tells the source that the machine cannot come.
    pub fn refuse(mut self, error: &Error) {
        self.target.on(Event::Failed);
        if let Some(control) = &mut self.control {
            // It finds out anyway, but not why.
            let _ = control.send(&Message::Refused(error.chain()));
        }
    }

    /// Waits until the machine, which is complete, may run; `run` then lets it.
    ///
    /// # Errors
    ///
    /// When it never will.
    pub fn decide(mut self, run: impl FnOnce()) -> Result<()> {
        if let Some(control) = &mut self.control {
            control.set_patience(LISTENING);
        }
        let mut event = Event::Restored;
        loop {
            event = match self.target.on(event) {
                Action::Say(message) => {
                    let said = self.control.as_mut().map(|control| control.send(&message));
                    match said {
                        Some(Err(_)) => self.lost(),
                        Some(Ok(())) | None => self.listen(),
                    }
                }
                Action::Wait => self.listen(),
                Action::Run => {
                    self.check_source()?;
                    run();
                    self.reception.board.update(|status| status.phase = MigrationPhase::None);
                    return self.answer_later();
                }
                Action::GiveUp => return Err(Error::Failure("The source keeps the machine".to_owned())),
            };
        }
    }

    /// What happens next, while the machine could run.
    fn listen(&mut self) -> Event {
        loop {
            if let Some(side) = self.reception.board.resolved() {
                return Event::Resolve(side);
            }
            if (self.reception.stop)() {
                return Event::Failed;
            }
            match self.control.as_mut().map(Connection::receive) {
                Some(Ok(message)) => return Event::Heard(message),
                Some(Err(Lost::Silent(_) | Lost::Stopped)) | None => {}
                Some(Err(_)) => return self.lost(),
            }
            if let Some(message) = self.asked_again() {
                return Event::Heard(message);
            }
        }
    }

    /// What a source says that has come again, over a new connection.
    fn asked_again(&mut self) -> Option<Message> {
        let mut connection = self.reception.door.accept(&self.reception.stop, GREETING).ok()??;
        let message = connection.receive().ok().filter(|message| matches!(message, Message::Commit(_)))?;
        connection.set_patience(LISTENING);
        self.control = Some(connection);
        Some(message)
    }

    /// The source is not there any more. Over a network it comes again.
    fn lost(&mut self) -> Event {
        let certain = self.control.take().is_some_and(|control| control.is_local());
        if !certain {
            let reason = "The source may have given this machine the word to run and may not: it is waited for. If you \
                          know, say so with `verbena migrate --resolve source|target`";
            tracing::warn!("{reason}");
            self.reception.board.update(|status| {
                status.phase = MigrationPhase::Undecided;
                status.reason = Some(reason.to_owned());
            });
        }
        Event::Lost { certain }
    }

    /// Says that the machine runs. A source of this host that cannot be told must be dead: one that lives has taken the
    /// machine back.
    fn check_source(&mut self) -> Result<()> {
        let Some(control) = &mut self.control else { return Ok(()) };
        let told = control.send(&Message::Committed).is_ok();
        if told || !control.is_local() || self.source.as_ref().is_some_and(is_dead) {
            return Ok(());
        }
        Err(Error::Failure("The source has taken the machine back".to_owned()))
    }

    /// Goes on answering a source that has not heard, until it says that it has.
    fn answer_later(self) -> Result<()> {
        if matches!(self.reception.door, Door::Local(_)) {
            return Ok(());
        }
        let Self { reception, mut control, mut target, .. } = self;
        let answer = move || {
            loop {
                match control.take().map(|mut control| (control.receive(), control)) {
                    Some((Ok(Message::End), _)) => return,
                    Some((Ok(message), mut connection)) => {
                        // Who does not hear the answer asks again.
                        if let Action::Say(answer) = target.on(Event::Heard(message))
                            && connection.send(&answer).is_ok()
                        {
                            control = Some(connection);
                        }
                    }
                    Some((Err(_), _)) => {}
                    None => match reception.door.accept(&reception.stop, GREETING) {
                        Ok(next) => control = next,
                        Err(_) => return,
                    },
                }
            }
        };
        Builder::new()
            .name("receive".to_owned())
            .spawn(answer)
            .map_err(|e| Error::io("start a thread", e))?;
        Ok(())
    }
}

/// Whether a process has ended.
fn is_dead(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
}

/// Takes memory from all connections, and then what the first one says.
fn copy_from(
    reception: &Reception,
    hello: &Hello,
    count: u8,
    control: &mut Connection,
    ram: &Ram,
) -> Result<Message> {
    let mut connections = joined(reception, hello, count)?;
    let layout = Layout::of(ram);
    let memory = Memory { ram, layout: &layout };
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = connections
            .iter_mut()
            .map(|connection| scope.spawn(|| copy::receive(memory, connection, &received)))
            .collect();
        // It ends too if the source is lost: all its connections end then.
        let worked = workers.into_iter().map(|worker| worker.join());
        let failed = |_| Err(Error::Failure("A thread that receives memory panicked".to_owned()));
        worked.map(|worked| worked.unwrap_or_else(failed)).collect::<Result<Vec<()>>>()
    })?;
    reception.board.update(|status| status.sent_bytes = received.into_inner());
    Ok(control.receive()?)
}

/// The connections that memory comes over.
fn joined(reception: &Reception, hello: &Hello, count: u8) -> Result<Vec<Connection>> {
    let mut connections: Vec<Option<Connection>> = (0..count).map(|_| None).collect();
    let end = Instant::now() + JOINING;
    while connections.iter().any(Option::is_none) {
        if Instant::now() > end {
            return Err(Lost::Silent(JOINING).into());
        }
        let Some(mut connection) = reception.door.accept(&reception.stop, GREETING)? else { continue };
        if let Ok(Message::Join(session, index)) = connection.receive()
            && session == hello.session
            && let Some(place) = connections.get_mut(usize::from(index))
        {
            connection.set_patience(PATIENCE);
            *place = Some(connection);
        }
    }
    Ok(connections.into_iter().flatten().collect())
}
