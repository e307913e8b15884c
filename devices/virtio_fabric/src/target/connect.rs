//! Connect: new instances, sessions that go on, virtqueues that are attached.

use std::time::Duration;

use bytes::Bytes;

use super::session::{Queue, Session, State};
use super::{Output, Role, Target};
use crate::wire::{
    CONNECT_BODY, CONTROL_QUEUE_SIZE, Command, ConnectBody, ConnectFlags, ConnectReply, Extension, Features,
    NEW_INSTANCE, Reply, ReplyFlags, Request, Status, VERSION,
};
use crate::{ConnId, Framing};

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
        let carried = match self.config.rdma {
            Some(_) => Features::all().difference(Features::FRAME | Features::DIGEST),
            None => Features::all().difference(Features::IMM_COMP),
        };
        let granted = wanted.intersection(self.config.features).intersection(carried);
        granted.intersection(Features::EXTENSION).consistent()
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
            queue.records.retain(|_, record| matches!(record.state, State::Executing(_)));
        }
        if let Some((role, _)) = self.conns.get_mut(&about.conn) {
            *role = Role::Queue(instance, about.vq);
        }
        self.connected(about, instance, size, extended, ReplyFlags::empty());
        Ok(())
    }
}
