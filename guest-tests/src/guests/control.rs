//! The harness's end of a guest's control line: one thread that owns the link, and handles to it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use guest_protocol::link::{Event as LinkEvent, Link};
use guest_protocol::message::{CommandId, Ending, Report, Request, Stream, decode, encode};

use super::task::Task;

/// How long the line's thread sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// What a command tells whoever waits for it.
#[derive(Debug)]
pub enum JobEvent {
    /// It printed something.
    Output(Stream, Vec<u8>),
    /// It ended.
    Ended(Ending),
    /// Nobody will ever know: the guest restarted or is gone.
    Lost(String),
}

/// Who a guest says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
}

/// What is known about the guest's life.
#[derive(Debug, Default)]
pub struct Status {
    /// How often an agent has come up in it.
    pub lives: u32,
    /// What the last one said.
    pub identity: Option<Identity>,
    /// Why the line has ended, once it has.
    pub gone: Option<String>,
}

#[derive(Default)]
struct Shared {
    status: Mutex<Status>,
    changed: Condvar,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

enum Event {
    Received(Vec<u8>),
    /// A socket has ended: which, and why.
    Closed(u32, String),
    /// The line goes on over another socket.
    Move(UnixStream),
    Start(Request, CommandId, Sender<JobEvent>),
    Send(Request),
}

/// A handle to the control line of one guest.
#[derive(Clone)]
pub struct Control {
    events: Sender<Event>,
    shared: Arc<Shared>,
    next_id: Arc<AtomicU32>,
}

impl Control {
    /// Takes over a connected socket that carries the guest's second serial port.
    pub fn start(socket: UnixStream) -> std::io::Result<Self> {
        let (events, inbox) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let reader = socket.try_clone()?;
        let from_socket = events.clone();
        thread::spawn(move || read_socket(reader, 0, &from_socket));
        let line = Line {
            socket,
            number: 0,
            events: events.clone(),
            link: Link::harness(),
            jobs: HashMap::new(),
            shared: Arc::clone(&shared),
            start: Instant::now(),
        };
        thread::spawn(move || line.run(&inbox));
        Ok(Self { events, shared, next_id: Arc::new(AtomicU32::new(1)) })
    }

    /// Starts a command and gives its name and what it will tell.
    pub fn exec(&self, task: &Task) -> (CommandId, Receiver<JobEvent>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel();
        let lost = sender.clone();
        if self.events.send(Event::Start(Request::Exec(task.exec(id)), id, sender)).is_err() {
            let _ = lost.send(JobEvent::Lost("Its control line is closed".into()));
        }
        (id, receiver)
    }

    /// Sends a request that has no answer.
    pub fn send(&self, request: Request) {
        let _ = self.events.send(Event::Send(request));
    }

    /// Goes on over another socket, of the VMM that the guest moves to. What still comes from the old one is heard.
    pub fn move_to(&self, socket: UnixStream) {
        let _ = self.events.send(Event::Move(socket));
    }

    /// The guest's life as known now.
    pub fn status(&self) -> MutexGuard<'_, Status> {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` holds or the time is over, and tells which.
    pub fn wait(&self, timeout: Duration, done: impl Fn(&Status) -> bool) -> bool {
        let (status, _) = self
            .shared
            .changed
            .wait_timeout_while(self.status(), timeout, |status| !done(status))
            .unwrap_or_else(PoisonError::into_inner);
        done(&status)
    }
}

fn read_socket(mut socket: UnixStream, number: u32, events: &Sender<Event>) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let event = match socket.read(&mut buffer) {
            Ok(0) => Event::Closed(number, "The VMM closed its control line".into()),
            Ok(length) => Event::Received(buffer[..length].to_vec()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => Event::Closed(number, format!("Its control line failed: {error}")),
        };
        let last = matches!(event, Event::Closed(..));
        if events.send(event).is_err() || last {
            return;
        }
    }
}

struct Line {
    socket: UnixStream,
    /// Which of the sockets so far it is.
    number: u32,
    events: Sender<Event>,
    link: Link,
    jobs: HashMap<CommandId, Sender<JobEvent>>,
    shared: Arc<Shared>,
    start: Instant,
}

impl Line {
    fn run(mut self, inbox: &Receiver<Event>) {
        loop {
            if let Err(error) = self.transmit() {
                return self.close(&format!("Its control line failed: {error}"));
            }
            let wait = self.link.deadline().map_or(IDLE, |due| due.saturating_sub(self.start.elapsed()));
            match inbox.recv_timeout(wait) {
                Ok(Event::Received(bytes)) => self.receive(&bytes),
                Ok(Event::Closed(number, reason)) if number == self.number => return self.close(&reason),
                Ok(Event::Closed(..)) => {}
                Ok(Event::Move(socket)) => {
                    if let Err(error) = self.move_to(socket) {
                        return self.close(&format!("Its control line failed: {error}"));
                    }
                }
                Ok(Event::Start(request, id, sender)) => {
                    self.jobs.insert(id, sender);
                    self.link.send(&encode(&request));
                }
                Ok(Event::Send(request)) => self.link.send(&encode(&request)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn move_to(&mut self, socket: UnixStream) -> std::io::Result<()> {
        let reader = socket.try_clone()?;
        (self.socket, self.number) = (socket, self.number + 1);
        let (number, events) = (self.number, self.events.clone());
        thread::spawn(move || read_socket(reader, number, &events));
        Ok(())
    }

    fn transmit(&mut self) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        self.link.transmit(self.start.elapsed(), &mut bytes);
        if !bytes.is_empty() {
            self.socket.write_all(&bytes)?;
            self.link.transmitted(self.start.elapsed());
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.link.receive(bytes);
        while let Some(event) = self.link.next_event() {
            match event {
                LinkEvent::Restarted => self.lose_jobs("It restarted"),
                LinkEvent::Message(message) => match decode(&message) {
                    Ok(report) => self.handle(report),
                    Err(error) => eprintln!("guest-tests: {error}"),
                },
            }
        }
    }

    fn handle(&mut self, report: Report) {
        match report {
            Report::Ready { host, kernel } => self.shared.update(|status| {
                status.lives += 1;
                status.identity = Some(Identity { host, kernel });
            }),
            Report::Output { id, stream, bytes } => {
                if let Some(job) = self.jobs.get(&id) {
                    let _ = job.send(JobEvent::Output(stream, bytes));
                }
            }
            Report::Ended { id, ending } => {
                if let Some(job) = self.jobs.remove(&id) {
                    let _ = job.send(JobEvent::Ended(ending));
                }
            }
        }
    }

    fn close(mut self, reason: &str) {
        self.lose_jobs(reason);
        self.shared.update(|status| status.gone = Some(reason.into()));
    }

    fn lose_jobs(&mut self, reason: &str) {
        for (_, job) in self.jobs.drain() {
            let _ = job.send(JobEvent::Lost(reason.into()));
        }
    }
}
