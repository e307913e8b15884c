//! Control queues: Connect and what follows it.

use std::time::Duration;

use bytes::Bytes;

use super::session::{Queue, Reset, Session};
use super::{Answer, Output, Role, Target, is_control, refusal};
use crate::wire::{
    CONNECT_BODY, CONTROL_QUEUE_SIZE, Command, ConnectBody, ConnectFlags, ConnectReply, Extension, Features,
    MAX_CONFIG, NEW_INSTANCE, Opcode, Reply, ReplyFlags, Request, Status, VERSION,
};
use crate::{ConnId, Framing, status};

/// What a Connect is about.
pub(super) struct Connect {
    pub conn: ConnId,
    id: u16,
    vq: u16,
    size: u16,
    /// The id of a session that it makes.
    session_id: [u8; 16],
    pub now: Duration,
}

impl Target {
    /// The first message of a connection.
    pub(super) fn connect(
        &mut self,
        conn: ConnId,
        command: Command,
        body: &[u8],
        session_id: [u8; 16],
        now: Duration,
    ) {
        let Request::Connect { instance, vq, size, .. } = command.request else {
            return self.close(conn, now);
        };
        let about = Connect { conn, id: command.id, vq, size, session_id, now };
        let result = if body.is_empty() && instance != NEW_INSTANCE {
            self.attach(&about, instance, None)
        } else if body.len() != CONNECT_BODY {
            Err(Status::Protocol)
        } else {
            match ConnectBody::parse(body) {
                Err(_) => Err(Status::BadName),
                Ok(body) if instance == NEW_INSTANCE => self.connect_control(&about, &body),
                Ok(body) => self.attach(&about, instance, Some(&body)),
            }
        };
        if let Err(status) = result {
            // The version tells an initiator that has none in common what there is.
            let version = if status == Status::Version { VERSION } else { 0 };
            let reply = Reply::Connect { instance, version, size: 0, flags: ReplyFlags::empty(), body: 0 };
            self.complete(conn, command.id, status, reply, Bytes::new());
            self.close(conn, now);
        }
    }

    fn connect_control(&mut self, about: &Connect, body: &ConnectBody) -> Result<(), Status> {
        if about.size > CONTROL_QUEUE_SIZE {
            return Err(Status::QueueSizeQuota);
        }
        if let Some(e) = &body.extension
            && !(e.ver_min..=e.ver_max).contains(&VERSION)
        {
            return Err(Status::Version);
        }
        match &body.extension {
            Some(e) if e.flags.contains(ConnectFlags::DISCOVERY_ONLY) => self.discoverer(about, e),
            Some(e) if e.flags.contains(ConnectFlags::RESUME) => self.resume(about, body, e),
            _ => self.create(about, body),
        }
    }

    /// A new instance.
    fn create(&mut self, about: &Connect, body: &ConnectBody) -> Result<(), Status> {
        if self.draining || self.sessions.len() >= self.config.max_instances.into() {
            return Err(Status::NoDevice);
        }
        let device = self.device_of(body)?;
        let instance = (1..NEW_INSTANCE).find(|n| !self.sessions.contains_key(n)).ok_or(Status::NoDevice)?;
        let (wanted, keepalive, life, epoch) = body.extension.map_or_else(Default::default, |e| {
            (
                e.features,
                Duration::from_millis(e.kato_ms.into()),
                Duration::from_millis(e.resume_ms.into()),
                e.epoch,
            )
        });
        let session = Session {
            instance,
            device,
            id: about.session_id,
            initiator: body.initiator.clone(),
            epoch,
            features: self.granted(wanted),
            control: None,
            detached: None,
            life: life.min(self.config.session_life),
            keepalive: keepalive.min(self.config.max_keepalive),
            heard: about.now,
            status: 0,
            driver_features: 0,
            queues: self.config.devices[device].queue_sizes.iter().map(|_| Queue::default()).collect(),
            change_unread: false,
            reset: None,
            detaching: false,
            left: false,
        };
        self.sessions.insert(instance, session);
        self.control_up(about, instance, body.extension.is_some(), ReplyFlags::empty());
        Ok(())
    }

    /// What is granted of the features that an initiator wants.
    pub(super) fn granted(&self, wanted: Features) -> Features {
        wanted.intersection(self.config.features).intersection(Features::EXTENSION).consistent()
    }

    /// Which device a Connect is about.
    fn device_of(&self, body: &ConnectBody) -> Result<usize, Status> {
        let is_it = |device: &super::Device| device.name == body.target;
        self.config.devices.iter().position(is_it).ok_or(Status::NoTarget)
    }

    /// A session goes on. Whatever connections it has are replaced.
    fn resume(&mut self, about: &Connect, body: &ConnectBody, e: &Extension) -> Result<(), Status> {
        let session = self.sessions.values().find(|s| s.id == e.session_id).ok_or(Status::Stale)?;
        if session.initiator != body.initiator || self.config.devices[session.device].name != body.target {
            return Err(Status::BadName);
        }
        if e.epoch <= session.epoch {
            return Err(Status::Stale);
        }
        let (instance, old) = (session.instance, session.control);
        self.close_queues(instance);
        if let Some(old) = old {
            self.conns.remove(&old);
            self.outputs.push_back(Output::Close(old));
        }
        let session = self.sessions.get_mut(&instance).expect("just found");
        session.epoch = e.epoch;
        session.detached = None;
        session.left = false;
        session.change_unread = false;
        session.heard = about.now;
        self.control_up(about, instance, true, ReplyFlags::RESUMED);
        Ok(())
    }

    fn control_up(&mut self, about: &Connect, instance: u16, extended: bool, flags: ReplyFlags) {
        let session = self.sessions.get_mut(&instance).expect("the caller has it");
        session.control = Some(about.conn);
        if let Some((role, _)) = self.conns.get_mut(&about.conn) {
            *role = Role::Control(instance);
        }
        self.connected(about, instance, CONTROL_QUEUE_SIZE, extended, flags);
    }

    /// Completes the Connect of a session.
    fn connected(&mut self, about: &Connect, instance: u16, size: u16, extended: bool, flags: ReplyFlags) {
        let session = &self.sessions[&instance];
        if !extended || !session.features.contains(Features::BASE) {
            let reply = Reply::Connect { instance, version: 0, size: 0, flags: ReplyFlags::empty(), body: 0 };
            return self.complete(about.conn, about.id, Status::Success, reply, Bytes::new());
        }
        let millis = |time: Duration| time.as_millis() as u32;
        let granted = ConnectReply {
            session_id: session.id,
            epoch: session.epoch,
            kato_ms: millis(session.keepalive),
            resume_ms: millis(session.life),
            max_vqs: session.queues.len() as u16,
            limits: self.limits(session.device),
            rx_depth: size,
            ..ConnectReply::new(session.features)
        };
        self.accept(about, (instance, size, flags), &granted);
    }

    /// Completes a Connect of the extension.
    pub(super) fn accept(
        &mut self,
        about: &Connect,
        (instance, size, flags): (u16, u16, ReplyFlags),
        granted: &ConnectReply,
    ) {
        let body = Bytes::copy_from_slice(&granted.emit());
        let reply = Reply::Connect { instance, version: VERSION, size, flags, body: body.len() as u32 };
        self.complete(about.conn, about.id, Status::Success, reply, body);
        if granted.features.contains(Features::FRAME) {
            let digests = granted.features.contains(Features::DIGEST);
            let framing = Framing { digests, max_xfer: self.config.max_xfer };
            self.outputs.push_back(Output::Framed(about.conn, framing));
        }
    }

    /// A virtqueue's connection.
    fn attach(&mut self, about: &Connect, instance: u16, body: Option<&ConnectBody>) -> Result<(), Status> {
        let session = self.sessions.get_mut(&instance).ok_or(Status::BadDevice)?;
        let device = &self.config.devices[session.device];
        let names = |body: &ConnectBody| body.initiator == session.initiator && body.target == device.name;
        if body.is_some_and(|body| !names(body)) {
            return Err(Status::BadName);
        }
        let mut replace = false;
        if session.features.contains(Features::BASE) {
            let e = body.and_then(|body| body.extension).ok_or(Status::Protocol)?;
            if e.session_id != session.id || e.epoch != session.epoch {
                return Err(Status::Stale);
            }
            replace = e.flags.contains(ConnectFlags::RESUME) && session.features.contains(Features::RESUME);
        }
        if session.control.is_none() || session.reset.is_some() {
            return Err(Status::BadDevice);
        }
        let most = *device.queue_sizes.get(usize::from(about.vq)).ok_or(Status::QueueQuota)?;
        let queue = &mut session.queues[usize::from(about.vq)];
        let size = if about.size == 0 { most } else { about.size };
        if size > most {
            return Err(Status::QueueSizeQuota);
        }
        if queue.conn.is_some() && !replace {
            return Err(Status::QueueBusy);
        }
        // The ids in the records are less than the size they were made with.
        if !queue.records.is_empty() && size != queue.size {
            return Err(Status::QueueSizeQuota);
        }
        if let Some(old) = queue.unattached() {
            self.conns.remove(&old);
            self.outputs.push_back(Output::Close(old));
        }
        queue.conn = Some(about.conn);
        queue.size = size;
        let extended = session.features.contains(Features::BASE);
        if !extended {
            queue.records.retain(|_, record| matches!(record.state, super::session::State::Executing(_)));
        }
        if let Some((role, _)) = self.conns.get_mut(&about.conn) {
            *role = Role::Queue(instance, about.vq);
        }
        self.connected(about, instance, size, extended, ReplyFlags::empty());
        Ok(())
    }

    /// A message on a control queue.
    pub(super) fn control(
        &mut self,
        conn: ConnId,
        instance: u16,
        command: Command,
        body: &[u8],
        now: Duration,
    ) {
        if command.id >= crate::wire::EVENT_IDS || !is_control(&command.request) {
            return self.refuse(conn, Status::Protocol, now);
        }
        let opcode = command.request.opcode();
        if opcode == Opcode::Disconnect {
            self.complete(conn, command.id, Status::Success, Reply::Nothing, Bytes::new());
            return self.destroy(instance);
        }
        let is_reset = matches!(command.request, Request::Plain(Opcode::ResetDevice) | Request::SetStatus(0));
        if is_reset {
            return self.begin_reset(instance, (conn, command.id));
        }
        let (status, reply, body) = match command.request {
            Request::Control { opcode, arg0, arg1, .. } => self.extended(instance, opcode, arg0, arg1, body),
            request => self.simple(instance, request),
        };
        self.complete(conn, command.id, status, reply, body.into());
        self.finish_detach(instance);
    }

    /// Commands of the base profile.
    fn simple(&mut self, instance: u16, request: Request) -> Answer {
        let session = self.sessions.get_mut(&instance).expect("the connection's role names a session");
        let device = &self.config.devices[session.device];
        let plain = |reply| (Status::Success, reply, Vec::new());
        match request {
            Request::Plain(Opcode::Keepalive) => plain(Reply::Nothing),
            Request::Plain(Opcode::GetVendorId) => plain(Reply::Word(device.vendor)),
            Request::Plain(Opcode::GetDeviceId) => plain(Reply::Word(device.id)),
            Request::Plain(Opcode::GetStatus) => plain(Reply::Word(session.status)),
            Request::GetFeature(Opcode::GetFeature, window) => {
                plain(Reply::Feature(if window == 0 { session.features.bits() } else { 0 }))
            }
            Request::GetFeature(_, window) => {
                plain(Reply::Feature(if window == 0 { device.features } else { 0 }))
            }
            Request::SetFeature(Opcode::SetFeature, window, bits) => {
                let same = window == 0 && bits & Features::EXTENSION.bits() == session.features.bits();
                let none = bits & !Features::EXTENSION.bits() == 0;
                if (same && none) || bits == 0 { plain(Reply::Nothing) } else { refusal(Status::Feature) }
            }
            Request::SetFeature(_, window, bits) => {
                let offered = if window == 0 { device.features } else { 0 };
                if bits & !offered != 0 || session.status & status::FEATURES_OK != 0 {
                    return refusal(Status::DeviceFeature);
                }
                if window == 0 {
                    session.driver_features = bits;
                }
                plain(Reply::Nothing)
            }
            Request::SetStatus(new) => {
                if new & session.status & !status::NEEDS_RESET != session.status & !status::NEEDS_RESET {
                    return refusal(Status::DeviceStatus);
                }
                let accepted = new & !session.status & status::FEATURES_OK != 0;
                session.status |= new;
                if accepted {
                    self.outputs.push_back(Output::Features(instance, session.driver_features));
                }
                plain(Reply::Nothing)
            }
            Request::GetVqSize(vq) => match device.queue_sizes.get(usize::from(vq)) {
                Some(size) => plain(Reply::VqSize(*size)),
                None => plain(Reply::VqSize(0)),
            },
            Request::GetConfig { offset, bytes } => {
                let at = usize::from(offset);
                let Some(from) = device.config.get(at..at + usize::from(bytes)) else {
                    return refusal(Status::ConfigOffset);
                };
                let mut value = [0; 8];
                value[..from.len()].copy_from_slice(from);
                session.change_unread = false;
                let generation = self.generations[session.device];
                plain(Reply::Config { generation, value: u64::from_le_bytes(value) })
            }
            Request::SetConfig { offset, bytes, value } => {
                let value = &value.to_le_bytes()[..usize::from(bytes)];
                self.write_config(instance, offset.into(), value)
            }
            _ => refusal(Status::NoCommand),
        }
    }

    /// Control commands of the extension.
    fn extended(&mut self, instance: u16, opcode: Opcode, arg0: u32, arg1: u32, body: &[u8]) -> Answer {
        let session = self.sessions.get_mut(&instance).expect("the connection's role names a session");
        let needs = match opcode {
            Opcode::GetConfigBulk | Opcode::SetConfigBulk => Features::BULK_CONFIG,
            Opcode::Abort => Features::ABORT_RESET,
            Opcode::SessionDetach => Features::RESUME,
            _ => return refusal(Status::NoCommand),
        };
        if !session.features.contains(needs) {
            return refusal(Status::NoCommand);
        }
        let answer = |val0, body: Vec<u8>| {
            (Status::Success, Reply::Control { body: body.len() as u32, val0, val1: 0 }, body)
        };
        match opcode {
            Opcode::GetConfigBulk => {
                let most = arg1 as usize;
                if most > MAX_CONFIG {
                    return refusal(Status::ConfigBytes);
                }
                let Some(bytes) = self.config.devices[session.device].config.get(arg0 as usize..) else {
                    return refusal(Status::ConfigOffset);
                };
                session.change_unread = false;
                answer(self.generations[session.device], bytes[..bytes.len().min(most)].to_vec())
            }
            Opcode::SetConfigBulk if body.len() != arg1 as usize || body.len() > 1024 => {
                refusal(Status::ConfigBytes)
            }
            Opcode::SetConfigBulk => self.write_config(instance, arg0 as usize, body),
            Opcode::Abort => {
                let id = u16::try_from(arg1).ok();
                let queue = session.queues.get(arg0 as usize);
                let record = queue.zip(id).and_then(|(queue, id)| queue.records.get(&id));
                let job = record.and_then(super::session::Record::job);
                self.outputs.extend(job.map(Output::Cancel));
                answer(job.is_some().into(), Vec::new())
            }
            _ => {
                session.life = Duration::from_millis(arg0.into()).min(self.config.session_life);
                session.detaching = true;
                answer(0, Vec::new())
            }
        }
    }

    fn write_config(&mut self, instance: u16, at: usize, value: &[u8]) -> Answer {
        let number = self.sessions[&instance].device;
        let device = &mut self.config.devices[number];
        let end = at.saturating_add(value.len());
        if at < device.writable.start || end > device.writable.end.min(device.config.len()) {
            return refusal(Status::ConfigOffset);
        }
        device.config[at..end].copy_from_slice(value);
        self.outputs.push_back(Output::ConfigWritten(instance));
        self.changed(number);
        (Status::Success, Reply::Nothing, Vec::new())
    }

    /// Ends all device work of an instance.
    fn begin_reset(&mut self, instance: u16, command: (ConnId, u16)) {
        let session = self.sessions.get_mut(&instance).expect("the connection's role names a session");
        session.reset = Some(Reset { command });
        let jobs: Vec<_> = session.queues.iter().flat_map(Queue::executing).collect();
        self.outputs.extend(jobs.into_iter().map(Output::Cancel));
        self.finish_reset(instance);
    }

    /// Completes a reset, if nothing is executing any more.
    pub(super) fn finish_reset(&mut self, instance: u16) {
        let Some(session) = self.sessions.get_mut(&instance) else { return };
        let idle = session.is_idle();
        let Some(Reset { command: (conn, id) }) = session.reset.filter(|_| idle) else { return };
        session.reset = None;
        session.status = 0;
        session.driver_features = 0;
        self.close_queues(instance);
        let session = self.sessions.get_mut(&instance).expect("just found");
        session.queues.iter_mut().for_each(|queue| queue.records.clear());
        if session.control == Some(conn) {
            self.complete(conn, id, Status::Success, Reply::Nothing, Bytes::new());
        }
    }

    /// Says that a detached instance is idle, if it is.
    pub(super) fn finish_detach(&mut self, instance: u16) {
        if let Some(session) = self.sessions.get_mut(&instance)
            && session.detaching
            && session.is_idle()
        {
            session.detaching = false;
            session.left = true;
            self.outputs.push_back(Output::Detached(instance));
        }
    }
}
