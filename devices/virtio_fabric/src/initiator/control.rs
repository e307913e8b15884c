//! The control queue: bringing the device up, one command at a time, and what comes up while it lives.

use std::time::Duration;

use bytes::Bytes;

use super::queue::Link;
use super::{BASE_XFER, Former, Granted, Initiator, Output, Phase, Token};
use crate::wire::{
    CONNECT_BODY, CONTROL_QUEUE_SIZE, Command, Completion, ConnectBody, ConnectFlags, ConnectReply,
    EVENT_IDS, Event, Extension, Features, MAX_CONFIG, NEW_INSTANCE, Opcode, Redirect, Reply, ReplyFlags,
    Request, Status, VERSION,
};
use crate::{ConnId, Framing, Message, status};

/// VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;
/// Features of rings and platforms, which concern the driver's side alone: INDIRECT_DESC, EVENT_IDX, ACCESS_PLATFORM,
/// RING_PACKED, ORDER_PLATFORM, SR_IOV, NOTIFICATION_DATA, NOTIF_CONFIG_DATA, ADMIN_VQ.
const LOCAL: u64 = 1 << 28 | 1 << 29 | 1 << 33 | 1 << 34 | 1 << 36 | 1 << 37 | 1 << 38 | 1 << 39 | 1 << 41;

/// What a control command is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Connect,
    DeviceId,
    VendorId,
    Driver,
    DeviceFeatures,
    DriverFeatures,
    FeaturesOk,
    CheckFeatures,
    DriverOk,
    WholeConfig,
    PartConfig { offset: u16, bytes: u8 },
    Keepalive,
    Reset,
    Detach,
    Disconnect,
    Abort { vq: u16, id: u16 },
    WriteConfig { token: Token, offset: u16, bytes: u8, value: u64 },
}

/// The control command in flight.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub id: u16,
    pub op: Op,
    pub since: Duration,
}

impl Op {
    pub fn request(&self, driver_features: u64) -> Request {
        let extended = |opcode, arg0, arg1| Request::Control { opcode, body: 0, arg0, arg1 };
        match *self {
            Op::Connect => Request::Connect {
                instance: NEW_INSTANCE,
                vq: 0,
                body: CONNECT_BODY as u32,
                size: CONTROL_QUEUE_SIZE,
            },
            Op::DeviceId => Request::Plain(Opcode::GetDeviceId),
            Op::VendorId => Request::Plain(Opcode::GetVendorId),
            Op::Driver => Request::SetStatus(status::DRIVER),
            Op::DeviceFeatures => Request::GetFeature(Opcode::GetDeviceFeature, 0),
            Op::DriverFeatures => Request::SetFeature(Opcode::SetDriverFeature, 0, driver_features),
            Op::FeaturesOk => Request::SetStatus(status::DRIVER | status::FEATURES_OK),
            Op::CheckFeatures => Request::Plain(Opcode::GetStatus),
            Op::DriverOk => Request::SetStatus(status::DRIVER | status::FEATURES_OK | status::DRIVER_OK),
            Op::WholeConfig => extended(Opcode::GetConfigBulk, 0, MAX_CONFIG as u32),
            Op::PartConfig { offset, bytes } => Request::GetConfig { offset, bytes },
            Op::Keepalive => Request::Plain(Opcode::Keepalive),
            Op::Reset => Request::Plain(Opcode::ResetDevice),
            Op::Detach => extended(Opcode::SessionDetach, u32::MAX, 0),
            Op::Disconnect => Request::Plain(Opcode::Disconnect),
            Op::Abort { vq, id } => extended(Opcode::Abort, vq.into(), id.into()),
            Op::WriteConfig { offset, bytes, value, .. } => Request::SetConfig { offset, bytes, value },
        }
    }
}

impl Initiator {
    /// The body of Connect.
    pub(super) fn connect_body(&self, flags: ConnectFlags) -> [u8; CONNECT_BODY] {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let reply = self.granted.and_then(|granted| granted.reply);
        let extension = Extension {
            ver_min: VERSION,
            ver_max: VERSION,
            flags,
            kato_ms: millis(self.config.keepalive),
            features: self.config.features,
            session_id: reply.map_or([0; 16], |reply| reply.session_id),
            epoch: self.epoch,
            resume_ms: millis(self.config.session_life),
            host_id: self.config.host_id,
            max_in_msg: self.config.receives,
            ..Extension::default()
        };
        let offered = self.config.features.contains(Features::BASE);
        ConnectBody {
            initiator: self.config.initiator.clone(),
            target: self.config.target.clone(),
            extension: offered.then_some(extension),
        }
        .emit()
    }

    /// The control connection is open: Connect.
    pub(super) fn connect_control(&mut self, now: Duration) {
        if !self.established {
            self.granted = None;
        }
        let flags = if self.established { ConnectFlags::RESUME } else { ConnectFlags::empty() };
        let body = self.connect_body(flags);
        self.issue(Op::Connect, &body, now);
    }

    pub(super) fn issue(&mut self, op: Op, body: &[u8], now: Duration) {
        let Some(conn) = self.control else { return };
        let command = Command { id: self.next_id, request: op.request(self.device.2) };
        self.next_id = (self.next_id + 1) % EVENT_IDS;
        let body = Bytes::copy_from_slice(body);
        self.outputs.push_back(Output::Send(conn, Message { header: command.emit(), body }));
        self.current = Some(Current { id: command.id, op, since: now });
        self.spoken = now;
    }

    /// Sends the next control command, if none is in flight and the device is up.
    pub(super) fn next_op(&mut self, now: Duration) {
        let up = matches!(self.phase, Phase::Live | Phase::Resetting | Phase::Closing);
        if up
            && self.current.is_none()
            && let Some(op) = self.ops.pop_front()
        {
            self.issue(op, &[], now);
        }
    }

    /// A message on the control queue. An error ends the connection.
    pub(super) fn control_message(&mut self, message: &Message, now: Duration) -> Result<(), ()> {
        let Message { header, body } = message;
        if Completion::id_of(header) >= EVENT_IDS {
            let event = Event::parse(header).map_err(|_| ())?;
            return if event.stream_body() == body.len() as u64 {
                self.event(event, body, now)
            } else {
                Err(())
            };
        }
        let current = self.current.clone().ok_or(())?;
        let opcode = current.op.request(0).opcode();
        let completion = Completion::parse(opcode, header).map_err(|_| ())?;
        if completion.id != current.id || completion.stream_body() != body.len() as u64 {
            return Err(());
        }
        self.current = None;
        self.step(current.op, &completion, body, now)?;
        self.next_op(now);
        Ok(())
    }

    /// What follows a completion.
    fn step(&mut self, op: Op, completion: &Completion, body: &[u8], now: Duration) -> Result<(), ()> {
        let failed = completion.status != Status::Success;
        match (op, completion.reply) {
            (Op::Connect, Reply::Connect { instance, version, flags, .. }) => {
                self.connect_done(completion.status, instance, (version, flags), body, now)?;
            }
            (Op::WriteConfig { token, .. }, _) => {
                let result = if failed { Err(completion.status) } else { Ok(()) };
                self.outputs.push_back(Output::ConfigWritten(token, result));
            }
            (Op::WholeConfig, Reply::Control { .. }) if !failed && body.len() <= MAX_CONFIG => {
                self.configured(body.to_vec(), now);
            }
            (Op::PartConfig { offset, bytes }, Reply::Config { generation, value }) => {
                self.config_piece((offset, bytes), completion.status, (generation, value), now)?;
            }
            (Op::WholeConfig, _) => return Err(()),
            (Op::Keepalive | Op::Detach | Op::Abort { .. }, _) => {}
            (Op::Disconnect, _) => self.die(Status::Success),
            // The device cannot be brought up or reset.
            (_, _) if failed => self.die(completion.status),
            (Op::Reset, _) => self.reset_done(now),
            (Op::DeviceId, Reply::Word(id)) => {
                self.device.0 = id;
                self.issue(Op::VendorId, &[], now);
            }
            (Op::VendorId, Reply::Word(id)) => {
                self.device.1 = id;
                self.issue(Op::Driver, &[], now);
            }
            (Op::Driver, _) => self.issue(Op::DeviceFeatures, &[], now),
            (Op::DeviceFeatures, Reply::Feature(offered)) => {
                if offered & VERSION_1 == 0 {
                    self.die(Status::DeviceFeature);
                    return Ok(());
                }
                self.device.2 = offered & (self.config.driver_features | VERSION_1) & !LOCAL;
                self.issue(Op::DriverFeatures, &[], now);
            }
            (Op::DriverFeatures, _) => self.issue(Op::FeaturesOk, &[], now),
            (Op::FeaturesOk, _) => self.issue(Op::CheckFeatures, &[], now),
            (Op::CheckFeatures, Reply::Word(word)) if word & status::FEATURES_OK == 0 => {
                self.die(Status::DeviceFeature);
            }
            (Op::CheckFeatures, _) => self.attach_queues(now),
            (Op::DriverOk, _) => self.issue(self.config_op(), &[], now),
            _ => return Err(()),
        }
        Ok(())
    }

    fn connect_done(
        &mut self,
        status: Status,
        instance: u16,
        (version, flags): (u16, ReplyFlags),
        body: &[u8],
        now: Duration,
    ) -> Result<(), ()> {
        match status {
            Status::Success => {}
            // Passing troubles of a target.
            Status::Busy | Status::NoMemory | Status::NoDevice => return Err(()),
            // The session had ended with the reset that this side waits for.
            Status::Stale
                if self.resume_as == Phase::Resetting || (self.established && self.reset_wanted) =>
            {
                self.forget_session();
                return Err(());
            }
            Status::Stale if self.established && self.config.repeatable => {
                self.start_over();
                return Err(());
            }
            status => {
                self.die(status);
                return Ok(());
            }
        }
        let offered = self.config.features.contains(Features::BASE);
        let reply = match version {
            0 => None,
            VERSION if offered => Some(ConnectReply::parse(body).map_err(|_| ())?),
            _ => return Err(()),
        };
        if reply.is_some_and(|reply| !self.config.features.contains(reply.features)) {
            return Err(());
        }
        if self.established {
            let old = self.granted.and_then(|granted| granted.reply);
            let same = reply.zip(old).is_some_and(|(new, old)| new.session_id == old.session_id);
            if !same || !flags.contains(ReplyFlags::RESUMED) {
                return Err(());
            }
        }
        self.granted = Some(Granted { instance, reply });
        self.max_xfer = reply.map_or(BASE_XFER, |reply| reply.limits.max_xfer);
        self.framed(self.control);
        if !self.established {
            self.issue(Op::DeviceId, &[], now);
        } else if self.resume_as == Phase::Resetting {
            self.phase = Phase::Resetting;
            self.lost_since = None;
            self.ops.push_front(Op::Reset);
        } else {
            self.attach_queues(now);
        }
        Ok(())
    }

    /// Opens the connections of all virtqueues.
    fn attach_queues(&mut self, now: Duration) {
        for vq in 0..self.wanted().len() as u16 {
            self.open_queue(vq, now);
        }
        self.queue_up(now);
    }

    /// A virtqueue is attached; perhaps they all are.
    pub(super) fn queue_up(&mut self, now: Duration) {
        let all = self.wanted().iter().all(|queue| matches!(queue.link, Link::Up(_)));
        if self.phase != Phase::Setup || !all {
            return;
        }
        if !self.established {
            return self.issue(Op::DriverOk, &[], now);
        }
        self.up(self.resume_as, now);
        self.outputs.push_back(Output::Resumed);
        self.config_changed(now);
        self.close_when_idle(now);
    }

    /// The driver is OK, and the configuration known.
    pub(super) fn live(&mut self, now: Duration) {
        let (device, vendor, features) = self.device;
        let found = Former { device, features, queues: self.wanted().len() };
        match self.former.take() {
            Some(former) if former != found => return self.die(Status::DeviceFeature),
            Some(_) => self.outputs.push_back(Output::Resumed),
            None => self.outputs.push_back(Output::Ready { device, vendor, features }),
        }
        self.established = true;
        self.up(Phase::Live, now);
    }

    fn up(&mut self, phase: Phase, now: Duration) {
        self.phase = phase;
        self.resume_as = Phase::Live;
        self.lost_since = None;
        self.backoff = self.config.backoff;
        if phase == Phase::Live && std::mem::take(&mut self.reset_wanted) {
            return self.begin_reset(now);
        }
        for vq in 0..self.config.queues {
            self.pump(vq, now);
        }
    }

    /// Asks the target for a reset.
    pub(super) fn begin_reset(&mut self, now: Duration) {
        self.phase = Phase::Resetting;
        self.ops.push_back(Op::Reset);
        self.next_op(now);
    }

    /// What follows Connect on a connection is in frames, if that was agreed on.
    pub(super) fn framed(&mut self, conn: Option<ConnId>) {
        let reply = self.granted.and_then(|granted| granted.reply);
        if let (Some(conn), Some(reply)) = (conn, reply)
            && reply.features.contains(Features::FRAME)
        {
            let digests = reply.features.contains(Features::DIGEST);
            let framing = Framing { digests, max_xfer: reply.limits.max_xfer };
            self.outputs.push_back(Output::Framed(conn, framing));
        }
    }

    /// The target has forgotten all buffers, and so does this side; then the device comes up again.
    fn reset_done(&mut self, now: Duration) {
        self.close_queues();
        self.fail_in_flight(Status::Reset);
        self.established = false;
        self.resume_as = Phase::Live;
        self.phase = Phase::Setup;
        self.outputs.push_back(Output::ResetDone);
        self.issue(Op::Driver, &[], now);
    }

    /// The session is gone, after a reset that had been asked for.
    fn forget_session(&mut self) {
        self.fail_in_flight(Status::Reset);
        self.established = false;
        self.reset_wanted = false;
        self.resume_as = Phase::Live;
        self.phase = Phase::Setup;
        self.outputs.push_back(Output::ResetDone);
    }

    /// The session is gone, and what is in flight is to be executed in a new one.
    pub(super) fn start_over(&mut self) {
        let (device, _, features) = self.device;
        self.former = Some(Former { device, features, queues: self.wanted().len() });
        self.config.driver_features = features;
        self.queues.iter_mut().for_each(super::queue::Queue::wait_again);
        self.established = false;
    }

    fn event(&mut self, event: Event, body: &[u8], now: Duration) -> Result<(), ()> {
        match event {
            Event::Keepalive => {}
            Event::ConfigChange(_) => self.config_changed(now),
            _ if !self.features().contains(Features::EVENTS) => return Err(()),
            Event::DeviceStatus(status) => self.outputs.push_back(Output::DeviceStatus(status)),
            Event::Drain(_) => {
                self.draining = true;
                self.outputs.push_back(Output::Draining);
                self.detach_when_idle(now);
            }
            Event::Redirect(_) => {
                let to = Redirect::parse(body).map_err(|_| ())?;
                self.config.target = to.target.clone();
                self.address = Some(to);
                self.backoff = Duration::ZERO;
                self.lose_all(now);
                self.backoff = self.config.backoff;
            }
            Event::Terminate(_) => return Err(()),
        }
        Ok(())
    }

    /// Lets a draining target know that nothing is in flight any more.
    pub(super) fn detach_when_idle(&mut self, now: Duration) {
        let idle = self.queues.iter().all(|queue| queue.in_flight() == 0);
        let can = self.phase == Phase::Live && self.features().contains(Features::RESUME);
        if self.draining && idle && can {
            self.ops.push_back(Op::Detach);
            self.next_op(now);
        }
    }
}
