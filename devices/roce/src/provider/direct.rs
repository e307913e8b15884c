//! Packets that need no frames: to the device itself, and over channels to other machines.

use std::io::IoSlice;
use std::net::IpAddr;

use device_model::direct::{Channel, Exchange, MAX_PIECES};
use device_model::net::MacAddr;
use device_model::ram::{GuestRam, RamError, RamSlice};
use device_model::time::Instant;
use verbs::{Carrier, Gid, Segments};

use super::RoceProvider;
use super::lines::Line;
use super::mover::{Mover, Received};
use super::waiting::{Verdict, pieces};
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
        let mut line = Line::new(peer, channel);
        let carrier = line.channel.fetcher().map_or(Carrier::Direct, |_| Carrier::Tunnel);
        self.engine.add_neighbour(peer, carrier);
        self.lines.push(line);
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

    /// The port came up or went down. While it is down there are no channels: a machine that is not on the network has
    /// none either.
    pub(super) fn follow_port(&mut self) {
        if self.port_up {
            self.engine.peers().into_iter().for_each(|peer| self.want(peer));
        } else {
            while let Some(peer) = self.lines.first().map(|line| line.peer) {
                self.detach(peer);
            }
        }
    }

    /// Takes over channels that have come about, and gives up those that work no more.
    pub(super) fn follow_channels(&mut self, now: Instant) {
        while let Some(frame) = self.exchange.as_mut().and_then(|exchange| exchange.transmit(now)) {
            // One that is lost is sent again.
            if self.port_up {
                let _ = self.link.send(&[IoSlice::new(&frame)]);
            }
        }
        while let Some((peer, channel)) = self.exchange.as_mut().and_then(|exchange| exchange.poll()) {
            if self.port_up {
                self.attach(peer, channel);
            }
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
        let mut more = false;
        for line in lines {
            more |= line.receive(record, |line, record| take_from(engine, mover, now, line, record));
        }
        more
    }

    /// Carries records out whose payloads have come, and looks at those behind them.
    pub(super) fn take_fetched(&mut self, now: Instant) {
        let Self { engine, mover, lines, .. } = self;
        for line in lines {
            line.take_fetched();
            look_at_due(engine, mover, now, line);
        }
    }

    /// Sees to it that what was taken back is read by nobody any more: what turned around is taken now, and peers are waited
    /// for. Meanwhile their records are taken too, since they may wait for the same thing. A peer that takes too long
    /// loses its channel.
    ///
    /// What is being fetched comes first: it may be written to what was taken back, or to what belongs to a queue pair that
    /// has failed. That depends on no peer's goodwill, only on its device.
    pub(super) fn settle(&mut self) {
        loop {
            let (revoked, ended) = (self.engine.take_revoked(), self.engine.take_ended());
            if revoked || ended {
                self.finish_fetches();
            }
            if !revoked {
                return;
            }
            let now = self.now;
            self.take_hairpin(now);
            self.lines.iter_mut().for_each(|line| line.channel.flush());
            while let Some(at) = self.lines.iter_mut().position(|line| !line.is_settled()) {
                self.take_fetched(now);
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

    /// Sees to it that nothing is fetched any more. A fetch that takes too long costs the channel.
    pub(super) fn finish_fetches(&mut self) {
        while let Some(line) = self.lines.iter_mut().find(|line| line.waiting.is_fetching()) {
            let peer = line.peer;
            if !line.finish_fetches() {
                tracing::warn!(%peer, "Payload does not come: the channel of its machine is closed");
                self.detach(peer);
            }
        }
    }
}

/// Takes one record from a channel, or lets it wait for its payload.
fn take_from(engine: &mut Engine, mover: &Mover, now: Instant, line: &mut Line, record: &[u8]) {
    let waits = match Message::parse(record) {
        Ok(message) if line.channel.fetcher().is_some() => {
            let by_reference = matches!(message.payload, Location::Runs(_));
            Some(message.packet.dest).filter(|qpn| by_reference || line.waiting.is_busy(*qpn))
        }
        _ => None,
    };
    if let Some(qpn) = waits {
        line.waiting.push(qpn, record);
        look_at_due(engine, mover, now, line);
        return;
    }
    take_record(engine, mover, now, Some((line.peer, &*line.channel)), record);
    if let Some(fetcher) = line.channel.fetcher() {
        fetcher.finish();
    }
}

/// Looks at records that wait and need not any more.
fn look_at_due(engine: &mut Engine, mover: &Mover, now: Instant, line: &mut Line) {
    while let Some((qpn, record, there)) = line.waiting.next() {
        let verdict = look_at(engine, mover, now, line, &record, there);
        if verdict == Verdict::Done
            && let Some(fetcher) = line.channel.fetcher()
        {
            fetcher.finish();
        }
        line.waiting.judge(qpn, record, verdict);
    }
}

/// Carries a record out, or has its payload fetched first. The engine says again where the payload belongs when that is
/// `there`: if it belongs elsewhere by now, or nowhere, it was fetched in vain.
fn look_at(
    engine: &mut Engine,
    mover: &Mover,
    now: Instant,
    line: &mut Line,
    record: &[u8],
    there: Option<Segments>,
) -> Verdict {
    if let Ok(message) = Message::parse(record)
        && let Location::Runs(runs) = &message.payload
        && engine.owns(&message.dst)
        && may_use(Some((line.peer, &*line.channel)), &message.src)
        && runs.iter().all(|run| line.channel.reaches(run.gpa, run.len))
    {
        let target = engine.target(now, line.peer, &message);
        if let Some(to) = target.as_ref().filter(|to| there.as_ref() != Some(to))
            && let Some(pieces) = pieces(runs, to).filter(|pieces| pieces.len() <= MAX_PIECES)
            && let Some(fetcher) = line.channel.fetcher()
        {
            return if fetcher.fetch(&pieces) { Verdict::Fetching(to.clone()) } else { Verdict::Starved };
        }
        engine.receive_direct(now, Some(line.peer), &message);
        mover.apply(engine, Received::Fetched(there.as_ref()));
        return Verdict::Done;
    }
    take_record(engine, mover, now, Some((line.peer, &*line.channel)), record);
    Verdict::Done
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
