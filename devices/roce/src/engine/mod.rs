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

use std::collections::{BTreeMap, VecDeque};

use device_model::time::Instant;
use verbs::{AsyncEvent, Gid, Limits, Mtu, ProviderEvent, QpId, Qpn};

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
use crate::wire::{Frame, FrameError, P_KEY_DEFAULT, Pdu};

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
            effects: VecDeque::new(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            timers: timers::Timers::default(),
            counters: Counters::default(),
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

    /// Takes a packet. [`Engine::next_effect`] must be asked until it has nothing more before the next call.
    pub fn receive(&mut self, now: Instant, frame: &Frame) {
        let Self { shared: cx, qps, .. } = self;
        cx.now = now;
        cx.counters.rx_packets += 1;
        cx.counters.rx_bytes += frame.payload.len() as u64;
        cx.counters.congestion_marks += u64::from(frame.congestion);
        // One of two members of a partition must be a full one (IBTA 10.9.3); this side is.
        if frame.packet.p_key | P_KEY_FULL != P_KEY_DEFAULT {
            cx.counters.dropped_pkey += 1;
            return;
        }
        let dest = frame.packet.dest;
        let id = Self::qp_id(self.secret, &self.named, dest);
        let Some(qp) = qps.get_mut(id.0).filter(|qp| qp.qpn == dest && qp.receives()) else {
            cx.counters.dropped_no_qp += 1;
            return;
        };
        Self::dispatch(cx, qp, frame);
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
            Pdu::Datagram { .. } => cx.counters.dropped_no_qp += 1,
            Pdu::Cnp => qp.on_cnp(cx),
            Pdu::Ack(_) | Pdu::ReadResponse { .. } | Pdu::AtomicAck { .. } => {
                qp.on_response(cx, packet, &frame.payload);
            }
            Pdu::Send { .. }
            | Pdu::SendInv { .. }
            | Pdu::Write { .. }
            | Pdu::ReadRequest(_)
            | Pdu::Atomic(_) => qp.on_request(cx, packet, &frame.payload),
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
                Transmit::Packet(out) => {
                    self.shared.counters.tx_packets += 1;
                    self.shared.counters.tx_bytes += u64::from(out.len);
                    return Transmit::Packet(out);
                }
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

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<ProviderEvent> {
        self.shared.events.pop_front()
    }
}
