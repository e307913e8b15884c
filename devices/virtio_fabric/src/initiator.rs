//! The initiator's engine: one device, over streams.
//!
//! No sockets and no clock: time is an argument, and what is to be done comes out of [`Initiator::poll`]. It connects,
//! brings the device up, attaches the virtqueues and carries buffers; a lost connection is made again and what was in
//! flight is sent again, if the target can resume, so that the driver sees a pause and no error. The target is not
//! trusted: any message that is not expected ends the connection, and nothing is allocated by a number it sent beyond
//! the lengths of messages that arrived.
//!
//! Not here yet: memory that is named by keys, immediate completions, slots, windows that change, authentication.

mod config;
mod configuration;
mod control;
mod discovery;
mod link;
mod queue;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::wire::{ConnectReply, Features, Redirect, Status};
use crate::{ConnId, Framing, GRACE, Message};
pub use config::Config;
pub use discovery::Discovery;

use configuration::Snapshot;
use control::{Current, Op};
use queue::Queue;

/// Names a buffer or a write of configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Writable bytes of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// The used length.
    pub used: u32,
    /// Bytes from the start.
    pub data: Bytes,
    /// The last bytes.
    pub tail: Bytes,
}

/// What the engine wants done, and what has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Open a connection: to the configured address, or where the device has moved.
    Open(ConnId, Option<Redirect>),
    /// Send a message.
    Send(ConnId, Message),
    /// What is sent and received from now on is in frames.
    Framed(ConnId, Framing),
    /// Close a connection. No input about it must follow.
    Close(ConnId),
    /// The device is there and buffers are carried.
    Ready {
        /// Virtio device id.
        device: u32,
        /// Virtio vendor id.
        vendor: u32,
        /// Device features agreed on.
        features: u64,
    },
    /// Connections are lost, and made again.
    Lost,
    /// They are there again.
    Resumed,
    /// A buffer is done, or why it failed. A failed one may or may not have been executed.
    Completed(Token, Result<Filled, Status>),
    /// The configuration is this: before `Ready`, and when it has changed.
    Config(Vec<u8>),
    /// Configuration is written, or not.
    ConfigWritten(Token, Result<(), Status>),
    /// The device status is another.
    DeviceStatus(u32),
    /// The target asks to leave; new buffers wait.
    Draining,
    /// The device is reset and comes up again.
    ResetDone,
    /// The end: on request, or because the device cannot be reached or used any more.
    Closed(Status),
}

/// Why a buffer cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No virtqueue of this number.
    #[error("No virtqueue {0}")]
    NoQueue(u16),
    /// Longer than agreed on.
    #[error("{0} bytes, more than the target takes")]
    TooLong(u64),
    /// The backlog is full.
    #[error("Too many buffers wait")]
    Full,
    /// Closed, or closing.
    #[error("The device is closed")]
    Closed,
}

/// Most bytes of a buffer for a target that does not say what it takes.
const BASE_XFER: u32 = (1 << 20) + 4096;

/// Where the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not started, or waiting until the next attempt.
    Waiting(Option<Duration>),
    /// From opening the control connection until all virtqueues are attached and the driver is OK.
    Setup,
    Live,
    Resetting,
    Closing,
    Dead,
}

/// What the target has granted.
#[derive(Clone, Copy, Debug)]
struct Granted {
    instance: u16,
    /// None from a target of the base profile.
    reply: Option<ConnectReply>,
}

/// What must be the same when a device is found again by a new session: device id, features, virtqueues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Former {
    device: u32,
    features: u64,
    queues: usize,
}

/// The engine.
#[derive(Debug)]
pub struct Initiator {
    config: Config,
    phase: Phase,
    /// The phase that follows when the session goes on after a loss.
    resume_as: Phase,
    /// Whether the session has carried buffers and is to be resumed.
    established: bool,
    granted: Option<Granted>,
    /// Most bytes of a buffer. It stays what it was while the target is lost.
    max_xfer: u32,
    /// The highest epoch used.
    epoch: u32,
    address: Option<Redirect>,
    control: Option<ConnId>,
    current: Option<Current>,
    ops: VecDeque<Op>,
    queues: Vec<Queue>,
    draining: bool,
    /// A reset was asked for when it could not begin.
    reset_wanted: bool,
    /// What the device was when its target lost the session.
    former: Option<Former>,
    snapshot: Snapshot,
    device: (u32, u32, u64),
    heard: Duration,
    spoken: Duration,
    lost_since: Option<Duration>,
    backoff: Duration,
    next_conn: u64,
    next_id: u16,
    next_token: u64,
    outputs: VecDeque<Output>,
}

impl Initiator {
    /// An initiator that has not begun.
    pub fn new(config: Config) -> Self {
        Initiator {
            queues: (0..config.queues).map(|_| Queue::default()).collect(),
            backoff: config.backoff,
            config,
            phase: Phase::Waiting(None),
            resume_as: Phase::Live,
            established: false,
            granted: None,
            max_xfer: BASE_XFER,
            epoch: 0,
            address: None,
            control: None,
            current: None,
            ops: VecDeque::new(),
            draining: false,
            reset_wanted: false,
            former: None,
            snapshot: Snapshot::default(),
            device: (0, 0, 0),
            heard: Duration::ZERO,
            spoken: Duration::ZERO,
            lost_since: None,
            next_conn: 0,
            next_id: 0,
            next_token: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Connects.
    pub fn start(&mut self, now: Duration) {
        if self.phase == Phase::Waiting(None) {
            self.lost_since = Some(now);
            self.open_control(now);
        }
    }

    /// The next thing to do, or that has happened.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes a buffer: its readable bytes, and how many are writable. It is captured: the driver may do with its memory
    /// what it likes until the buffer is completed, and never sees it executed twice.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn submit(
        &mut self,
        vq: u16,
        out: Bytes,
        in_length: u32,
        now: Duration,
    ) -> Result<Token, SubmitError> {
        if matches!(self.phase, Phase::Closing | Phase::Dead) {
            return Err(SubmitError::Closed);
        }
        let total = out.len() as u64 + u64::from(in_length);
        let backlog = self.config.backlog;
        let queue = self.queues.get_mut(usize::from(vq)).ok_or(SubmitError::NoQueue(vq))?;
        let short = queue.limits.is_none_or(|limits| {
            let inline = limits.max_out_descs > 0 || out.len() as u64 <= limits.max_out_inline.into();
            inline && total <= limits.max_xfer.into()
        });
        if !short || u32::try_from(total).is_err() {
            return Err(SubmitError::TooLong(total));
        }
        if queue.waiting.len() >= backlog {
            return Err(SubmitError::Full);
        }
        let token = Token(self.next_token);
        self.next_token += 1;
        queue.waiting.push_back(queue::Buffer { token, out, in_length, since: now, aborted: false });
        self.pump(vq, now);
        Ok(token)
    }

    /// Writes configuration, 1, 2, 4 or 8 bytes.
    pub fn write_config(&mut self, offset: u16, bytes: u8, value: u64, now: Duration) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        if self.phase == Phase::Dead {
            self.outputs.push_back(Output::ConfigWritten(token, Err(Status::State)));
        } else {
            self.ops.push_back(Op::WriteConfig { token, offset, bytes, value });
            self.next_op(now);
        }
        token
    }

    /// Most bytes of a buffer, readable and writable together; known from [`Output::Ready`] on.
    pub const fn max_xfer(&self) -> u32 {
        self.max_xfer
    }

    /// Sizes of the virtqueues; known from [`Output::Ready`] on.
    pub fn queue_sizes(&self) -> Vec<u16> {
        self.wanted().iter().map(|queue| queue.size()).collect()
    }

    /// Asks the target to cancel a buffer; it is completed in any case.
    pub fn abort(&mut self, token: Token, now: Duration) {
        for vq in 0..self.queues.len() {
            let queue = &mut self.queues[vq];
            if let Some(at) = queue.waiting.iter().position(|buffer| buffer.token == token) {
                queue.waiting.remove(at);
                return self.outputs.push_back(Output::Completed(token, Err(Status::Aborted)));
            }
            if let Some(id) = queue.id_of(token) {
                return self.request_abort(vq as u16, id, now);
            }
        }
    }

    /// Resets the device, and brings it up again with `driver_features` of those it offers. Buffers submitted so far are
    /// completed without success, at the latest with [`Output::ResetDone`]; those that are submitted from now on are for
    /// the device as it is then.
    pub fn reset(&mut self, driver_features: u64, now: Duration) {
        self.config.driver_features = driver_features;
        self.fail_waiting(Status::Reset);
        match self.phase {
            Phase::Closing | Phase::Dead => {}
            Phase::Live => self.begin_reset(now),
            // Without a session that is up, the reset waits for it.
            _ => self.reset_wanted = true,
        }
    }

    /// Takes no more buffers, waits for those that are in flight and disconnects.
    pub fn shutdown(&mut self, now: Duration) {
        match self.phase {
            Phase::Live => {
                self.phase = Phase::Closing;
                self.close_when_idle(now);
            }
            Phase::Closing | Phase::Dead => {}
            _ => self.die(Status::Success),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        if self.lost_since.is_some_and(|since| now >= since + self.config.loss_timeout) {
            return self.die(Status::Stale);
        }
        match self.phase {
            Phase::Dead | Phase::Waiting(None) => return,
            Phase::Waiting(Some(at)) => {
                if now >= at {
                    self.open_control(now);
                }
                return;
            }
            _ => {}
        }
        if self.control_deadline().is_some_and(|at| now >= at) {
            return self.lose_all(now);
        }
        if self.keepalive_at().is_some_and(|at| now >= at) {
            self.ops.push_back(Op::Keepalive);
            self.next_op(now);
        }
        for vq in 0..self.wanted().len() as u16 {
            self.tick_queue(vq, now);
        }
    }

    /// The virtqueues that are attached: those that the target has too.
    fn wanted(&self) -> &[Queue] {
        let reply = self.granted.and_then(|granted| granted.reply);
        let there = reply.map_or(usize::MAX, |reply| reply.max_vqs.into());
        &self.queues[..there.min(self.queues.len())]
    }

    /// When [`Initiator::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let lost = self.lost_since.map(|since| since + self.config.loss_timeout);
        match self.phase {
            Phase::Dead | Phase::Waiting(None) => None,
            Phase::Waiting(at) => at.min(lost),
            _ => {
                let queues = self.queues.iter().filter_map(|queue| queue.deadline(&self.config));
                let others = [lost, self.control_deadline(), self.keepalive_at()];
                queues.chain(others.into_iter().flatten()).min()
            }
        }
    }

    /// When the control connection is given up.
    fn control_deadline(&self) -> Option<Duration> {
        let command = self.current.as_ref().map(|current| {
            let opening = matches!(current.op, Op::Connect);
            current.since + if opening { self.config.connect_timeout } else { self.config.control_timeout }
        });
        let silence = self.keepalive().map(|keepalive| self.heard + keepalive + GRACE);
        command.into_iter().chain(silence).min()
    }

    /// When the next keep-alive is to be sent.
    fn keepalive_at(&self) -> Option<Duration> {
        let idle = matches!(self.phase, Phase::Live | Phase::Closing) && self.current.is_none();
        let base = self.granted.is_some_and(|granted| granted.reply.is_none());
        let pause = if base { Some(Duration::from_secs(5)) } else { self.keepalive().map(|time| time / 2) };
        pause.filter(|_| idle).map(|pause| self.spoken + pause)
    }

    /// The keep-alive time-out agreed on.
    fn keepalive(&self) -> Option<Duration> {
        let millis = self.granted?.reply?.kato_ms;
        (millis != 0).then(|| Duration::from_millis(millis.into()))
    }

    /// Transport features agreed on.
    fn features(&self) -> Features {
        self.granted.and_then(|granted| granted.reply).map_or(Features::empty(), |reply| reply.features)
    }
}
