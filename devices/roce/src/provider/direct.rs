//! Packets that need no frames: to the device itself, and over channels to other machines.

use std::net::IpAddr;

use device_model::direct::{Channel, Exchange};
use device_model::net::MacAddr;
use device_model::ram::{GuestRam, RamError, RamSlice};
use device_model::time::Instant;
use verbs::Gid;

use super::RoceProvider;
use super::lines::Line;
use super::mover::{Mover, Received};
use crate::engine::Engine;
use crate::engine::plan::Outgoing;
use crate::wire::message::{FRAME, FRAME_AT, Location, MAX_VALUE, MESSAGE};
use crate::wire::{Frame, Message, Pdu};

impl RoceProvider {
    /// Uses channels that `exchange` makes.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Box<dyn Exchange>) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// Uses `channel` for all packets to the machine with this address from now on, in place of one there may have been.
    pub fn attach(&mut self, peer: MacAddr, channel: Box<dyn Channel>) {
        self.detach(peer);
        self.engine.add_neighbour(peer);
        self.lines.push(Line::new(peer, channel));
    }

    /// Gives up the channel to a machine, if there is one.
    pub fn detach(&mut self, peer: MacAddr) {
        let before = self.lines.len();
        self.lines.retain(|line| line.peer != peer);
        if self.lines.len() != before {
            self.engine.counters_mut().direct_losses += 1;
            self.engine.remove_neighbour(peer);
        }
    }

    /// A connection to the machine with this address was made.
    pub(super) fn want(&mut self, peer: MacAddr) {
        if let Some(exchange) = &mut self.exchange {
            exchange.want(peer);
        }
    }

    /// Takes over channels that have come about, and gives up those that work no more.
    pub(super) fn follow_channels(&mut self) {
        while let Some((peer, channel)) = self.exchange.as_mut().and_then(|exchange| exchange.poll()) {
            self.attach(peer, channel);
        }
        while let Some(peer) = self.lines.iter().find(|line| !line.channel.is_up()).map(|line| line.peer) {
            self.detach(peer);
        }
    }

    /// Sends a packet that needs no frame. Returns `false` for one that does.
    pub(super) fn send_direct(&mut self, out: &Outgoing) -> bool {
        let own = self.engine.owns(&out.path.dst);
        let line = self.lines.iter_mut().find(|line| line.peer == out.path.dmac);
        if !own && line.is_none() {
            return false;
        }
        let datagram = matches!(out.packet.pdu, Pdu::Datagram { .. });
        let record = if datagram { self.mover.frame_record(out) } else { self.mover.message(out) };
        let Some(record) = record else {
            self.engine.memory_fault(out.qp);
            return true;
        };
        self.engine.counters_mut().direct_tx_records += 1;
        match line {
            _ if own => self.hairpin.push(record),
            // Who has no patience can be lost, and the wire may have room.
            Some(line) if datagram => return line.try_send(record),
            Some(line) => {
                let sent = line.send(record, out.len > MAX_VALUE);
                if !sent {
                    self.engine.set_blocked(line.peer, true);
                }
            }
            None => {}
        }
        true
    }

    /// Tries again to send what found no room.
    pub(super) fn retry_held(&mut self) {
        for line in &mut self.lines {
            if line.retry() {
                self.engine.set_blocked(line.peer, false);
            }
        }
    }

    /// Takes what turned around, as much as there was at the start.
    pub(super) fn take_hairpin(&mut self, now: Instant) {
        for _ in 0..self.hairpin.len() {
            let Some(record) = self.hairpin.pop() else { break };
            take_record(&mut self.engine, &self.mover, now, None, &record);
            self.hairpin.recycle(record);
        }
    }

    /// Takes records that came over channels. Returns whether there may be more.
    pub(super) fn take_records(&mut self, now: Instant) -> bool {
        let Self { engine, mover, lines, record, .. } = self;
        lines.iter_mut().fold(false, |more, line| {
            let peer = line.peer;
            let take = |channel: &dyn Channel, record: &[u8]| {
                take_record(engine, mover, now, Some((peer, channel)), record);
            };
            line.receive(record, take) || more
        })
    }

    /// Sees to it that what was taken back is read by nobody any more: what turned around is taken now, and peers are waited
    /// for. Meanwhile their records are taken too, since they may wait for the same thing. A peer that takes too long
    /// loses its channel.
    pub(super) fn settle(&mut self) {
        while self.engine.take_revoked() {
            let now = self.now;
            self.take_hairpin(now);
            self.lines.iter_mut().for_each(|line| line.channel.flush());
            while let Some(at) = self.lines.iter_mut().position(|line| !line.is_settled()) {
                self.take_records(now);
                self.retry_held();
                let Some(line) = self.lines.get_mut(at) else { break };
                line.channel.flush();
                let peer = line.peer;
                if !line.is_settled() && !line.channel.wait() {
                    tracing::warn!(%peer, "Machine does not let go of memory that was taken back: its channel is closed");
                    self.detach(peer);
                }
            }
        }
    }
}

/// Takes one record, from the device itself or from a channel.
fn take_record(
    engine: &mut Engine,
    mover: &Mover,
    now: Instant,
    from: Option<(MacAddr, &dyn Channel)>,
    record: &[u8],
) {
    let taken = match record.first() {
        Some(&FRAME) => take_datagram(engine, mover, now, from, record.get(FRAME_AT..).unwrap_or_default()),
        Some(&MESSAGE) => take_message(engine, mover, now, from, record),
        _ => None,
    };
    if taken.is_none() {
        engine.counters_mut().dropped_malformed += 1;
    }
}

fn take_datagram(
    engine: &mut Engine,
    mover: &Mover,
    now: Instant,
    from: Option<(MacAddr, &dyn Channel)>,
    bytes: &[u8],
) -> Option<()> {
    let frame = Frame::parse(bytes).ok()?;
    if !matches!(frame.packet.pdu, Pdu::Datagram { .. }) {
        return None;
    }
    if !engine.owns(&frame.dst) || !may_use(from, &frame.src) {
        engine.counters_mut().dropped_address += 1;
        return Some(());
    }
    engine.receive(now, &frame);
    mover.apply(engine, Received::Here(bytes));
    Some(())
}

fn take_message(
    engine: &mut Engine,
    mover: &Mover,
    now: Instant,
    from: Option<(MacAddr, &dyn Channel)>,
    record: &[u8],
) -> Option<()> {
    let message = Message::parse(record).ok()?;
    if !engine.owns(&message.dst) || !may_use(from, &message.src) {
        engine.counters_mut().dropped_address += 1;
        return Some(());
    }
    let peer = from.map(|(peer, _)| peer);
    match (&message.payload, from) {
        (Location::Value(range), _) => {
            let payload = record.get(range.clone())?;
            engine.receive_direct(now, peer, &message);
            mover.apply(engine, Received::Here(payload));
        }
        (Location::Runs(runs), Some((_, channel))) => {
            // Before anything is done: once the engine has taken a message, copying it must not fail.
            if !runs.iter().all(|run| channel.reaches(run.gpa, run.len)) {
                return None;
            }
            engine.receive_direct(now, peer, &message);
            mover.apply(engine, Received::There(runs, &|gpa, to| channel.pull(gpa, to)));
        }
        (Location::Runs(runs), None) => {
            engine.receive_direct(now, peer, &message);
            let ram = mover.ram();
            mover.apply(engine, Received::There(runs, &|gpa, to| copy_within(ram, gpa, to)));
        }
    }
    Some(())
}

fn copy_within(ram: &dyn GuestRam, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
    ram.slice(gpa, to.len())?.copy_to_volatile_slice(*to);
    Ok(())
}

/// Whether a machine may send from an address.
fn may_use(from: Option<(MacAddr, &dyn Channel)>, source: &Gid) -> bool {
    from.is_none_or(|(_, channel)| {
        channel.may_use(source.ipv4().map_or_else(|| IpAddr::from(source.0), IpAddr::from))
    })
}
