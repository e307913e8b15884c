//! Datagrams beside the connections: what arrives was sent, whole, to this receiver, and no more often than the wire doubles.

use std::collections::VecDeque;

use verbs::{
    Completion, Provider, ProviderEvent, QpId, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, UdAddress,
    WcFlags, WcOpcode, WcStatus,
};

use crate::area::Pieces;
use crate::common::{Node, World};
use crate::load::Load;
use crate::plan::{self, SLOTS};
use crate::traffic::split;

const QP: QpId = QpId(200);
const QKEY: u32 = 0x1234;
/// Bytes before the payload of a received datagram.
const HEADER: usize = 40;
/// Longest datagram.
const LONGEST: u64 = 4096;

/// A datagram that was sent.
struct Mail {
    bytes: Vec<u8>,
    imm: Option<[u8; 4]>,
    solicited: bool,
    arrivals: u32,
}

/// What one node sends the other.
#[derive(Default)]
struct Direction {
    /// Sends that are to complete, in this order.
    sending: VecDeque<u64>,
    sent: Vec<Mail>,
    /// Receives of the other node.
    waiting: VecDeque<(u64, Pieces)>,
}

/// A datagram queue pair on each node.
pub struct Post {
    qpns: [Qpn; 2],
    /// By sender.
    directions: [Direction; 2],
}

impl Post {
    pub fn new(world: &mut World) -> Self {
        let now = world.now;
        let qpns = [0, 1].map(|n: usize| world.nodes[n].create_ud(now, QP, QpType::Ud, QKEY));
        Self { qpns, directions: Default::default() }
    }
}

impl Load {
    /// Sends a few datagrams, and posts a few receives for others.
    pub fn post_mail(&mut self) {
        let Some(mut post) = self.mail.take() else { return };
        for from in 0..2 {
            for _ in 0..self.rng.below(3) {
                self.post_mail_receive(&mut post, 1 - from);
            }
            for _ in 0..self.rng.below(3) {
                self.send_mail(&mut post, from);
            }
        }
        self.mail = Some(post);
    }

    fn post_mail_receive(&mut self, post: &mut Post, node: usize) {
        let waiting = &mut post.directions[1 - node].waiting;
        let in_use =
            |start| waiting.iter().any(|(_, pieces)| (start..start + plan::SLOT).contains(&pieces[0].start));
        let slots = (0..SLOTS).map(plan::incoming_mail);
        let Some(slot) = slots.into_iter().find(|start| !in_use(*start)) else { return };
        let pieces = split(&mut self.rng, slot, HEADER + LONGEST as usize);
        self.serial += 1;
        let sges = self.areas[node].sges(&pieces).into();
        let wr = RecvWr { wr_id: self.serial, sges, bad: None };
        self.world.nodes[node].provider.post_recv(QP, wr).unwrap();
        waiting.push_back((self.serial, pieces));
    }

    fn send_mail(&mut self, post: &mut Post, from: usize) {
        let direction = &mut post.directions[from];
        if direction.sending.len() >= SLOTS {
            return;
        }
        // A datagram is gone from memory when it is posted and the device has had its turn.
        let slot = plan::outgoing_mail(direction.sent.len() % SLOTS);
        let len = 8 + self.rng.below(LONGEST - 7) as usize;
        let pieces = split(&mut self.rng, slot, len);
        let bytes = self.rng.bytes(len);
        let mut rest = &bytes[..];
        for piece in &pieces {
            let (part, after) = rest.split_at(piece.len());
            self.store(from, piece.start, part);
            rest = after;
        }
        let imm = self.rng.percent(50).then(|| (self.rng.next() as u32).to_be_bytes());
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.percent(60));
        flags.set(SendFlags::SOLICITED, self.rng.percent(30));
        self.serial += 1;
        let gid_index = self.rng.below(2) as u8;
        let av = self.world.nodes[from].av(&self.world.nodes[1 - from], gid_index);
        let op = SendOp::UdSend { to: UdAddress { av, qpn: post.qpns[1 - from], qkey: QKEY }, imm };
        let wr = SendWr { wr_id: self.serial, op, flags, sges: self.areas[from].sges(&pieces).into() };
        self.world.nodes[from].provider.post_send(QP, wr).unwrap();
        if flags.contains(SendFlags::SIGNALED) {
            direction.sending.push_back(self.serial);
        }
        let solicited = flags.contains(SendFlags::SOLICITED);
        direction.sent.push(Mail { bytes, imm, solicited, arrivals: 0 });
    }

    /// Takes an event that is about datagrams; returns `false` when it is not.
    pub fn observe_mail(&mut self, node: usize, event: &ProviderEvent) -> Result<bool, String> {
        match event {
            ProviderEvent::SendRetired(QP) | ProviderEvent::RecvRetired(QP) => Ok(true),
            ProviderEvent::Completion(completion) if completion.qp == QP => {
                let Some(mut post) = self.mail.take() else { return Ok(false) };
                let result = match completion.opcode {
                    WcOpcode::Send => post.directions[node].on_sent(completion),
                    _ => self.on_mail(&mut post, node, completion),
                };
                self.mail = Some(post);
                result.map(|()| true).map_err(|why| format!("datagram: {why}: {completion:?}"))
            }
            _ => Ok(false),
        }
    }

    fn on_mail(&mut self, post: &mut Post, node: usize, completion: &Completion) -> Result<(), String> {
        let direction = &mut post.directions[1 - node];
        let (wr_id, pieces) = direction.waiting.pop_front().ok_or("no receive is posted")?;
        let found = self.areas[node].gather(&pieces, completion.byte_len as usize);
        let mut rest = &found[..];
        for piece in &pieces {
            let (part, after) = rest.split_at(piece.len().min(rest.len()));
            self.model.store(node, piece.start, part);
            rest = after;
        }
        let (header, payload) = found.split_at_checked(HEADER).ok_or("too short")?;
        let mail = direction.sent.iter_mut().find(|mail| mail.bytes == payload).ok_or("nobody sent it")?;
        mail.arrivals += 1;
        let flags = WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE;
        let wanted = Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            imm_or_key: mail.imm.unwrap_or_default(),
            flags: mail.imm.map_or(flags, |_| flags | WcFlags::WITH_IMM),
            src_qp: post.qpns[1 - node],
            solicited: mail.solicited,
            ..*completion
        };
        if *completion != wanted {
            return Err(format!("should be {wanted:?}"));
        }
        let nodes = &self.world.nodes;
        let named = names(header, completion.network_hdr_type, &nodes[1 - node], &nodes[node]);
        named.then_some(()).ok_or_else(|| "wrong network header".into())
    }

    /// All is quiet. A good wire brings each datagram once, but for those that found no receive.
    pub fn check_mail(&self) -> Result<(), String> {
        let Some(post) = &self.mail else { return Ok(()) };
        let most = if self.plan.wire.duplication > 0 { 2 } else { 1 };
        for (from, direction) in post.directions.iter().enumerate() {
            if !direction.sending.is_empty() {
                return Err(format!("datagrams without completion: {:?}", direction.sending));
            }
            if direction.sent.iter().any(|mail| mail.arrivals > most) {
                return Err("a datagram arrived too often".into());
            }
            let arrived = direction.sent.iter().filter(|mail| mail.arrivals > 0).count() as u64;
            let dropped = self.world.nodes[1 - from].provider.counters().dropped_no_receive;
            if self.plan.wire.is_good() && arrived + dropped != direction.sent.len() as u64 {
                return Err(format!("{arrived} of {} datagrams arrived", direction.sent.len()));
            }
        }
        Ok(())
    }
}

impl Direction {
    fn on_sent(&mut self, completion: &Completion) -> Result<(), String> {
        let next = self.sending.pop_front();
        let ok = completion.status == WcStatus::Success && next == Some(completion.wr_id);
        if ok { Ok(()) } else { Err(format!("the next to complete is {next:?}")) }
    }
}

/// Whether a network header names sender and receiver.
fn names(header: &[u8], kind: u8, from: &Node, to: &Node) -> bool {
    let [from, to] = [from.gids(), to.gids()];
    match kind {
        1 => header[32..36] == from[0].0[12..] && header[36..40] == to[0].0[12..] && header[20] == 0x45,
        2 => header[8..24] == from[1].0 && header[24..40] == to[1].0 && header[0] >> 4 == 6,
        _ => false,
    }
}
