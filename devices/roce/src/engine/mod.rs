//! The engine: all RDMA state of one device, and nothing else. No socket, no clock, no payload.
//!
//! Calls come in through the verbs ([`verbs`]-typed methods), [`Engine::receive`] and [`Engine::transmit`]; what is to be
//! done comes out as [`plan`]s and as [`ProviderEvent`]s. Time is an argument. Nothing recurses, and every call does a
//! bounded amount of work.
//!
//! # Cost of being idle
//!
//! Queue pairs with work stand in a ready list, those with a deadline in a heap. All others cost their memory only.

pub mod config;
mod congestion;
pub mod counters;
mod datagram;
mod gids;
mod keys;
mod mr;
mod neighbours;
mod objects;
pub mod plan;
pub mod qp;
mod ram;
mod requester;
mod responder;
mod save;
mod shared;
mod srq;
mod table;
mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use device_model::net::MacAddr;
use device_model::time::Instant;
use verbs::{AsyncEvent, Carrier, Gid, Limits, Mtu, ProviderEvent, QpId, Qpn, Segments};

pub use self::config::Config;
pub use self::counters::Counters;
use self::gids::GidTable;
use self::keys::Permutation;
use self::mr::MrTable;
use self::plan::Effect;
pub use self::plan::Transmit;
use self::qp::Qp;
pub use self::ram::RamMap;
use self::shared::Shared;
use self::table::Table;
use crate::psn::Psn;
use crate::wire::{Frame, FrameError, MAX_CHUNK, Message, P_KEY_DEFAULT, Packet, Pdu};

/// What a packet carries.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    /// Where it is in what arrived.
    pub(crate) range: Range<usize>,
    /// Bytes of a packet of the carrier that is full: all but the last of a message are.
    pub(crate) unit: u32,
}

impl Payload {
    /// Bytes; no packet holds more than fit.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.range.len()).unwrap_or(u32::MAX)
    }

    /// That of a message.
    fn of(message: &Message) -> Self {
        Self { range: 0..message.len as usize, unit: MAX_CHUNK }
    }
}

/// Whether the peer of a connection has sent a message: from its machine, if it came by a channel, and between the two
/// addresses of the connection.
fn is_from_peer(qp: &Qp, from: Option<MacAddr>, message: &Message) -> bool {
    let known = from.is_none_or(|from| from == qp.path.dmac);
    known && message.src == qp.path.dst && message.dst == qp.path.src
}

/// Whether a packet is of the partition. One of two members must be a full one (IBTA 10.9.3); this side is.
const fn is_of_partition(packet: &Packet) -> bool {
    packet.p_key | P_KEY_FULL == P_KEY_DEFAULT
}

/// Bit of a partition key that tells full from limited membership.
const P_KEY_FULL: u16 = 0x8000;
/// Bits of a queue pair number that its object's number takes; the rest counts re-use.
const QP_ID_BITS: u32 = 16;
/// Turns and timers one call of [`Engine::transmit`] deals with at most.
const MAX_TURNS: u32 = 64;

/// The engine of one device.
pub struct Engine {
    shared: Shared,
    qps: Table<Box<Qp>>,
    /// Queue pairs whose number was asked for; that of all others leads to the object by itself.
    named: BTreeMap<Qpn, QpId>,
    secret: Permutation,
    created: u32,
    /// Packets that the queue pair at the head of the ready list may still send.
    burst: u32,
}

impl Engine {
    /// An engine without objects, whose memory is described by `ram`.
    pub fn new(config: Config, ram: Box<dyn RamMap>) -> Self {
        let limits = config.limits;
        let shared = Shared {
            pds: Table::new(limits.max_pd),
            cqs: Table::new(limits.max_cq),
            srqs: Table::new(limits.max_srq),
            mrs: MrTable::new(config.secret, ram),
            gids: GidTable::new(limits.gid_table_len),
            neighbours: neighbours::Neighbours::default(),
            effects: VecDeque::new(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            timers: timers::Timers::default(),
            counters: Counters::default(),
            revoked: false,
            ended: false,
            now: Instant::ZERO,
            config,
        };
        let secret = Permutation::new(!shared.config.secret);
        Self {
            qps: Table::new(limits.max_qp + 1),
            named: BTreeMap::new(),
            secret,
            created: 0,
            burst: 0,
            shared,
        }
    }

    /// Limits in force.
    pub const fn limits(&self) -> Limits {
        self.shared.config.limits
    }

    /// Sets the largest path MTU that the link carries. Connections that exist keep theirs.
    pub const fn set_active_mtu(&mut self, mtu: Mtu) {
        self.shared.config.limits.active_mtu = mtu;
    }

    /// What was counted.
    pub const fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// For what happens below the engine.
    pub(crate) const fn counters_mut(&mut self) -> &mut Counters {
        &mut self.shared.counters
    }

    /// Whether an address is in the GID table.
    pub fn owns(&self, gid: &Gid) -> bool {
        self.shared.gids.contains(gid)
    }

    /// Counts a frame that is not a packet.
    pub const fn count_bad_frame(&mut self, error: FrameError) {
        match error {
            FrameError::Icrc => self.shared.counters.dropped_icrc += 1,
            _ => self.shared.counters.dropped_malformed += 1,
        }
    }

    /// Takes a packet from the wire. [`Engine::next_effect`] must be asked until it has nothing more before the next call.
    pub fn receive(&mut self, now: Instant, frame: &Frame) {
        let cx = &mut self.shared;
        cx.counters.rx_packets += 1;
        cx.counters.rx_bytes += frame.payload.len() as u64;
        cx.counters.congestion_marks += u64::from(frame.congestion);
        self.take(now, &frame.packet, |cx, qp| Self::dispatch(cx, qp, frame));
    }

    /// Takes a packet from the channel of machine `from`, or one that the device sent to itself; otherwise like
    /// [`Engine::receive`].
    pub fn receive_direct(&mut self, now: Instant, from: Option<MacAddr>, message: &Message) {
        let cx = &mut self.shared;
        cx.counters.direct_rx_records += 1;
        self.take(now, &message.packet, |cx, qp| {
            if !qp.is_rc() {
                cx.counters.dropped_no_qp += 1;
            } else if !is_from_peer(qp, from, message) {
                cx.counters.dropped_address += 1;
            } else {
                Self::dispatch_rc(cx, qp, &message.packet, &Payload::of(message));
            }
        });
    }

    /// Where the payload of a message from the channel of machine `from` belongs, if [`Engine::receive_direct`] would have
    /// it placed anywhere. So its bytes can be there before the message is carried out. What a SEND needs of a receive
    /// queue is taken from there by this call, and kept for whatever brings the SEND in the end.
    pub fn target(&mut self, now: Instant, from: MacAddr, message: &Message) -> Option<Segments> {
        self.shared.now = now;
        let (cx, qp) = self.find(&message.packet);
        let meant = |qp: &&mut Qp| qp.is_rc() && is_from_peer(qp, Some(from), message);
        let qp = qp.filter(meant).filter(|_| is_of_partition(&message.packet))?;
        match message.packet.pdu {
            Pdu::ReadResponse { at, .. } => {
                qp.response_target(cx, message.packet.psn, at, &Payload::of(message))
            }
            _ => qp.request_target(cx, &message.packet, &Payload::of(message)),
        }
    }

    /// The queue pair that a packet is for, if it takes packets, and what all share.
    fn find(&mut self, packet: &Packet) -> (&mut Shared, Option<&mut Qp>) {
        let id = Self::qp_id(self.secret, &self.named, packet.dest);
        let qp = self.qps.get_mut(id.0).map(Box::as_mut);
        (&mut self.shared, qp.filter(|qp| qp.qpn == packet.dest && qp.receives()))
    }

    /// Finds the queue pair that a packet is for.
    fn take(&mut self, now: Instant, packet: &Packet, dispatch: impl FnOnce(&mut Shared, &mut Qp)) {
        let (cx, qp) = self.find(packet);
        cx.now = now;
        if !is_of_partition(packet) {
            cx.counters.dropped_pkey += 1;
            return;
        }
        let Some(qp) = qp else {
            cx.counters.dropped_no_qp += 1;
            return;
        };
        dispatch(cx, qp);
        qp.schedule(cx);
    }

    /// The only object that can have a number; whether it has must be checked.
    fn qp_id(secret: Permutation, named: &BTreeMap<Qpn, QpId>, qpn: Qpn) -> QpId {
        let hidden = || QpId(secret.reveal(qpn.0) & ((1 << QP_ID_BITS) - 1));
        named.get(&qpn).copied().unwrap_or_else(hidden)
    }

    fn dispatch(cx: &mut Shared, qp: &mut Qp, frame: &Frame) {
        let packet = &frame.packet;
        if frame.congestion && qp.is_rc() && packet.pdu != Pdu::Cnp {
            qp.on_congestion_mark(cx);
        }
        match packet.pdu {
            Pdu::Datagram { deth, imm } if qp.is_datagram() => qp.on_datagram(cx, frame, deth, imm),
            _ if qp.is_datagram() => cx.counters.dropped_no_qp += 1,
            _ if frame.src != qp.path.dst || frame.dst != qp.path.src => cx.counters.dropped_address += 1,
            _ => {
                let payload = Payload { range: frame.payload.clone(), unit: qp.mtu().bytes() };
                Self::dispatch_rc(cx, qp, packet, &payload);
            }
        }
    }

    fn dispatch_rc(cx: &mut Shared, qp: &mut Qp, packet: &Packet, payload: &Payload) {
        match packet.pdu {
            Pdu::Datagram { .. } => cx.counters.dropped_no_qp += 1,
            Pdu::Cnp => qp.on_cnp(cx),
            Pdu::Ack(_) | Pdu::ReadResponse { .. } | Pdu::AtomicAck { .. } => {
                qp.on_response(cx, packet, payload);
            }
            Pdu::Send { .. }
            | Pdu::SendInv { .. }
            | Pdu::Write { .. }
            | Pdu::ReadRequest(_)
            | Pdu::Atomic(_) => qp.on_request(cx, packet, payload),
        }
    }

    /// The next thing to do with guest memory.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.shared.effects.pop_front()
    }

    /// Reports what an [`Effect::Rmw`] found in memory.
    pub fn rmw_done(&mut self, qp: QpId, psn: Psn, original: u64) {
        if let Some(qp) = self.qps.get_mut(qp.0) {
            qp.rmw_done(&mut self.shared, psn, original);
        }
    }

    /// Reports that a plan named memory that does not exist: its queue pair fails.
    pub fn memory_fault(&mut self, qp: QpId) {
        self.shared.counters.memory_faults += 1;
        if let Some(qp) = self.qps.get_mut(qp.0) {
            qp.fail_with(&mut self.shared, AsyncEvent::QpFatal(qp.id));
        }
    }

    /// The next packet that is due. Queue pairs take turns.
    pub fn transmit(&mut self, now: Instant) -> Transmit {
        self.shared.now = now;
        self.run_timers();
        for _ in 0..MAX_TURNS {
            let Some(id) = self.shared.ready.front().copied() else { return Transmit::Idle };
            match self.turn(id) {
                Transmit::Packet(out) => return Transmit::Packet(out),
                Transmit::Again => {}
                Transmit::Idle => self.end_turn(id, false),
            }
        }
        Transmit::Again
    }

    fn turn(&mut self, id: QpId) -> Transmit {
        let Some(qp) = self.qps.get_mut(id.0) else { return Transmit::Idle };
        let step = qp.transmit(&mut self.shared);
        qp.schedule(&mut self.shared);
        if !matches!(step, Transmit::Idle) {
            self.burst += 1;
            if self.burst >= self.shared.config.burst {
                self.end_turn(id, true);
            }
        }
        step
    }

    /// Lets the next queue pair send; this one comes last if it has more.
    fn end_turn(&mut self, id: QpId, more: bool) {
        self.burst = 0;
        self.shared.ready.pop_front();
        let Some(qp) = self.qps.get_mut(id.0) else { return };
        qp.set_unqueued();
        if more {
            qp.wake(&mut self.shared);
        }
    }

    fn run_timers(&mut self) {
        for _ in 0..MAX_TURNS {
            let Some(id) = self.shared.timers.pop_due(self.shared.now) else { return };
            if let Some(qp) = self.qps.get_mut(id.0) {
                qp.on_timer(&mut self.shared);
            }
        }
    }

    /// Whether something may be due at once.
    pub fn has_work(&self) -> bool {
        !self.shared.ready.is_empty()
    }

    /// When [`Engine::transmit`] must be called next even if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.timers.next()
    }

    /// From now on machine `mac` is reached by a channel: packets to it may be as long as [`MAX_CHUNK`].
    pub fn add_neighbour(&mut self, mac: MacAddr, carrier: Carrier) {
        self.shared.neighbours.add(mac, carrier);
    }

    /// The channel to machine `mac` is gone, and what was in it with it: its queue pairs send again over the wire.
    pub fn remove_neighbour(&mut self, mac: MacAddr) {
        let waiting = self.shared.neighbours.remove(mac);
        self.wake_all(waiting);
        for qp in self.qps.iter_mut().filter(|qp| qp.is_rc() && qp.path.dmac == mac) {
            qp.send_again(&mut self.shared);
        }
    }

    /// Whether the channel to machine `mac` is full: queue pairs that send to it then wait.
    pub fn set_blocked(&mut self, mac: MacAddr, blocked: bool) {
        let waiting = self.shared.neighbours.set_blocked(mac, blocked);
        self.wake_all(waiting);
    }

    fn wake_all(&mut self, waiting: impl IntoIterator<Item = QpId>) {
        for id in waiting {
            if let Some(qp) = self.qps.get_mut(id.0) {
                qp.wake(&mut self.shared);
            }
        }
    }

    /// The machines that queue pairs are connected to.
    pub fn peers(&self) -> BTreeSet<MacAddr> {
        let connected = self.qps.iter().filter(|(_, qp)| qp.is_rc() && !qp.path.dst.is_zero());
        connected.map(|(_, qp)| qp.path.dmac).collect()
    }

    /// What carries the packets of a connected queue pair.
    pub fn carrier(&self, qp: QpId) -> Option<Carrier> {
        let path = &self.qps.get(qp.0).filter(|qp| qp.is_rc() && !qp.path.dst.is_zero())?.path;
        Some(if self.owns(&path.dst) {
            Carrier::Itself
        } else {
            self.shared.neighbours.carrier(path.dmac).unwrap_or(Carrier::Wire)
        })
    }

    /// Whether, since this was asked last, something was taken back that plans may have named: a region, or the memory of
    /// an unfinished request. Nobody may read of it any more before that is told to anyone.
    pub const fn take_revoked(&mut self) -> bool {
        std::mem::replace(&mut self.shared.revoked, false)
    }

    /// Whether, since this was asked last, a queue pair failed: on its behalf nobody may write any more before that is told
    /// to anyone.
    pub const fn take_ended(&mut self) -> bool {
        std::mem::replace(&mut self.shared.ended, false)
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<ProviderEvent> {
        self.shared.events.pop_front()
    }
}
