//! Makes channels, and hears when a peer wakes this machine or is gone.
//!
//! The work is split in two, because one half waits for descriptors and the other is where packets are sent: the [`Driver`]
//! belongs to the event loop, the [`Handle`] to the RDMA device.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use device_model::direct::{Channel, Exchange};
use device_model::net::MacAddr;
use device_model::ram::Ram;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::channel::{Offer, take_wake_ups};
use crate::event::{Event, Timer};
use crate::switch::Operator;

/// Pause before a peer is called again, the first time and at most.
const REDIAL: Duration = Duration::from_millis(100);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// How long a peer may take to tell its terms.
const TERMS_TIME: Duration = Duration::from_secs(3);
/// Peers that are called at most.
const MAX_PEERS: usize = 1024;
/// Events of one turn.
const EVENTS: usize = 32;

/// Epoll keys of what is not a channel; those start above.
const ASKED: u64 = 0;
const TIMER: u64 = 1;
const SWITCH: u64 = 2;
const FIRST: u64 = 3;

/// What a machine brings into its channels.
pub struct DriverOptions {
    /// Socket of the switch.
    pub switch: PathBuf,
    /// The machine's Ethernet address there.
    pub mac: MacAddr,
    /// Addresses that the guest may send from; `None`: any.
    pub addresses: Option<Vec<IpAddr>>,
    /// Its memory.
    pub ram: Arc<Ram>,
}

/// A peer that a channel is wanted to.
#[derive(Clone, Copy, Debug)]
struct Want {
    next: Instant,
    pause: Duration,
}

/// The end of a channel that the driver listens to.
struct Live {
    peer: MacAddr,
    socket: Arc<OwnedFd>,
    alive: Arc<AtomicBool>,
}

/// Makes the channels of one port. Its owner waits for the descriptor and calls [`Driver::process`].
pub struct Driver {
    options: DriverOptions,
    poll: OwnedFd,
    timer: Timer,
    operator: Option<Operator>,
    wanted: BTreeMap<MacAddr, Want>,
    offers: BTreeMap<u64, (MacAddr, Offer, Instant)>,
    live: BTreeMap<u64, Live>,
    next: u64,
    asked: Arc<Event>,
    asks: Receiver<MacAddr>,
    made: Sender<(MacAddr, Box<dyn Channel>)>,
}

/// Asks a [`Driver`] for channels and gets them.
pub struct Handle {
    known: BTreeSet<MacAddr>,
    asked: Arc<Event>,
    asks: Sender<MacAddr>,
    made: Receiver<(MacAddr, Box<dyn Channel>)>,
}

impl Driver {
    /// A driver without channels.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new(options: DriverOptions) -> io::Result<(Self, Handle)> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (timer, asked) = (Timer::new()?, Arc::new(Event::new()?));
        epoll::add(&poll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&poll, &*asked, EventData::new_u64(ASKED), EventFlags::IN)?;
        timer.set(Some(Duration::ZERO));
        let (ask, asks) = channel();
        let (made, take) = channel();
        let handle = Handle { known: BTreeSet::new(), asked: Arc::clone(&asked), asks: ask, made: take };
        let driver = Self {
            options,
            poll,
            timer,
            operator: None,
            wanted: BTreeMap::new(),
            offers: BTreeMap::new(),
            live: BTreeMap::new(),
            next: FIRST,
            asked,
            asks,
            made,
        };
        Ok((driver, handle))
    }

    /// Deals with what has happened; the RDMA device should be looked at afterwards. Never blocks.
    pub fn process(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let now = Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 });
        if epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), now).is_err() {
            return;
        }
        for event in &events {
            match event.data.u64() {
                ASKED => self.hear_wishes(),
                TIMER => drop(self.timer.take_expired()),
                SWITCH => self.hear_operator(),
                id => self.hear_peer(id),
            }
        }
        self.call();
    }

    fn hear_wishes(&mut self) {
        self.asked.clear();
        // One side of each pair calls, so that they do not call each other.
        let calls = self.asks.try_iter().filter(|peer| *peer > self.options.mac);
        for peer in calls.collect::<Vec<_>>() {
            self.wanted.entry(peer).or_insert(Want { next: Instant::now(), pause: REDIAL });
        }
    }

    /// Takes the ends of channels that the switch hands out.
    fn hear_operator(&mut self) {
        loop {
            let Some(operator) = &self.operator else { return };
            match operator.answer() {
                Ok(Some((peer, socket))) => self.offer(peer, socket),
                Ok(None) => return,
                // Dropping it takes it out of `poll`; it is dialled again when the timer fires.
                Err(_) => self.operator = None,
            }
        }
    }

    fn offer(&mut self, peer: MacAddr, socket: OwnedFd) {
        let offer = Offer::new(socket, &self.options.ram, self.options.addresses.clone());
        let id = self.next;
        self.next += 1;
        match offer.and_then(|offer| self.watch(&offer, id).map(|()| offer)) {
            Ok(offer) => drop(self.offers.insert(id, (peer, offer, Instant::now()))),
            Err(error) => tracing::warn!(%peer, %error, "Failed to offer a channel"),
        }
    }

    fn hear_peer(&mut self, id: u64) {
        if let Some((peer, offer, since)) = self.offers.remove(&id) {
            match offer.accept() {
                Ok(Ok(channel)) => self.begin(id, peer, channel),
                Ok(Err(offer)) => drop(self.offers.insert(id, (peer, offer, since))),
                Err(error) => tracing::warn!(%peer, %error, "Failed to make a channel"),
            }
        } else if let Some(live) = self.live.get(&id)
            && !take_wake_ups(&*live.socket)
        {
            self.end(id);
        }
    }

    fn begin(&mut self, id: u64, peer: MacAddr, channel: super::DirectChannel) {
        let before: Vec<u64> =
            self.live.iter().filter(|(_, live)| live.peer == peer).map(|(id, _)| *id).collect();
        before.into_iter().for_each(|id| self.end(id));
        tracing::info!(%peer, "Channel is up: RDMA with this machine needs no frames");
        let (socket, alive) = channel.wake_up();
        self.live.insert(id, Live { peer, socket, alive });
        if let Some(want) = self.wanted.get_mut(&peer) {
            want.pause = REDIAL;
        }
        // Without a device nobody needs it, and dropping it tells the peer.
        let _ = self.made.send((peer, Box::new(channel)));
    }

    /// The device closes its end when it sees that the channel is dead.
    fn end(&mut self, id: u64) {
        let Some(live) = self.live.remove(&id) else { return };
        live.alive.store(false, Ordering::Relaxed);
        let _ = epoll::delete(&self.poll, &*live.socket);
        tracing::info!(peer = %live.peer, "Channel is gone: RDMA with this machine goes on in frames");
    }

    /// Calls the peers whose time has come, and sets the timer for the others.
    fn call(&mut self) {
        let now = Instant::now();
        self.offers.retain(|_, (_, _, since)| now.duration_since(*since) < TERMS_TIME);
        if self.operator.is_none() {
            self.dial();
        }
        let busy: BTreeSet<MacAddr> = self
            .live
            .values()
            .map(|live| live.peer)
            .chain(self.offers.values().map(|offer| offer.0))
            .collect();
        let waiting = self.wanted.iter_mut().filter(|(peer, _)| !busy.contains(peer));
        let mut next = self.operator.is_none().then_some(now + REDIAL_MAX);
        for (peer, want) in waiting {
            if want.next <= now {
                want.next = now + want.pause;
                want.pause = (want.pause * 2).min(REDIAL_MAX);
                if let Some(operator) = &self.operator {
                    operator.call(*peer);
                }
            }
            next = Some(next.map_or(want.next, |next| next.min(want.next)));
        }
        self.timer.set(next.map(|next| next.saturating_duration_since(now)));
    }

    /// A switch that is not there, or does not make channels, is tried again later.
    fn dial(&mut self) {
        let Ok(operator) = Operator::dial(&self.options.switch, self.options.mac) else { return };
        if self.watch(&operator, SWITCH).is_ok() {
            self.operator = Some(operator);
        }
    }

    fn watch(&self, source: impl AsFd, id: u64) -> io::Result<()> {
        Ok(epoll::add(&self.poll, source, EventData::new_u64(id), EventFlags::IN)?)
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl Exchange for Handle {
    fn want(&mut self, peer: MacAddr) {
        if self.known.len() < MAX_PEERS && self.known.insert(peer) {
            // Without a driver there are no channels.
            let _ = self.asks.send(peer);
            self.asked.signal();
        }
    }

    fn poll(&mut self) -> Option<(MacAddr, Box<dyn Channel>)> {
        self.made.try_recv().ok()
    }
}
