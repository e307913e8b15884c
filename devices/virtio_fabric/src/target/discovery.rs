//! Connections that ask what there is.

use std::time::Duration;

use bytes::Bytes;

use super::connect::Connect;
use super::{Role, Target};
use crate::ConnId;
use crate::wire::{
    CONTROL_QUEUE_SIZE, Command, ConnectReply, Discovered, Extension, Features, NEW_INSTANCE, Opcode, Reply,
    ReplyFlags, Request, Status,
};

impl Target {
    /// A Connect for discovery only: no instance is made.
    pub(super) fn discoverer(&mut self, about: &Connect, e: &Extension) -> Result<(), Status> {
        let features = self.granted(e.features);
        if !features.contains(Features::DISCOVERY) {
            return Err(Status::NoCommand);
        }
        if let Some((role, _)) = self.conns.get_mut(&about.conn) {
            *role = Role::Discovery(about.now);
        }
        self.accept(
            about,
            (NEW_INSTANCE, CONTROL_QUEUE_SIZE, ReplyFlags::empty()),
            &ConnectReply::new(features),
        );
        Ok(())
    }

    /// A message on such a connection.
    pub(super) fn discovery(&mut self, conn: ConnId, command: Command, now: Duration) {
        match command.request {
            Request::Control { opcode: Opcode::Discover, body: 0, arg0, .. } => {
                let devices = &self.config.devices;
                let describe = |device: &super::Device| {
                    let virtqueues = device.queue_sizes.len() as u16;
                    Discovered { name: device.name.clone(), device: device.id, virtqueues }.emit()
                };
                let shown = devices.iter().skip(arg0 as usize).take(Discovered::MOST);
                let body: Vec<u8> = shown.flat_map(describe).collect();
                let reply = Reply::Control { body: body.len() as u32, val0: devices.len() as u32, val1: 0 };
                self.complete(conn, command.id, Status::Success, reply, body.into());
            }
            Request::Plain(Opcode::Disconnect) => {
                self.complete(conn, command.id, Status::Success, Reply::Nothing, Bytes::new());
                self.close(conn, now);
            }
            _ => self.refuse(conn, Status::State, now),
        }
    }
}
