//! Random requests.

use std::ops::Range;

use verbs::{Access, FastReg, PageList, Provider, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};

use crate::area::{Area, Pieces};
use crate::common::Rng;
use crate::load::Load;
use crate::model::{Action, COUNTER, Extra, Request};
use crate::plan::{self, MAX_MESSAGE, SLOT, SLOTS};

/// Address of fast-registered regions.
const FAST_BASE: u64 = 0x6000_0000_0000;
/// Requests of an end that may be unfinished.
const MOST_OUTSTANDING: usize = 10;
/// A message that is longer by this fits no receive.
const LONGER: usize = 64;
/// Most pieces of a message.
const MOST_PIECES: u64 = 8;

/// An end's fast-registration region: its peer's part of this node's memory under another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fast {
    Free,
    Registering,
    Registered,
    Invalidating,
}

/// Splits `len` bytes of the slot at `start` into pieces with gaps between them, in any order.
pub fn split(rng: &mut Rng, start: usize, len: usize) -> Pieces {
    let count = 1 + rng.below(MOST_PIECES) as usize;
    let mut cuts: Vec<usize> = (1..count).map(|_| rng.below(len as u64 + 1) as usize).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let mut at = start;
    let mut pieces: Pieces = cuts
        .windows(2)
        .map(|cut| {
            at += rng.below(16) as usize;
            let piece = at..at + cut[1] - cut[0];
            at = piece.end;
            piece
        })
        .collect();
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, rng.below(i as u64 + 1) as usize);
    }
    pieces
}

impl Load {
    /// A slot of an end's own memory that no unfinished request uses.
    fn free_slot(&self, end: usize) -> Option<usize> {
        let slots = (0..SLOTS).map(|i| plan::request_slot(end, i));
        slots.into_iter().find(|start| !self.model.uses(end, &(*start..start + SLOT)))
    }

    /// Posts a request of any kind, if there is room.
    pub fn post_any(&mut self, end: usize) {
        if self.model.outstanding(end) >= MOST_OUTSTANDING || self.model.failed(end) {
            return;
        }
        let Some(slot) = self.free_slot(end) else { return };
        match self.rng.below(20) {
            0..=2 => self.post_send(end, slot),
            3..=7 => self.post_write(end, slot),
            8..=11 => self.post_read(end, slot),
            12..=14 => self.post_atomic(end, slot),
            15..=16 => self.post_count(end, slot),
            _ => self.post_key_change(end),
        }
    }

    /// Puts new bytes where a request takes them from.
    fn source(&mut self, end: usize, slot: usize) -> Pieces {
        let len = self.length();
        let pieces = split(&mut self.rng, slot, len);
        let node = self.ends[end].node;
        for piece in &pieces {
            let bytes = self.rng.bytes(piece.len());
            self.store(node, piece.start, &bytes);
        }
        pieces
    }

    /// A length: none, near a multiple of the packet size, or any.
    fn length(&mut self) -> usize {
        let mtu = self.plan.connection.mtu.bytes() as usize;
        let rng = &mut self.rng;
        let len = match rng.below(8) {
            0 => rng.below(4) as usize,
            1..=3 => (1 + rng.below(4) as usize) * mtu + rng.below(3) as usize - 1,
            4..=6 => rng.below(1500) as usize,
            _ => rng.below(MAX_MESSAGE as u64 + 1) as usize,
        };
        len.min(MAX_MESSAGE)
    }

    fn any_place(&mut self, end: usize, len: usize) -> usize {
        let target = self.ends[end].target.clone();
        target.start + self.rng.below((target.len() - len + 1) as u64) as usize
    }

    fn any_imm(&mut self) -> Option<[u8; 4]> {
        self.rng.percent(50).then(|| (self.rng.next() as u32).to_be_bytes())
    }

    fn post_send(&mut self, end: usize, slot: usize) {
        let pieces = self.source(end, slot);
        let imm = self.any_imm();
        let extra = imm.map_or(Extra::Nothing, Extra::Immediate);
        self.post(end, Action::Send(extra), SendOp::Send { imm }, pieces, false);
    }

    fn post_write(&mut self, end: usize, slot: usize) {
        // What an earlier READ brings may be passed on, by a request that waits for it.
        let read = self.model.last_read(end).filter(|_| self.rng.percent(30));
        let fenced = read.is_some();
        let pieces = read.unwrap_or_else(|| self.source(end, slot));
        let len = crate::area::total(&pieces);
        let at = self.any_place(end, len);
        let imm = self.any_imm().filter(|_| self.rng.percent(50));
        let (addr, rkey) = self.remote(end, at);
        let fenced = fenced || self.model.is_being_read(end, &(at..at + len));
        self.post(end, Action::Write { at, imm }, SendOp::Write { addr, rkey, imm }, pieces, fenced);
    }

    fn post_read(&mut self, end: usize, slot: usize) {
        let len = self.length();
        let pieces = split(&mut self.rng, slot, len);
        let at = self.any_place(end, len);
        let (addr, rkey) = self.remote(end, at);
        self.post(end, Action::Read { at }, SendOp::Read { addr, rkey }, pieces, false);
    }

    fn post_atomic(&mut self, end: usize, slot: usize) {
        let pieces = split(&mut self.rng, slot, 8);
        let at = self.any_place(end, 8) & !7;
        let (addr, rkey) = self.remote(end, at);
        let fenced = self.model.is_being_read(end, &(at..at + 8));
        let (action, op) = if self.rng.percent(50) {
            let add = self.rng.next();
            (Action::Add { at, add }, SendOp::FetchAdd { addr, rkey, add })
        } else {
            let hit = self.rng.percent(70);
            let compare = if hit { self.model.word(end, at) } else { self.rng.next() };
            let swap = self.rng.next();
            (Action::Swap { at, compare, swap }, SendOp::CompareSwap { addr, rkey, compare, swap })
        };
        self.post(end, action, op, pieces, fenced);
    }

    fn post_count(&mut self, end: usize, slot: usize) {
        let pieces = split(&mut self.rng, slot, 8);
        let add = 1 + self.rng.below(1000);
        let rkey = self.areas[self.ends[self.ends[end].peer].node].rkey();
        let op = SendOp::FetchAdd { addr: Area::va(COUNTER), rkey, add };
        self.post(end, Action::Count { add }, op, pieces, false);
    }

    /// Moves the end's own fast-registration region, or its peer's, to its next state.
    fn post_key_change(&mut self, end: usize) {
        let peer = self.ends[end].peer;
        if self.fast[end].0 == Fast::Free {
            self.register_fast(end);
        } else if self.fast[peer].0 == Fast::Registered && self.rng.percent(50) {
            let rkey = self.fast[peer].1;
            self.fast[peer].0 = Fast::Invalidating;
            let Some(slot) = self.free_slot(end) else { return };
            let pieces = self.source(end, slot);
            let action = Action::Send(Extra::Invalidate(rkey));
            self.post(end, action, SendOp::SendInv { rkey }, pieces, true);
        } else if self.fast[end].0 == Fast::Registered && !self.model.uses_fast_key(peer) {
            self.fast[end].0 = Fast::Invalidating;
            let key = self.fast[end].1;
            self.post(end, Action::LocalInv, SendOp::LocalInv { key }, vec![], false);
        }
    }

    fn register_fast(&mut self, end: usize) {
        let target = self.ends[self.ends[end].peer].target.clone();
        let key = self.fast[end].1 & !0xff | (self.fast[end].1 + 1) & 0xff;
        self.fast[end] = (Fast::Registering, key);
        let area = &self.areas[self.ends[end].node];
        let reg = FastReg {
            key,
            iova: FAST_BASE,
            length: target.len() as u32,
            access: Access::all(),
            pages: PageList::new(12, area.pages(target)).unwrap(),
        };
        self.post(end, Action::FastReg, SendOp::FastReg(Box::new(reg)), vec![], false);
    }

    /// Posts a request that the device or its peer must refuse.
    pub fn post_doomed(&mut self, end: usize) {
        let Some(slot) = self.free_slot(end).filter(|_| !self.model.failed(end)) else { return };
        let (addr, rkey) = (Area::va(self.ends[end].target.start), self.areas[0].rkey() ^ 0x5a5a_5a00);
        let good = self.areas[self.ends[self.ends[end].peer].node].rkey();
        if self.rng.percent(20) {
            let pieces = std::iter::once(slot..slot + MAX_MESSAGE + LONGER).collect();
            return self.post(end, Action::TooLong, SendOp::Send { imm: None }, pieces, false);
        }
        let pieces = split(&mut self.rng, slot, 8);
        let (op, status, opcode) = match self.rng.below(4) {
            0 => {
                let op = SendOp::Write { addr, rkey, imm: None };
                (op, WcStatus::RemAccessErr, WcOpcode::RdmaWrite)
            }
            1 => (SendOp::Read { addr, rkey }, WcStatus::RemAccessErr, WcOpcode::RdmaRead),
            2 => {
                let op = SendOp::FetchAdd { addr: addr + 4, rkey: good, add: 1 };
                (op, WcStatus::RemInvReqErr, WcOpcode::FetchAdd)
            }
            _ => (SendOp::Bad(WcStatus::LocLenErr), WcStatus::LocLenErr, WcOpcode::Send),
        };
        self.post(end, Action::Doomed(status, opcode), op, pieces, false);
    }

    /// Address and key of a place in the peer's memory: one of two ways, when there are two.
    fn remote(&mut self, end: usize, at: usize) -> (u64, u32) {
        let peer = self.ends[end].peer;
        let (state, key) = self.fast[peer];
        if state == Fast::Registered && self.rng.percent(50) {
            (FAST_BASE + (at - self.ends[end].target.start) as u64, key)
        } else {
            (Area::va(at), self.areas[self.ends[peer].node].rkey())
        }
    }

    fn post(&mut self, end: usize, action: Action, op: SendOp, pieces: Pieces, fenced: bool) {
        self.serial += 1;
        let wr_id = self.serial;
        let is_key_change = matches!(action, Action::FastReg | Action::LocalInv);
        let signaled = is_key_change || action.fate().is_some() || self.rng.percent(60);
        let solicited =
            matches!(action, Action::Send(_) | Action::TooLong | Action::Write { imm: Some(_), .. })
                && self.rng.percent(30);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::SOLICITED, solicited);
        flags.set(SendFlags::FENCE, fenced || self.rng.percent(5));
        let via_fast = match op {
            SendOp::Write { addr, .. } | SendOp::Read { addr, .. } => is_fast(addr),
            SendOp::FetchAdd { addr, .. } | SendOp::CompareSwap { addr, .. } => is_fast(addr),
            _ => false,
        };
        let node = self.ends[end].node;
        let sges = self.areas[node].sges(&pieces).into();
        let wr = SendWr { wr_id, op, flags, sges };
        self.world.nodes[node].provider.post_send(self.ends[end].qp, wr).unwrap();
        self.model.post(end, Request { wr_id, action, pieces, signaled, solicited, via_fast });
    }

    /// Posts a receive. Returns `false` when there is no room.
    pub fn post_receive(&mut self, pool: usize) -> bool {
        let waiting = &self.model.pools[pool].waiting;
        let in_use = |slot: Range<usize>| {
            waiting.iter().any(|(_, pieces)| pieces.iter().any(|piece| slot.contains(&piece.start)))
        };
        let slots = (0..SLOTS).map(|i| plan::receive_slot(pool, i));
        let Some(slot) = slots.into_iter().find(|start| !in_use(*start..start + SLOT)) else { return false };
        let len = MAX_MESSAGE + self.rng.below(LONGER as u64) as usize;
        let pieces = split(&mut self.rng, slot, len);
        self.serial += 1;
        let wr_id = self.serial;
        let (node, srq) = (self.model.pools[pool].node, self.model.pools[pool].srq);
        let sges = self.areas[node].sges(&pieces).into();
        let wr = RecvWr { wr_id, sges, bad: None };
        let qp = self.ends.iter().find(|end| end.pool == pool).map(|end| end.qp);
        let provider = &mut self.world.nodes[node].provider;
        match (srq, qp) {
            (Some(srq), _) => provider.post_srq_recv(srq, wr).unwrap(),
            (None, qp) => provider.post_recv(qp.unwrap(), wr).unwrap(),
        }
        self.model.pools[pool].waiting.push_back((wr_id, pieces));
        true
    }
}

fn is_fast(addr: u64) -> bool {
    addr >> 40 == FAST_BASE >> 40
}
