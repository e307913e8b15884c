//! Control queues, once they are connected.

use std::time::Duration;

use bytes::Bytes;

use super::session::{Queue, Reset};
use super::{Answer, Output, Target, is_control, refusal};
use crate::wire::{Command, Features, MAX_CONFIG, Opcode, Reply, Request, Status};
use crate::{ConnId, status};

impl Target {
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
