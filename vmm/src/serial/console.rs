//! The host side of serial ports: one thread moves their input and output.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use device_model::doorbell::Bell;
use event_manager::{EventOps, EventSet, Events as IoEvents, MutEventSubscriber};
use vmm_sys_util::timerfd::TimerFd;

use super::endpoint::Endpoint;
use super::escape::{Action, EscapeFilter, HELP};
use super::output::OutputQueue;
use super::uart::Uart;
use crate::config::SerialConfig;
use crate::error::{Error, Result};
use crate::io::{EventBell, IoThread, Subscriber};
use crate::machine::{Event, Events};

/// Input read at once. More waits in the host until the guest has read it.
const INPUT_CHUNK: usize = 4096;
/// Output written at once.
const OUTPUT_CHUNK: usize = 16 << 10;
/// How soon to offer input again to a port that took none.
const RETRY: Duration = Duration::from_millis(20);
/// How long a reader may stand still at the end before the rest of the output is given up.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

type UartSlot = Arc<Mutex<Option<Arc<Uart>>>>;

/// The host side of one serial port; it outlives resets of the machine.
pub struct Console {
    /// `None` for a port connected to nothing.
    output: Option<Arc<OutputQueue>>,
    drained: Arc<EventBell>,
    uart: UartSlot,
}

impl Console {
    /// Makes the guest side for a new machine.
    pub fn make(&self, interrupt: EventBell) -> Arc<Uart> {
        Arc::new(Uart::new(interrupt, self.output.clone(), Arc::clone(&self.drained)))
    }

    /// Connects the guest side, in the state in which the machine starts.
    pub fn connect(&self, uart: &Arc<Uart>) {
        *self.uart.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(uart));
        if let Some(output) = &self.output {
            output.release_writers(false);
        }
        // Input may have waited for a machine.
        self.drained.ring();
    }
}

/// All serial ports of a run and the thread that serves them.
pub struct Consoles {
    ports: [Console; 2],
    thread: Option<IoThread>,
}

impl Consoles {
    /// Opens what the ports are connected to. The exit key and the like are reported to `events`.
    ///
    /// # Errors
    ///
    /// When a file or socket cannot be opened.
    pub fn open(configs: &[Option<SerialConfig>; 2], events: &Events) -> Result<Self> {
        let mut subscribers = Vec::new();
        let mut open = |config: &Option<SerialConfig>| open_port(config.as_ref(), events, &mut subscribers);
        let ports = [open(&configs[0])?, open(&configs[1])?];
        let thread =
            if subscribers.is_empty() { None } else { Some(IoThread::spawn("serial", subscribers)?) };
        Ok(Self { ports, thread })
    }

    /// The console of port `index`, 0 for COM1.
    pub fn port(&self, index: usize) -> &Console {
        &self.ports[index]
    }

    /// Takes the ports from a machine that ends: input waits for the next one, and no vCPU waits for a slow reader.
    pub fn disconnect(&self) {
        for port in &self.ports {
            *port.uart.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if let Some(output) = &port.output {
                output.release_writers(true);
            }
        }
    }

    /// Lets vCPUs that wait for a slow reader go; what they write from now on is lost.
    pub fn close(&self) {
        for output in self.ports.iter().filter_map(|port| port.output.as_ref()) {
            output.close();
        }
    }
}

impl Drop for Consoles {
    fn drop(&mut self) {
        self.close();
        for output in self.ports.iter().filter_map(|port| port.output.as_ref()) {
            output.wait_until_read(DRAIN_PATIENCE);
        }
        drop(self.thread.take());
    }
}

fn open_port(
    config: Option<&SerialConfig>,
    events: &Events,
    subscribers: &mut Vec<Subscriber>,
) -> Result<Console> {
    let bell = || EventBell::new().map(Arc::new).map_err(|e| Error::io("make an eventfd", e));
    let drained = bell()?;
    let uart = UartSlot::default();
    let endpoint = match config {
        Some(config) => Endpoint::open(config)?,
        None => None,
    };
    let Some(endpoint) = endpoint else { return Ok(Console { output: None, drained, uart }) };
    let pushed = bell()?;
    let output = Arc::new(OutputQueue::new(Arc::clone(&pushed), endpoint.has_reader()));
    let retry =
        TimerFd::new().map_err(|e| Error::io("make a timer", io::Error::from_raw_os_error(e.errno())))?;
    let filter = endpoint.is_terminal().then(EscapeFilter::default);
    subscribers.push(Box::new(Worker {
        endpoint,
        output: Arc::clone(&output),
        pushed,
        drained: Arc::clone(&drained),
        retry,
        uart: Arc::clone(&uart),
        pending: VecDeque::new(),
        filter,
        events: events.clone(),
        input_ended: false,
        blocked: false,
        watched: Vec::new(),
        retired: Vec::new(),
    }));
    Ok(Console { output: Some(output), drained, uart })
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pushed,
    Drained,
    Retry,
    Listener,
    Stream,
}

impl Source {
    const ALL: [Self; 5] = [Self::Pushed, Self::Drained, Self::Retry, Self::Listener, Self::Stream];
}

/// The console thread's part of one port.
struct Worker {
    endpoint: Endpoint,
    output: Arc<OutputQueue>,
    pushed: Arc<EventBell>,
    drained: Arc<EventBell>,
    retry: TimerFd,
    uart: UartSlot,
    /// Input the guest has had no room for yet.
    pending: VecDeque<u8>,
    filter: Option<EscapeFilter>,
    events: Events,
    input_ended: bool,
    /// Whether output waits for its reader.
    blocked: bool,
    /// Stream descriptors in the event loop, and what is waited for.
    watched: Vec<(RawFd, EventSet)>,
    /// Clients that have gone; closed when the event loop has forgotten them, since descriptor numbers are used again.
    retired: Vec<UnixStream>,
}

impl MutEventSubscriber for Worker {
    fn init(&mut self, ops: &mut EventOps) {
        let fixed = [
            (self.pushed.as_raw_fd(), Source::Pushed),
            (self.drained.as_raw_fd(), Source::Drained),
            (self.retry.as_raw_fd(), Source::Retry),
        ];
        for (fd, source) in fixed {
            self.report(ops.add(IoEvents::with_data_raw(fd, source as u32, EventSet::IN)));
        }
        if let Endpoint::Socket(socket) = &self.endpoint {
            let listener = socket.listener.as_raw_fd();
            self.report(ops.add(IoEvents::with_data_raw(listener, Source::Listener as u32, EventSet::IN)));
        }
        self.watch(ops);
    }

    fn process(&mut self, event: IoEvents, ops: &mut EventOps) {
        let source = Source::ALL.into_iter().find(|source| *source as u32 == event.data());
        match source {
            Some(Source::Pushed) => {
                self.pushed.clear();
                self.write_out();
            }
            Some(Source::Drained) => {
                self.drained.clear();
                self.feed();
            }
            Some(Source::Retry) => {
                let _ = self.retry.wait();
                self.feed();
            }
            Some(Source::Listener) => self.accept(),
            // An event of a client that has been replaced meanwhile is nobody's.
            Some(Source::Stream) if !self.is_watched(event.fd()) => {}
            Some(Source::Stream) => self.stream_ready(event.event_set()),
            None => {}
        }
        self.watch(ops);
    }
}

impl Worker {
    fn report(&self, result: event_manager::Result<()>) {
        if let Err(error) = result {
            tracing::warn!(%error, "Failed to watch a serial port's host side");
        }
    }

    /// Brings the event loop's list of stream descriptors up to date.
    fn watch(&mut self, ops: &mut EventOps) {
        let (input, output) = self.endpoint.fds();
        let mut wanted: Vec<(RawFd, EventSet)> = Vec::new();
        let mut want =
            |fd: Option<RawFd>, set: EventSet| match (fd, wanted.iter_mut().find(|w| Some(w.0) == fd)) {
                (Some(_), Some(found)) => found.1 |= set,
                (Some(fd), None) => wanted.push((fd, set)),
                (None, _) => {}
            };
        if !self.input_ended && self.pending.is_empty() {
            want(input, EventSet::IN);
        }
        if self.blocked {
            want(output, EventSet::OUT);
        }
        let stream = |fd, set| IoEvents::with_data_raw(fd, Source::Stream as u32, set);
        for (fd, set) in std::mem::take(&mut self.watched) {
            match wanted.iter().find(|(other, _)| *other == fd) {
                None => self.report(ops.remove(stream(fd, set))),
                Some((_, new)) if *new != set => self.report(ops.modify(stream(fd, *new))),
                Some(_) => {}
            }
            wanted.iter().filter(|(other, _)| *other == fd).for_each(|entry| self.watched.push(*entry));
        }
        self.retired.clear();
        let known: Vec<RawFd> = self.watched.iter().map(|(fd, _)| *fd).collect();
        for (fd, set) in wanted.into_iter().filter(|(fd, _)| !known.contains(fd)) {
            match ops.add(stream(fd, set)) {
                Ok(()) => self.watched.push((fd, set)),
                // Regular files and /dev/null cannot be waited for: they are always ready.
                Err(_) => self.read_unwatchable(),
            }
        }
    }

    fn is_watched(&self, fd: RawFd) -> bool {
        self.watched.iter().any(|(watched, _)| *watched == fd)
    }

    fn stream_ready(&mut self, set: EventSet) {
        if set.contains(EventSet::OUT) {
            self.write_out();
        }
        if set.contains(EventSet::IN) {
            self.read_in();
        } else if set.intersects(EventSet::HANG_UP | EventSet::ERROR) {
            self.hang_up();
        }
    }

    /// Takes a new client in place of the one before.
    fn accept(&mut self) {
        let Endpoint::Socket(socket) = &mut self.endpoint else { return };
        match socket.accept() {
            Ok(Some(former)) => {
                self.retired.extend(former);
                self.input_ended = false;
                let dropped = self.output.set_reader(true);
                if dropped > 0 {
                    tracing::warn!(dropped, "Serial output was lost while nobody was connected");
                }
                self.write_out();
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "Failed to accept a serial client"),
        }
    }

    fn hang_up(&mut self) {
        self.input_ended = true;
        self.blocked = false;
        if let Endpoint::Socket(socket) = &mut self.endpoint {
            self.retired.extend(socket.client.take());
            self.output.set_reader(false);
        }
    }

    fn write_out(&mut self) {
        self.blocked = false;
        let mut chunk = [0; OUTPUT_CHUNK];
        loop {
            let length = self.output.peek(&mut chunk);
            if length == 0 {
                return;
            }
            match self.endpoint.write(&chunk[..length]) {
                Ok(written) => self.output.consume(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = self.endpoint.has_reader();
                    return;
                }
                Err(error) => return self.output_failed(&error),
            }
        }
    }

    fn output_failed(&mut self, error: &io::Error) {
        if !matches!(self.endpoint, Endpoint::Socket(_)) {
            tracing::warn!(%error, "Serial output is lost from here on");
            self.output.close();
            self.output.consume(usize::MAX);
        }
        self.hang_up();
    }

    fn read_in(&mut self) {
        let mut buffer = [0; INPUT_CHUNK];
        match self.endpoint.read(&mut buffer) {
            Ok(0) => self.hang_up(),
            Ok(count) => self.take_input(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => self.hang_up(),
        }
    }

    /// Reads all there is: the end of a file comes without waiting.
    fn read_unwatchable(&mut self) {
        while !self.input_ended
            && matches!(self.endpoint, Endpoint::Stdio)
            && self.pending.len() < OutputQueue::CAPACITY
        {
            self.read_in();
        }
        self.input_ended = true;
    }

    fn take_input(&mut self, input: &[u8]) {
        let pending = &mut self.pending;
        let actions = match &mut self.filter {
            Some(filter) => filter.filter(input, |byte| pending.push_back(byte)),
            None => {
                pending.extend(input);
                Vec::new()
            }
        };
        for action in actions {
            match action {
                Action::Exit => self.events.send(Event::ExitKey),
                Action::Help => {
                    self.output.push(HELP.as_bytes());
                    self.write_out();
                }
            }
        }
        self.feed();
    }

    /// Offers pending input to the guest.
    fn feed(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let uart = self.uart.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Without a machine the input waits; connecting one rings `drained`.
        let Some(uart) = uart else { return };
        let taken = uart.offer(self.pending.make_contiguous()).unwrap_or(0);
        self.pending.drain(..taken);
        if taken == 0
            && let Err(error) = self.retry.reset(RETRY, None)
        {
            tracing::warn!(%error, "Failed to arm the serial input timer");
        }
    }
}
