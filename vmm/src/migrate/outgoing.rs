//! Moving a machine away: the source's state machine with sockets, memory and a machine at its hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use host_io::tls;
use virtio::block::RawImage;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_api::{Migrate, MigrationPhase, MigrationStatus, TlsFiles};

use super::address::Address;
use super::board::Board;
use super::copy;
use super::ram::{Layout, Memory, PageSet};
use super::rounds::{Round, Rounds, Verdict};
use super::source::{Action, Event, Source};
use super::stream::{Connection, Lost, Stop};
use super::wire::{Hello, MAX_CONNECTIONS, Message, PAGE, Session, Transfer, VERSION};
use super::{Origin, random};
use crate::error::{Error, Result};
use crate::machine;

/// How long a target may show no sign of life while the machine runs here.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same while the machine stands still.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a target that may have the machine is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(200);
/// How long a target that has given up may keep the disk images.
const RECLAIM_TIME: Duration = Duration::from_secs(2);

/// A migration that was begun. Dropping it gives it up and waits for that.
pub struct Migration {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

impl Migration {
    /// Begins to move `origin`'s machine.
    ///
    /// # Errors
    ///
    /// When what is wanted makes no sense, or the machine cannot be moved.
    pub fn begin(origin: Arc<Origin>, wanted: &Migrate, board: Arc<Board>) -> Result<Self> {
        let job = Job::new(&origin, wanted)?;
        board.begin(MigrationStatus {
            phase: MigrationPhase::Connecting,
            memory_bytes: origin.memory,
            ..MigrationStatus::default()
        });
        let driver = Driver::new(origin, job, Arc::clone(&board))?;
        let thread = Builder::new()
            .name("migrate".to_owned())
            .spawn(move || driver.run())
            .map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { board, thread: Some(thread) })
    }

    /// Whether it is under way.
    pub fn is_live(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Migration {
    fn drop(&mut self) {
        self.board.quit();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("The thread of a migration panicked");
        }
    }
}

/// What is wanted, checked.
struct Job {
    to: Address,
    tls: Option<tls::Client>,
    limit: Duration,
    deadline: Option<Instant>,
    connections: u8,
    may_brake: bool,
    hand_over: bool,
}

fn files(of: &TlsFiles) -> tls::Files {
    let TlsFiles { cert, key, ca, name } = of.clone();
    tls::Files { cert, key, ca, name }
}

impl Job {
    fn new(origin: &Origin, wanted: &Migrate) -> Result<Self> {
        if let Some(obstacle) = origin.obstacles.first() {
            return Err(Error::Usage(format!("This machine cannot be moved: {obstacle}")));
        }
        if origin.controls.is_paused() {
            return Err(Error::Usage("The machine is paused: resume it first".to_owned()));
        }
        if !(1..=MAX_CONNECTIONS).contains(&wanted.connections) {
            return Err(Error::Usage(format!("Give 1 to {MAX_CONNECTIONS} connections")));
        }
        let to: Address =
            wanted.to.parse().map_err(|e: super::ParseAddressError| Error::Usage(e.to_string()))?;
        Ok(Self {
            tls: to.secured(wanted.tls.as_ref().map(files).as_ref(), tls::Client::new)?,
            hand_over: matches!(to, Address::Unix(_)) && !wanted.copy,
            to,
            limit: Duration::from_millis(wanted.downtime_limit_ms),
            deadline: wanted.timeout_s.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            connections: wanted.connections,
            may_brake: wanted.auto_converge,
        })
    }
}

/// Carries out what the state machine says.
struct Driver {
    origin: Arc<Origin>,
    job: Job,
    board: Arc<Board>,
    session: Session,
    source: Source,
    /// Whether the target may have the machine, so that nothing but a decision ends the wait.
    committing: Arc<AtomicBool>,
    control: Option<Connection>,
    data: Vec<Connection>,
    layout: Layout,
    /// What has yet to be copied.
    pending: PageSet,
    rounds: Rounds,
    brake: u8,
    begun: Instant,
    stopped: Option<Instant>,
    /// Why it fails, if it does.
    reason: Option<String>,
}

impl Driver {
    fn new(origin: Arc<Origin>, job: Job, board: Arc<Board>) -> Result<Self> {
        let session = Session(random()?);
        let layout = Layout::of(origin.controls.vm().ram());
        Ok(Self {
            source: Source::new(session, job.hand_over),
            session,
            committing: Arc::default(),
            control: None,
            data: Vec::new(),
            pending: PageSet::all(&layout),
            layout,
            rounds: Rounds::new(job.limit, job.may_brake),
            brake: 0,
            begun: Instant::now(),
            stopped: None,
            reason: None,
            origin,
            job,
            board,
        })
    }

    fn run(mut self) {
        let greeted = self.greet();
        let mut event = self.heard(greeted);
        loop {
            event = match self.source.on(event) {
                Action::Copy => self.round(),
                Action::Stop => self.stop(),
                Action::SendRest => self.send_rest(),
                Action::Commit(session) => self.commit(session),
                Action::AskAgain(session) => self.ask_again(session),
                Action::GoOn => return self.go_on(),
                Action::Leave => return self.leave(),
                Action::Wait => return,
            };
            if self.committing.load(Ordering::Acquire) && self.board.has_quit() {
                return;
            }
        }
    }

    /// Asks the target, and hands memory over if it may have it.
    fn greet(&mut self) -> Result<Message, Lost> {
        let transfer = match self.job.hand_over {
            true => Transfer::HandOver,
            false => Transfer::Copy { connections: self.job.connections },
        };
        let hello = Hello {
            version: VERSION,
            session: self.session,
            memory: self.origin.memory,
            cpus: self.origin.cpus,
            transfer,
        };
        let mut control =
            Connection::dial(&self.job.to, self.job.tls.as_ref(), self.stop_waiting(), PATIENCE)?;
        control.send(&Message::Hello(hello))?;
        if self.job.hand_over {
            let ram = self.origin.controls.vm().ram();
            let file = ram.iter().next().and_then(GuestMemoryRegion::file_offset);
            control.send_file(file.ok_or_else(no_file)?.file())?;
        }
        let answer = control.receive()?;
        if matches!(answer, Message::Welcome(_)) && !self.job.hand_over {
            self.data = (0..self.job.connections).map(|index| self.join(index)).collect::<Result<_, _>>()?;
        }
        self.control = Some(control);
        Ok(answer)
    }

    fn join(&self, index: u8) -> Result<Connection, Lost> {
        let mut connection =
            Connection::dial(&self.job.to, self.job.tls.as_ref(), self.stop_waiting(), PATIENCE)?;
        connection.send(&Message::Join(self.session, index))?;
        Ok(connection)
    }

    /// When connections are not to be waited for any more.
    fn stop_waiting(&self) -> Stop {
        let (board, deadline) = (Arc::clone(&self.board), self.job.deadline);
        let committing = Arc::clone(&self.committing);
        Arc::new(move || {
            if committing.load(Ordering::Acquire) {
                return board.has_quit() || board.resolved().is_some();
            }
            board.is_cancelled() || deadline.is_some_and(|deadline| Instant::now() > deadline)
        })
    }

    fn round(&mut self) -> Event {
        match self.copy_round() {
            Ok(enough) => Event::RoundOver { enough },
            Err(error) => self.failed(&error),
        }
    }

    /// Copies what is pending; returns whether the rest is little enough.
    fn copy_round(&mut self) -> Result<bool> {
        let controls = Arc::clone(&self.origin.controls);
        let first = self.board.status().rounds == 0;
        if first {
            controls.vm().log_dirty(true)?;
            // All of it is pending anyway.
            PageSet::take_dirty(controls.vm(), &self.layout)?;
        }
        let pages = self.pending.count();
        self.board.update(|status| {
            status.phase = MigrationPhase::Copying;
            status.rounds += 1;
            status.remaining_bytes = pages * PAGE as u64;
        });
        let start = Instant::now();
        let done = AtomicBool::new(false);
        let brake = self.brake;
        let sent = thread::scope(|scope| {
            scope.spawn(|| copy::hold_back(&controls, brake, &done));
            let sent = self.send_pending(first);
            done.store(true, Ordering::Release);
            sent
        })?;
        let took = start.elapsed();
        self.pending = PageSet::take_dirty(controls.vm(), &self.layout)?;
        let page = PAGE as u64;
        Ok(self.judge(&Round { copied: pages * page, sent, took, dirty: self.pending.count() * page }))
    }

    fn judge(&mut self, round: &Round) -> bool {
        let verdict = self.rounds.judge(round);
        if let Verdict::Again(brake) = verdict {
            self.brake = brake;
        }
        let expected = self.rounds.expected(round.dirty);
        self.board.update(|status| {
            status.remaining_bytes = round.dirty;
            status.sent_per_s = round.rate();
            status.dirtied_per_s = round.dirty_rate();
            status.expected_downtime_us = micros(expected);
            status.held_back_percent = self.brake;
        });
        verdict == Verdict::Stop
    }

    fn send_pending(&mut self, skip_zeros: bool) -> Result<u64> {
        let left = AtomicU64::new(self.pending.count());
        let memory = Memory { ram: self.origin.controls.vm().ram(), layout: &self.layout };
        let sent = copy::send(memory, &self.pending, &mut self.data, skip_zeros, &left)?;
        self.board.update(|status| status.sent_bytes += sent);
        Ok(sent)
    }

    fn stop(&mut self) -> Event {
        // Most of what disks have to write, so that little is left when the machine stands still.
        if let Err(error) = self.origin.disks.iter().try_for_each(|disk| disk.sync()) {
            return self.failed(&Error::io("write a disk image back", error));
        }
        self.board.update(|status| status.phase = MigrationPhase::Stopped);
        self.stopped = Some(Instant::now());
        match self.origin.controls.pause() {
            Ok(()) => Event::Stopped,
            Err(error) => self.failed(&error),
        }
    }

    fn send_rest(&mut self) -> Event {
        let sent = self.send_last();
        self.heard(sent)
    }

    /// Sends what is left of memory and everything else, and waits for the target to be ready.
    fn send_last(&mut self) -> Result<Message, Lost> {
        let failed = |error: Error| Lost::Unfit(error.chain());
        if !self.job.hand_over {
            let dirty = PageSet::take_dirty(self.origin.controls.vm(), &self.layout).map_err(failed)?;
            self.pending.add(&dirty);
            self.data.iter_mut().for_each(|connection| connection.set_patience(SHORT_PATIENCE));
            self.send_pending(false).map_err(failed)?;
            self.data.iter_mut().try_for_each(|connection| connection.send(&Message::End))?;
        }
        let records = self.origin.controls.save().map_err(failed)?;
        // Only now, and before the target is told: from here on it may take them.
        self.origin.disks.iter().try_for_each(|disk| disk.release())?;
        let control = self.control.as_mut().ok_or(Lost::Closed)?;
        control.set_patience(SHORT_PATIENCE);
        control.send(&Message::Records(records))?;
        control.receive()
    }

    fn commit(&mut self, session: Session) -> Event {
        self.origin.controls.give_away();
        self.committing.store(true, Ordering::Release);
        let Some(control) = &mut self.control else { return Event::Lost };
        let answer = control.send(&Message::Commit(session)).and_then(|()| control.receive());
        self.answer_to_commit(answer)
    }

    /// What the target's answer, or its absence, says about the machine.
    fn answer_to_commit(&mut self, answer: Result<Message, Lost>) -> Event {
        let local = self.control.as_ref().is_some_and(Connection::is_local);
        match answer {
            Ok(message) => Event::Heard(message),
            Err(Lost::Closed) if local => Event::Died,
            Err(lost) => {
                if let Some(decided) = self.decided() {
                    return decided;
                }
                self.undecided(&lost);
                Event::Lost
            }
        }
    }

    /// What the operator has decided. A target on this host is asked a last time, in a way that leaves it no answer to
    /// give later.
    fn decided(&mut self) -> Option<Event> {
        let side = self.board.resolved()?;
        let last = self.control.as_mut().and_then(Connection::last_word);
        Some(last.map_or(Event::Resolve(side), Event::Heard))
    }

    fn undecided(&self, lost: &Lost) {
        let reason = format!(
            "Whether the machine runs at {} is not known ({lost}). It is asked again and again, and the machine stands \
             still. If you know, say so: `verbena migrate --resolve target` ends it here, `--resolve source` lets it go \
             on here",
            self.job.to
        );
        let news = self.board.status().phase != MigrationPhase::Undecided;
        if news {
            tracing::warn!("{reason}");
        }
        self.board.update(|status| {
            status.phase = MigrationPhase::Undecided;
            status.reason = Some(reason);
        });
    }

    /// Asks once more. On one host the connection is the only one that can say something, so it is listened to on.
    fn ask_again(&mut self, session: Session) -> Event {
        if let Some(decided) = self.decided() {
            return decided;
        }
        if let Some(control) = self.control.as_mut().filter(|control| control.is_local()) {
            let answer = control.receive();
            return self.answer_to_commit(answer);
        }
        thread::sleep(ASK_PAUSE);
        let answer =
            Connection::dial(&self.job.to, self.job.tls.as_ref(), self.stop_waiting(), SHORT_PATIENCE)
                .and_then(|again| {
                    let again = self.control.insert(again);
                    again.send(&Message::Commit(session))?;
                    again.receive()
                });
        self.answer_to_commit(answer)
    }

    /// Lets the machine go on here as if nothing had happened.
    fn go_on(mut self) {
        if let Some(mut control) = self.control.take() {
            // A target that cannot be told finds out by the end of the connection.
            let _ = control.send(&Message::Abort);
        }
        self.data.clear();
        self.origin.disks.iter().for_each(|disk| reclaim(disk));
        self.origin.controls.take_back();
        if let Err(error) = self.origin.controls.vm().log_dirty(false) {
            tracing::warn!("{}", error.chain());
        }
        let reason = self.reason.unwrap_or_else(|| "The target did not keep to the protocol".to_owned());
        tracing::warn!("The machine was not moved and goes on here: {reason}");
        let total = micros(self.begun.elapsed());
        self.board.update(|status| {
            status.phase = MigrationPhase::Failed;
            status.total_us = Some(total);
            status.reason = Some(reason);
        });
    }

    fn leave(mut self) {
        // The target need not wait for questions any more; if it does not hear that, it does.
        let _ = self.control.as_mut().map(|control| control.send(&Message::End));
        let downtime = self.stopped.map(|stopped| micros(stopped.elapsed()));
        let total = micros(self.begun.elapsed());
        tracing::info!(downtime_us = downtime, "The machine goes on at {}", self.job.to);
        self.board.update(|status| {
            status.phase = MigrationPhase::Completed;
            (status.downtime_us, status.total_us, status.reason) = (downtime, Some(total), None);
            status.remaining_bytes = 0;
        });
        self.origin.events.send(machine::Event::Moved);
    }

    /// What was heard, or why nothing was.
    fn heard(&mut self, heard: Result<Message, Lost>) -> Event {
        match heard {
            Ok(Message::Refused(why)) => {
                self.reason = Some(format!("{} refuses the machine: {why}", self.job.to));
                Event::Failed
            }
            Ok(message) => Event::Heard(message),
            Err(lost) => self.failed(&lost.into()),
        }
    }

    fn failed(&mut self, error: &Error) -> Event {
        self.reason = Some(match self.board.is_cancelled() {
            true => "It was cancelled".to_owned(),
            false if self.job.deadline.is_some_and(|deadline| Instant::now() > deadline) => {
                "It took longer than it may".to_owned()
            }
            false => format!("{}: {}", self.job.to, error.chain()),
        });
        Event::Failed
    }
}

/// Takes a disk image back. The target lets go of it when it hears, or does not hear, of the machine.
fn reclaim(disk: &RawImage) {
    let end = Instant::now() + RECLAIM_TIME;
    while let Err(error) = disk.lock() {
        if Instant::now() > end {
            return tracing::error!("{error}; the machine goes on without the lock");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn no_file() -> Lost {
    Lost::Unfit("The machine's memory is no file".to_owned())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
