//! The target's side: it reads and writes what commands name.

use bytes::Bytes;
use host_port::{Buffer, Endpoint};
use verbs::{SendFlags, SendOp, SendWr};

use super::agreed::{CONTROL, MAX_COMMAND, receives};
use super::conn::{Conn, contents, filled};
use super::{OperationCounts, Taken};
use crate::Message;
use crate::wire::{
    Command, Completion, ConnectReply, Error, Features, Immediate, Keyed, Opcode, Reply, Request, Status,
    VqxCommand, VqxFlags, VqxMessage,
};

/// Where a command wants its data.
#[derive(Debug)]
pub(super) struct Asked {
    descs: Vec<Keyed>,
    in_length: u32,
    /// How many of the writable bytes, from the start, the descriptors cover.
    keyed: u32,
    imm: bool,
}

/// A command whose readable bytes are being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub buffer: Buffer,
    /// READs that are under way.
    left: usize,
    /// The message that it becomes, with what came with it.
    message: Message,
}

/// What is done to complete a command.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// Bytes to be written from the start of what descriptors cover.
    keyed: Bytes,
    /// All the writable bytes that no descriptor covers, or none.
    tail: Bytes,
}

impl Asked {
    /// Puts `data`, from the start of the writable bytes, and `end`, the last of them, where they belong.
    fn place(&self, data: &Bytes, end: &Bytes) -> Answer {
        let (keyed, length) = (self.keyed as usize, self.in_length as usize);
        if end.is_empty() && data.len() <= keyed {
            return Answer { keyed: data.clone(), tail: Bytes::new() };
        }
        if end.len() <= length - keyed && data.len() <= keyed {
            let mut tail = vec![0; length - keyed - end.len()];
            tail.extend_from_slice(end);
            return Answer { keyed: data.clone(), tail: tail.into() };
        }
        let mut all = data.to_vec();
        all.resize(length - end.len(), 0);
        all.extend_from_slice(end);
        let mut all = Bytes::from(all);
        let tail = all.split_off(keyed);
        Answer { keyed: all, tail }
    }
}

impl Conn {
    /// A message has come. An error ends the connection.
    pub(super) fn command(
        &mut self,
        endpoint: &mut Endpoint,
        message: Message,
        counts: &mut OperationCounts,
    ) -> Result<Taken, ()> {
        let Some((limits, imm)) = self.agreed else { return Ok(Taken::Message(message)) };
        let Ok(Command { id, request: Request::Vqx(vqx) }) = Command::parse(&message.header) else {
            return Ok(Taken::Message(message));
        };
        let whole = VqxCommand { in_descs: 0, out_descs: 0, ..vqx };
        let header = Command { id, request: Request::Vqx(whole) }.emit();
        let parsed = match VqxMessage::parse(&vqx, &message.body, &limits, false) {
            Ok(parsed) => parsed,
            Err(Error::Limit(_, status)) => {
                return Ok(Taken::Refused(Message { header, body: Bytes::new() }, status));
            }
            Err(_) => return Err(()),
        };
        let keyed = parsed.in_descs.iter().map(|desc| desc.length.get()).sum();
        let imm = imm && vqx.flags.contains(VqxFlags::IMM_OK);
        let asked = Asked { descs: parsed.in_descs.to_vec(), in_length: vqx.in_length, keyed, imm };
        let inline = [parsed.out_head, parsed.out_rest].concat();
        let taken = if parsed.out_descs.is_empty() {
            Taken::Message(Message { header, body: inline.into() })
        } else {
            let message = Message { header, body: inline.into() };
            if !self.read_out(endpoint, parsed.out_descs, message, counts) {
                return Ok(Taken::NoRoom);
            }
            Taken::Reading
        };
        self.asked.insert(id, asked);
        Ok(taken)
    }

    /// Begins to read what descriptors name; whether there was memory for it.
    fn read_out(
        &mut self,
        endpoint: &mut Endpoint,
        descs: &[Keyed],
        message: Message,
        counts: &mut OperationCounts,
    ) -> bool {
        let length = descs.iter().map(|desc| desc.length.get()).sum();
        let Some(buffer) = endpoint.arena().alloc(length) else { return false };
        let number = self.next_reading;
        self.next_reading += 1;
        self.reading.insert(number, Reading { buffer, left: descs.len(), message });
        let mut at = 0;
        for desc in descs {
            let op = SendOp::Read { addr: desc.addr.get(), rkey: desc.key.get() };
            let wr = self.wr(endpoint, op, buffer, at, desc.length.get());
            counts.reads += 1;
            self.post(endpoint, (SendWr { wr_id: number, flags: SendFlags::SIGNALED, ..wr }, None));
            at += desc.length.get();
        }
        true
    }

    /// A READ has ended; whether there was one.
    pub(super) fn read_done(&mut self, endpoint: &mut Endpoint, number: u64) -> bool {
        let Some(reading) = self.reading.get_mut(&number) else { return false };
        reading.left -= 1;
        if reading.left == 0
            && let Some(Reading { buffer, message, .. }) = self.reading.remove(&number)
        {
            let bytes = contents(endpoint, buffer, buffer.len);
            endpoint.arena().free(buffer);
            let body = [message.body, bytes].concat().into();
            self.read.push_back(Message { body, ..message });
        }
        true
    }

    /// Sends a completion or an event. Returns `false`, and has done nothing, when there is no memory for it.
    pub(super) fn send_completion(
        &mut self,
        endpoint: &mut Endpoint,
        message: &Message,
        counts: &mut OperationCounts,
    ) -> bool {
        if !self.connected {
            self.grant(endpoint, message);
        }
        let id = Completion::id_of(&message.header);
        match self.asked.remove(&id) {
            Some(asked) => {
                let sent = self.complete(endpoint, &asked, message, counts);
                if !sent {
                    self.asked.insert(id, asked);
                }
                sent
            }
            None => self.send_plain(endpoint, &[&message.header, &message.body], counts),
        }
    }

    fn complete(
        &mut self,
        endpoint: &mut Endpoint,
        asked: &Asked,
        message: &Message,
        counts: &mut OperationCounts,
    ) -> bool {
        let completion = Completion::parse(Opcode::Vqx, &message.header);
        let Ok(Completion { id, status, reply: Reply::Vqx { window, used, moved, .. } }) = completion else {
            return self.send_plain(endpoint, &[&message.header], counts);
        };
        let mut data = message.body.clone();
        let end = data.split_off(data.len().min(moved as usize));
        let answer = asked.place(&data, &end);
        let full = asked.keyed == asked.in_length && answer.keyed.len() == asked.in_length as usize;
        let immediate = asked.imm
            && self.peer_takes_immediates
            && asked.descs.len() == 1
            && full
            && (used, window, status) == (asked.in_length, 0, Status::Success);
        let imm = immediate.then(|| Immediate::DoneFull(id).emit().to_be_bytes());
        if !self.write(endpoint, &asked.descs, &answer.keyed, imm, counts) {
            return false;
        }
        if immediate {
            return true;
        }
        let (tail, moved) = (answer.tail.len() as u16, answer.keyed.len() as u32);
        let header = Completion { id, status, reply: Reply::Vqx { window, tail, used, moved } }.emit();
        // There is memory: what is written has just found its own, or is nothing.
        self.send_plain(endpoint, &[&header, &answer.tail], counts)
    }

    /// Writes to where descriptors say. Returns `false`, and has done nothing, when there is no memory.
    fn write(
        &mut self,
        endpoint: &mut Endpoint,
        descs: &[Keyed],
        bytes: &Bytes,
        imm: Option<[u8; 4]>,
        counts: &mut OperationCounts,
    ) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let length = bytes.len() as u32;
        let Some(buffer) = filled(endpoint, length, &[bytes]) else { return false };
        let mut at = 0;
        for desc in descs {
            let part = desc.length.get().min(length - at);
            if part == 0 {
                break;
            }
            let op = SendOp::Write { addr: desc.addr.get(), rkey: desc.key.get(), imm };
            let wr = self.wr(endpoint, op, buffer, at, part);
            *(if imm.is_some() { &mut counts.immediates } else { &mut counts.writes }) += 1;
            at += part;
            self.post(endpoint, (wr, (at == length).then_some(buffer)));
        }
        true
    }

    /// The completion of Connect is about to be sent: what it grants, and receives for what may come.
    fn grant(&mut self, endpoint: &mut Endpoint, message: &Message) {
        self.connected = true;
        let completion = Completion::parse(Opcode::Connect, &message.header);
        let Ok(Completion { status: Status::Success, reply: Reply::Connect { size, .. }, .. }) = completion
        else {
            return;
        };
        let Ok(reply) = ConnectReply::parse(&message.body) else { return };
        let length = if self.is_queue { MAX_COMMAND } else { CONTROL };
        let count = receives(self.is_queue, size.min(self.size));
        if let Err(error) = self.add_receives(endpoint, count, length) {
            // The peer waits for a receive, and in the end gives up.
            tracing::warn!(%error, "There is no memory for the messages of a connection");
        }
        if self.is_queue {
            self.agreed = Some((reply.limits, reply.features.contains(Features::IMM_COMP)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However writable bytes are cut into a start, an end and what is named, each lands where it belongs.
        #[test]
        fn bytes_land_where_they_belong(in_length in 0..300_u32, keyed: prop::sample::Index, data: prop::sample::Index, end: prop::sample::Index) {
            let length = in_length as usize;
            let keyed = keyed.index(length + 1);
            let data = data.index(length + 1);
            let end = end.index(length - data + 1);
            let asked = Asked { descs: Vec::new(), in_length, keyed: keyed as u32, imm: false };
            let answer = asked.place(&vec![1; data].into(), &vec![2; end].into());
            prop_assert!(answer.keyed.len() <= keyed);
            prop_assert!(answer.tail.is_empty() || answer.tail.len() == length - keyed);
            let mut all = answer.keyed.to_vec();
            if !answer.tail.is_empty() {
                all.resize(keyed, 0);
                all.extend_from_slice(&answer.tail);
            }
            prop_assert!(all[..data].iter().all(|byte| *byte == 1));
            prop_assert!(end == 0 || all[length - end..] == vec![2; end][..]);
        }
    }
}
