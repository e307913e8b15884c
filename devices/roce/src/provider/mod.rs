//! The engine as a [`verbs::Provider`]: with guest memory under it, and an Ethernet link and channels beside it.

mod direct;
mod hairpin;
mod lines;
mod mover;
mod outbox;
mod waiting;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use device_model::direct::{Exchange, MAX_RECORD};
use device_model::net::{Link, MacAddr};
use device_model::ram::GuestRam;
use device_model::save::{Record, RestoreError, SaveError};
use device_model::time::Instant;
use verbs::{
    Carrier, CqId, CqInit, Error, GidEntry, Keys, Limits, MrId, MrInit, Mtu, Owner, PdId, Provider,
    ProviderEvent, QpAttr, QpAttrMask, QpId, QpInit, Qpn, RecvWr, SendWr, SrqAttr, SrqId, SrqInit,
};

use self::hairpin::Hairpin;
use self::lines::Line;
use self::mover::{Mover, Received};
use self::outbox::Outbox;
use crate::engine::{Config, Counters, Engine, Transmit};
use crate::wire::{self, Frame};

/// Packets one call of [`Provider::advance`] sends at most.
const BATCH: usize = 64;
/// How long a full link is left alone; twice as long each time, since nothing tells when it has room.
const LINK_RETRY: Duration = Duration::from_micros(50);
/// But no longer than this.
const LINK_RETRY_MAX: Duration = Duration::from_millis(2);

/// What a provider is made of.
#[derive(Clone, Debug)]
pub struct RoceConfig {
    /// Own Ethernet address.
    pub mac: MacAddr,
    /// Tunables of the engine.
    pub engine: Config,
}

impl RoceConfig {
    /// Defaults, with a secret of its own.
    pub fn new(mac: MacAddr) -> Self {
        // The standard library's hash keys are random bytes of the operating system.
        let secret = RandomState::new().hash_one(mac.0);
        Self { mac, engine: Config { secret, ..Config::default() } }
    }
}

/// A RoCE v2 device: engine, guest memory, link, and channels to other machines.
///
/// Packets to own addresses never reach the link: they turn around inside. Packets to a machine with a channel go that way.
pub struct RoceProvider {
    engine: Engine,
    mover: Mover,
    link: Arc<dyn Link>,
    outbox: Outbox,
    hairpin: Hairpin,
    lines: Vec<Line>,
    exchange: Option<Box<dyn Exchange>>,
    /// The record being taken.
    record: Box<[u8; MAX_RECORD]>,
    /// The time of the latest call that was told one.
    now: Instant,
    /// Whether the port carries packets.
    port_up: bool,
    /// The link had no room for the frames that are left in the outbox.
    stalled: Option<Stall>,
}

/// A link without room.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// When to try again.
    until: Instant,
    /// How long that was from the last time.
    wait: Duration,
}

impl Stall {
    fn new(now: Instant, wait: Duration) -> Self {
        Self { until: now + wait, wait }
    }

    fn again(self, now: Instant) -> Self {
        Self::new(now, (self.wait * 2).min(LINK_RETRY_MAX))
    }
}

impl RoceProvider {
    /// A device without objects. The largest path MTU is the largest that fits the link.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when not even the smallest path MTU fits the link.
    pub fn new(config: RoceConfig, ram: Arc<dyn GuestRam>, link: Arc<dyn Link>) -> Result<Self, Error> {
        let mut engine = Engine::new(config.engine, Box::new(Arc::clone(&ram)));
        engine.set_active_mtu(active_mtu(&*link)?);
        let mover = Mover::new(config.mac, ram);
        Ok(Self {
            engine,
            mover,
            link,
            outbox: Outbox::new(),
            hairpin: Hairpin::default(),
            lines: Vec::new(),
            exchange: None,
            record: Box::new([0; MAX_RECORD]),
            now: Instant::ZERO,
            port_up: true,
            stalled: None,
        })
    }

    /// What was counted.
    pub const fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    fn take_frame(&mut self, now: Instant, bytes: &[u8]) {
        match Frame::parse(bytes) {
            // Carried out now, it would be written to by what is fetched.
            Ok(frame) if self.lines.iter().any(|line| line.waiting.is_busy(frame.packet.dest)) => {
                self.engine.counters_mut().dropped_fetching += 1;
            }
            Ok(frame) => {
                self.engine.receive(now, &frame);
                self.mover.apply(&mut self.engine, Received::Here(bytes));
            }
            Err(error) => self.engine.count_bad_frame(error),
        }
    }

    /// Sends the frames of the outbox, or what the link has no room for later. Returns whether the link may be used.
    fn flush(&mut self, now: Instant) -> bool {
        let frames = self.outbox.waiting();
        if frames.is_empty() {
            return true;
        }
        let sent = if self.port_up { self.link.send_batch(&frames).ok() } else { None };
        let taken = match sent {
            Some(taken) => taken,
            None => {
                // The link is gone, or the port down; time-outs will tell whoever waits.
                self.engine.counters_mut().tx_failed += frames.len() as u64;
                frames.len()
            }
        };
        drop(frames);
        let left = self.outbox.take(taken);
        if self.stalled.is_none() {
            self.engine.counters_mut().tx_deferred += left as u64;
        }
        self.stalled = match self.stalled {
            _ if left == 0 => None,
            Some(stall) if taken == 0 => Some(stall.again(now)),
            _ => Some(Stall::new(now, LINK_RETRY)),
        };
        left == 0
    }

    /// Tries frames that the link had no room for again. Returns whether the link may be used.
    fn unstall(&mut self, now: Instant) -> bool {
        match self.stalled {
            None => true,
            Some(stall) if stall.until > now => false,
            Some(_) => self.flush(now),
        }
    }

    /// Sends what is due, a bounded amount. Returns whether there may be more.
    fn send_batch(&mut self, now: Instant) -> bool {
        let more = (0..BATCH).all(|_| self.send_next(now));
        self.stalled.is_none() && self.flush(now) && more
    }

    /// Sends one packet, or puts its frame into the outbox. Returns `false` when there is none, or no room for it.
    fn send_next(&mut self, now: Instant) -> bool {
        if self.outbox.is_full() && !self.flush(now) {
            return false;
        }
        let out = match self.engine.transmit(now) {
            Transmit::Packet(out) => out,
            Transmit::Again => return true,
            Transmit::Idle => return false,
        };
        if self.send_direct(&out) {
            return true;
        }
        let counters = self.engine.counters_mut();
        counters.tx_packets += 1;
        counters.tx_bytes += u64::from(out.len);
        if self.outbox.push(|place| self.mover.gather(&out, place)).is_none() {
            self.engine.memory_fault(out.qp);
        }
        true
    }
}

/// The largest path MTU whose packets fit a link.
fn active_mtu(link: &dyn Link) -> Result<Mtu, Error> {
    let mtu = Mtu::largest_within(u32::from(link.mtu()), wire::MAX_OVERHEAD);
    mtu.ok_or(Error::Unsupported("the link's MTU leaves no room for RoCE packets"))
}

impl Provider for RoceProvider {
    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn create_pd(&mut self, pd: PdId, owner: Owner) -> Result<(), Error> {
        self.engine.create_pd(pd, owner)
    }

    fn destroy_pd(&mut self, pd: PdId) -> Result<(), Error> {
        self.engine.destroy_pd(pd)
    }

    fn register_mr(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error> {
        self.engine.register_mr(mr, init)
    }

    fn deregister_mr(&mut self, mr: MrId) -> Result<(), Error> {
        let done = self.engine.deregister_mr(mr);
        self.settle();
        done
    }

    fn create_cq(&mut self, cq: CqId, init: CqInit) -> Result<(), Error> {
        self.engine.create_cq(cq, init)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.engine.destroy_cq(cq)
    }

    fn fail_cq(&mut self, cq: CqId) {
        self.engine.fail_cq(cq);
        self.settle();
    }

    fn create_srq(&mut self, srq: SrqId, init: SrqInit) -> Result<(), Error> {
        self.engine.create_srq(srq, init)
    }

    fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), Error> {
        self.engine.set_srq_limit(srq, limit)
    }

    fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        self.engine.query_srq(srq)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Error> {
        self.engine.destroy_srq(srq)
    }

    fn create_qp(&mut self, qp: QpId, init: QpInit) -> Result<Qpn, Error> {
        self.engine.create_qp(qp, init)
    }

    fn modify_qp(&mut self, now: Instant, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.now = now;
        let done = self.engine.modify_qp(now, qp, attr, mask);
        self.settle();
        if done.is_ok() && mask.contains(QpAttrMask::AV) {
            self.want(attr.av.dmac);
        }
        done
    }

    fn query_qp(&self, qp: QpId) -> Result<QpAttr, Error> {
        self.engine.query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), Error> {
        let done = self.engine.destroy_qp(qp);
        self.settle();
        done
    }

    fn set_gid(&mut self, entry: GidEntry) -> Result<(), Error> {
        self.engine.set_gid(entry)
    }

    fn clear_gid(&mut self, index: u16) -> Result<(), Error> {
        self.engine.clear_gid(index)
    }

    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), Error> {
        self.engine.post_send(qp, wr)
    }

    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), Error> {
        self.engine.post_recv(qp, wr)
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), Error> {
        self.engine.post_srq_recv(srq, wr)
    }

    fn set_port(&mut self, up: bool) {
        if std::mem::replace(&mut self.port_up, up) != up {
            self.follow_port();
        }
    }

    fn claims(&self, frame: &[u8]) -> bool {
        wire::destination(frame).is_some_and(|gid| self.engine.owns(&gid))
            || self.exchange.as_ref().is_some_and(|exchange| exchange.claims(frame))
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        if !self.port_up {
            self.engine.counters_mut().dropped_port_down += 1;
            return;
        }
        match &mut self.exchange {
            Some(exchange) if exchange.claims(frame) => exchange.receive(now, frame),
            _ => self.take_frame(now, frame),
        }
        self.settle();
    }

    fn advance(&mut self, now: Instant) -> bool {
        self.now = now;
        self.follow_channels(now);
        self.take_hairpin(now);
        self.take_fetched(now);
        let mut more = self.take_records(now);
        self.retry_held();
        if self.unstall(now) {
            more |= self.send_batch(now);
        }
        self.lines.iter_mut().for_each(|line| line.channel.flush());
        self.settle();
        more | !self.hairpin.is_empty()
    }

    fn rest(&mut self) -> bool {
        // The others are asked again when they are about to rest the next time.
        self.lines.iter_mut().all(|line| line.channel.rest())
    }

    fn carrier(&self, qp: QpId) -> Option<Carrier> {
        self.engine.carrier(qp)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let exchange = self.exchange.as_ref().and_then(|exchange| exchange.next_deadline());
        let timers = self.engine.next_deadline().into_iter().chain(exchange).min();
        match self.stalled {
            // While the link is full, waiting packets are no reason to come earlier.
            Some(Stall { until, .. }) => Some(timers.map_or(until, |timer| timer.min(until))),
            None => timers,
        }
    }

    fn poll_event(&mut self) -> Option<ProviderEvent> {
        self.engine.poll_event()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.counters().iter().collect()
    }

    fn reset(&mut self) {
        self.engine.reset();
        self.settle();
        self.hairpin.clear();
        self.outbox.clear();
        self.stalled = None;
    }

    fn save(&mut self, now: Instant) -> Result<Record, SaveError> {
        // Whoever runs the machine next may have the same memory.
        self.finish_fetches();
        self.engine.save(now)
    }

    fn restore(&mut self, now: Instant, record: &Record) -> Result<(), RestoreError> {
        self.reset();
        self.engine.restore(now, record)?;
        self.engine.peers().into_iter().for_each(|peer| self.want(peer));
        Ok(())
    }
}
