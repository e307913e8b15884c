//! The initiator's side: commands name memory, completions say what is in it.

use host_port::{Buffer, Endpoint, Registered};
use verbs::{Access, Completion as WorkCompletion};

use super::OperationCounts;
use super::agreed::{COMPLETION, CONTROL, MAX_QUEUE, receives};
use super::conn::{Conn, contents, filled};
use crate::Message;
use crate::wire::{
    Command, Completion, ConnectReply, Features, HEADER, Immediate, Keyed, Opcode, Reply, Request, Status,
    VqxCommand, VqxFlags, VqxLimits, VqxMessage,
};

/// Writable bytes that come in the completion where immediate ones are not agreed on: those in which device types say how
/// a request ended.
const TAIL: u32 = 16;

/// What a command in flight names.
#[derive(Debug, Default)]
pub(super) struct Area {
    in_length: u32,
    /// How many of the writable bytes, from the start, are named.
    keyed: u32,
    /// The memory for them.
    writable: Option<(Buffer, Registered)>,
    readable: Option<(Buffer, Registered)>,
}

impl Area {
    /// Takes the keys back, and gives back the memory but for what is writable, which is returned.
    fn revoke(mut self, endpoint: &mut Endpoint) -> Option<Buffer> {
        let writable = self.writable.take().map(|(buffer, registered)| {
            endpoint.revoke(registered);
            buffer
        });
        if let Some((buffer, registered)) = self.readable.take() {
            endpoint.revoke(registered);
            endpoint.arena().free(buffer);
        }
        writable
    }

    pub(super) fn end(self, endpoint: &mut Endpoint) {
        if let Some(buffer) = self.revoke(endpoint) {
            endpoint.arena().free(buffer);
        }
    }

    /// The first `len` writable bytes.
    fn take(self, endpoint: &mut Endpoint, len: u32) -> bytes::Bytes {
        match self.revoke(endpoint) {
            None => bytes::Bytes::new(),
            Some(buffer) => {
                let data = contents(endpoint, buffer, len);
                endpoint.arena().free(buffer);
                data
            }
        }
    }
}

impl Conn {
    /// Sends a command. Returns `false`, and has done nothing, when there is no memory for it.
    pub(super) fn send_command(
        &mut self,
        endpoint: &mut Endpoint,
        message: &Message,
        counts: &mut OperationCounts,
    ) -> bool {
        let command = Command::parse(&message.header);
        match (command, self.agreed) {
            (Ok(Command { id, request: Request::Vqx(vqx) }), Some((limits, imm))) => {
                self.send_vqx(endpoint, id, vqx, &message.body, (limits, imm), counts)
            }
            _ => self.send_plain(endpoint, &[&message.header, &message.body], counts),
        }
    }

    fn send_vqx(
        &mut self,
        endpoint: &mut Endpoint,
        id: u16,
        vqx: VqxCommand,
        out: &[u8],
        (limits, imm): (VqxLimits, bool),
        counts: &mut OperationCounts,
    ) -> bool {
        let inline = self.inline_bytes(out, &limits);
        let (here, there) = out.split_at(inline);
        let keyed = match vqx.in_length {
            short if short <= limits.max_tail.into() => 0,
            long if imm => long,
            long => long - TAIL.min(limits.max_tail.into()),
        };
        let mut area = Area { in_length: vqx.in_length, keyed, ..Area::default() };
        let named = area.name(endpoint, there);
        let mut descs = Vec::with_capacity(2);
        for (buffer, registered) in area.writable.iter().chain(&area.readable) {
            counts.keys += 1;
            descs.push(Keyed {
                addr: registered.addr.into(),
                length: buffer.len.into(),
                key: registered.key.into(),
            });
        }
        let mut flags = VqxFlags::TAIL_OK;
        flags.set(VqxFlags::IMM_OK, imm);
        let in_descs = u8::from(area.writable.is_some());
        let vqx = VqxCommand { flags, in_descs, out_descs: u8::from(area.readable.is_some()), ..vqx };
        let mut bytes = Vec::with_capacity(HEADER + vqx.desc_bytes() + here.len());
        if named {
            VqxMessage::emit(&mut bytes, id, &vqx, &descs, here, &limits, false);
        }
        if !named || !self.send_plain(endpoint, &[&bytes], counts) {
            counts.keys -= descs.len() as u64;
            area.end(endpoint);
            return false;
        }
        self.areas.insert(id, area);
        true
    }

    /// How many readable bytes go into the message.
    fn inline_bytes(&self, out: &[u8], limits: &VqxLimits) -> usize {
        let overhead = (HEADER + 2 * size_of::<Keyed>() + usize::from(limits.data_offset)) as u32;
        let room = self.max_message.saturating_sub(overhead).min(limits.max_out_inline) as usize;
        if out.len() <= room { out.len() } else { usize::from(limits.out_split).min(room) }
    }

    /// A message has come: the same with all its data. An error ends the connection.
    pub(super) fn completion(&mut self, endpoint: &mut Endpoint, message: Message) -> Result<Message, ()> {
        if !self.connected {
            self.learn(endpoint, &message)?;
            return Ok(message);
        }
        if self.agreed.is_none() {
            return Ok(message);
        }
        let completion = Completion::parse(Opcode::Vqx, &message.header).map_err(|_| ())?;
        let Reply::Vqx { tail, moved, .. } = completion.reply else { return Err(()) };
        let area = self.areas.remove(&completion.id).ok_or(())?;
        let rest = area.in_length - area.keyed;
        let whole = tail == 0 || u32::from(tail) == rest;
        if moved > area.keyed || !whole || usize::from(tail) != message.body.len() {
            area.end(endpoint);
            return Err(());
        }
        let data = area.take(endpoint, moved);
        let body = match (data.is_empty(), tail) {
            (true, _) => message.body,
            (_, 0) => data,
            _ => [data, message.body].concat().into(),
        };
        Ok(Message { header: message.header, body })
    }

    /// Immediate data have come: the completion that they mean.
    pub(super) fn immediate(
        &mut self,
        endpoint: &mut Endpoint,
        done: &WorkCompletion,
    ) -> Result<Message, ()> {
        let immediate = Immediate::try_from(u32::from_be_bytes(done.imm_or_key)).map_err(|_| ())?;
        if !self.agreed.is_some_and(|(_, imm)| imm) {
            return Err(());
        }
        let (Immediate::DoneFull(id) | Immediate::DoneNone(id) | Immediate::DoneSegment { id, .. }) =
            immediate
        else {
            return Err(());
        };
        let area = self.areas.remove(&id).ok_or(())?;
        let used = match immediate {
            Immediate::DoneFull(_) if area.keyed == area.in_length => area.in_length,
            Immediate::DoneNone(_) => 0,
            Immediate::DoneSegment { segment: 0, .. } if done.byte_len <= area.keyed => done.byte_len,
            _ => {
                area.end(endpoint);
                return Err(());
            }
        };
        let reply = Reply::Vqx { window: 0, tail: 0, used, moved: used };
        let header = Completion { id, status: Status::Success, reply }.emit();
        Ok(Message { header, body: area.take(endpoint, used) })
    }

    /// The completion of Connect: what is agreed on. Receives for what may come are posted before the engine sends.
    fn learn(&mut self, endpoint: &mut Endpoint, message: &Message) -> Result<(), ()> {
        self.connected = true;
        let completion = Completion::parse(Opcode::Connect, &message.header).map_err(|_| ())?;
        let Completion { status: Status::Success, reply: Reply::Connect { size, .. }, .. } = completion
        else {
            return Ok(());
        };
        if size > MAX_QUEUE {
            return Err(());
        }
        // The base profile over RDMA is not spoken.
        let reply = ConnectReply::parse(&message.body).map_err(|_| ())?;
        let length = if self.is_queue { COMPLETION } else { CONTROL };
        self.add_receives(endpoint, receives(self.is_queue, size.min(self.size)), length).map_err(|_| ())?;
        if self.is_queue {
            self.agreed = Some((reply.limits, reply.features.contains(Features::IMM_COMP)));
        }
        Ok(())
    }
}

impl Area {
    /// Takes memory and keys for what is named; whether there were both.
    fn name(&mut self, endpoint: &mut Endpoint, readable: &[u8]) -> bool {
        if self.keyed > 0 {
            let Some(buffer) = endpoint.arena().alloc(self.keyed) else { return false };
            self.writable = register(endpoint, buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
            if self.writable.is_none() {
                return false;
            }
        }
        if !readable.is_empty() {
            let buffer = filled(endpoint, readable.len() as u32, &[readable]);
            self.readable = buffer.and_then(|buffer| register(endpoint, buffer, Access::REMOTE_READ));
            return self.readable.is_some();
        }
        true
    }
}

fn register(endpoint: &mut Endpoint, buffer: Buffer, access: Access) -> Option<(Buffer, Registered)> {
    match endpoint.register(buffer, access) {
        Ok(registered) => Some((buffer, registered)),
        Err(_) => {
            endpoint.arena().free(buffer);
            None
        }
    }
}
