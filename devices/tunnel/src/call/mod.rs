//! How two machines come by a channel: over the network of their ports, in three frames.
//!
//! ```text
//! caller                                   the other
//!   CALL    its random bytes              →  makes a queue pair
//!   makes a queue pair, connects it       ←  ANSWER  both random bytes, terms
//!   ACCEPT  both random bytes, terms      →  connects its own
//! ```
//!
//! Frames are lost, doubled, late and forged; only who has the key can make one, and only one with the random bytes of this
//! very call does anything. A CALL, which anyone can repeat who has seen it, costs a queue pair for a while and no channel.
//! When both call, the one with the lower address goes on.

mod codec;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device_model::direct::{Channel, Exchange};
use device_model::net::MacAddr;
use device_model::time::Instant;

use self::codec::Message;
pub use self::codec::{Key, MAX_ADDRESSES, MAX_REGIONS, Nonce, Terms, is_call};
use crate::channel::{Peer, Tunnel};
use crate::outer::Outer;

/// Pause before a peer is called again, the first time and at most.
const REDIAL: Duration = Duration::from_millis(100);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// How often an answer is given until it is accepted, and how long.
const REPEAT: Duration = Duration::from_millis(100);
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// Peers that are called or answered at most.
const MAX_PEERS: usize = 256;
/// Frames that are looked at in each span of time; to look costs a hash.
const LOOKS: u32 = 64;
const SPAN: Duration = Duration::from_millis(50);

/// A host's RDMA device.
pub trait Host: Send {
    /// A queue pair that is not connected.
    type Half: Send;
    /// One that is.
    type Outer: Outer + 'static;

    /// Makes a queue pair; returns too what the peer has to know of it. Addresses are filled in by the caller.
    ///
    /// # Errors
    ///
    /// When the device has no room left, or is gone.
    fn open(&mut self) -> io::Result<(Self::Half, Terms)>;

    /// Connects a queue pair to that of a peer, which is not trusted.
    ///
    /// # Errors
    ///
    /// When the device cannot reach the peer's, or refuses the terms.
    fn connect(&mut self, half: Self::Half, peer: &Terms) -> io::Result<Self::Outer>;
}

/// What a machine brings into its calls.
pub struct Options {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Addresses that the guest may send from; `None`: any.
    pub addresses: Option<Vec<IpAddr>>,
    /// Who has the same gets channels.
    pub key: Key,
    /// Makes random bytes.
    pub nonce: Box<dyn FnMut() -> io::Result<Nonce> + Send>,
}

/// A call by this machine.
struct Calling {
    nonce: Nonce,
    next: Instant,
    pause: Duration,
}

/// An answer to a call.
struct Answering<T> {
    caller: Nonce,
    answerer: Nonce,
    half: T,
    terms: Terms,
    next: Instant,
    until: Instant,
}

/// A call by this machine that was answered.
struct Accepted {
    caller: Nonce,
    answerer: Nonce,
    terms: Terms,
}

/// All about one peer.
struct Call<T> {
    /// A channel is wanted.
    wanted: bool,
    calling: Option<Calling>,
    answering: Option<Answering<T>>,
    accepted: Option<Accepted>,
    /// Whether its channel lives.
    alive: Option<Arc<AtomicBool>>,
}

impl<T> Default for Call<T> {
    fn default() -> Self {
        Self { wanted: false, calling: None, answering: None, accepted: None, alive: None }
    }
}

impl<T> Call<T> {
    fn is_alive(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.load(Ordering::Relaxed))
    }

    /// Whether a channel is missing. Who answers a call makes none, lest both calls are answered by half.
    fn has_to_call(&self) -> bool {
        self.wanted && !self.is_alive() && self.answering.is_none()
    }

    /// When something has to be done about it next.
    fn deadline(&self) -> Option<Instant> {
        let call =
            self.has_to_call().then(|| self.calling.as_ref().map_or(Instant::ZERO, |calling| calling.next));
        let answer = self.answering.as_ref().map(|answering| answering.next.min(answering.until));
        call.into_iter().chain(answer).min()
    }
}

/// Makes the channels of one port.
pub struct Calls<H: Host> {
    host: H,
    options: Options,
    peers: BTreeMap<MacAddr, Call<H::Half>>,
    frames: VecDeque<Vec<u8>>,
    made: VecDeque<(MacAddr, Box<dyn Channel>)>,
    /// Frames looked at since the start of a span.
    looks: u32,
    span: Instant,
}

impl<H: Host> Calls<H> {
    /// Without channels.
    pub fn new(host: H, options: Options) -> Self {
        Self {
            host,
            options,
            peers: BTreeMap::new(),
            frames: VecDeque::new(),
            made: VecDeque::new(),
            looks: 0,
            span: Instant::ZERO,
        }
    }

    /// What is known of a peer; `None` when there are too many.
    fn peer(&mut self, mac: MacAddr) -> Option<&mut Call<H::Half>> {
        if !self.peers.contains_key(&mac) && self.peers.len() >= MAX_PEERS {
            let idle = |call: &Call<H::Half>| !call.wanted && !call.is_alive() && call.answering.is_none();
            self.peers.retain(|_, call| !idle(call));
            if self.peers.len() >= MAX_PEERS {
                return None;
            }
        }
        Some(self.peers.entry(mac).or_default())
    }

    fn say(&mut self, to: MacAddr, message: &Message) {
        self.frames.push_back(message.encode(to, self.options.mac, &self.options.key));
    }

    /// Makes a queue pair.
    fn open(&mut self, peer: MacAddr) -> Option<(H::Half, Terms)> {
        let opened = self.host.open().inspect_err(|error| {
            tracing::warn!(%peer, %error, "Failed to make a queue pair on the host device");
        });
        let (half, terms) = opened.ok()?;
        let terms = Terms { addresses: self.options.addresses.clone(), ..terms };
        if !terms.fit() {
            tracing::warn!(%peer, "This machine's memory has too many parts for a tunnel");
            return None;
        }
        Some((half, terms))
    }

    /// Connects a queue pair. The channel takes the place of one there may be.
    fn connect(&mut self, peer: MacAddr, half: H::Half, terms: Terms) -> Option<()> {
        let connected = self.host.connect(half, &terms).inspect_err(|error| {
            tracing::warn!(%peer, %error, "Failed to connect to the peer's host device");
        });
        let outer = connected.ok()?;
        let regions = terms.regions.iter().map(|(region, _)| *region).collect();
        let channel = Tunnel::new(outer, Peer { regions, addresses: terms.addresses });
        let call = self.peers.get_mut(&peer)?;
        call.alive = Some(channel.alive());
        call.calling = None;
        tracing::info!(%peer, "Tunnel is up: RDMA with this machine goes by the host's device");
        self.made.push_back((peer, Box::new(channel)));
        Some(())
    }

    fn on_call(&mut self, now: Instant, peer: MacAddr, caller: Nonce) {
        let own = self.options.mac;
        let Some(call) = self.peer(peer) else { return };
        if call.calling.is_some() && own < peer {
            // Both call. The peer answers.
            return;
        }
        if call.answering.as_ref().is_some_and(|answering| answering.caller == caller) {
            // It is being repeated as it is.
            return;
        }
        let Some((half, terms)) = self.open(peer) else { return };
        let Ok(answerer) = (self.options.nonce)() else { return };
        let until = now + ANSWER_TIME;
        if let Some(call) = self.peers.get_mut(&peer) {
            call.answering = Some(Answering { caller, answerer, half, terms, next: now, until });
            call.calling = None;
        }
    }

    fn on_answer(&mut self, peer: MacAddr, caller: Nonce, answerer: Nonce, terms: Terms) {
        let Some(call) = self.peers.get_mut(&peer) else { return };
        if call.calling.as_ref().is_some_and(|calling| calling.nonce == caller) {
            let Some((half, own)) = self.open(peer) else { return };
            if self.connect(peer, half, terms).is_some()
                && let Some(call) = self.peers.get_mut(&peer)
            {
                call.accepted = Some(Accepted { caller, answerer, terms: own });
            }
        }
        // Said again when the answer is: the peer has not heard it then.
        let accepted =
            self.peers.get(&peer).filter(|call| call.is_alive()).and_then(|it| it.accepted.as_ref());
        if let Some(Accepted { terms, .. }) =
            accepted.filter(|it| (it.caller, it.answerer) == (caller, answerer))
        {
            let terms = terms.clone();
            self.say(peer, &Message::Accept { caller, answerer, terms });
        }
    }

    fn on_accept(&mut self, peer: MacAddr, caller: Nonce, answerer: Nonce, terms: Terms) {
        let Some(call) = self.peers.get_mut(&peer) else { return };
        let is_meant = |it: &mut Answering<_>| (it.caller, it.answerer) == (caller, answerer);
        if let Some(Answering { half, .. }) = call.answering.take_if(is_meant) {
            self.connect(peer, half, terms);
        }
    }

    /// Does what is due about one peer.
    fn tend(&mut self, now: Instant, peer: MacAddr) {
        let nonce = &mut self.options.nonce;
        let Some(call) = self.peers.get_mut(&peer) else { return };
        call.answering.take_if(|answering| answering.until <= now);
        let mut say = Vec::new();
        if let Some(answering) = call.answering.as_mut().filter(|answering| answering.next <= now) {
            answering.next = now + REPEAT;
            let Answering { caller, answerer, ref terms, .. } = *answering;
            say.push(Message::Answer { caller, answerer, terms: terms.clone() });
        }
        if call.has_to_call() {
            if call.calling.is_none() {
                call.calling = nonce().ok().map(|nonce| Calling { nonce, next: now, pause: REDIAL });
            }
            if let Some(calling) = call.calling.as_mut().filter(|calling| calling.next <= now) {
                calling.next = now + calling.pause;
                calling.pause = (calling.pause * 2).min(REDIAL_MAX);
                say.push(Message::Call { caller: calling.nonce });
            }
        }
        say.iter().for_each(|message| self.say(peer, message));
    }

    /// Whether a frame may be looked at now.
    fn may_look(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.span) >= SPAN {
            (self.span, self.looks) = (now, 0);
        }
        self.looks += 1;
        self.looks <= LOOKS
    }
}

impl<H: Host> Exchange for Calls<H> {
    fn want(&mut self, peer: MacAddr) {
        if peer != self.options.mac
            && !peer.is_multicast()
            && let Some(call) = self.peer(peer)
        {
            call.wanted = true;
        }
    }

    fn poll(&mut self) -> Option<(MacAddr, Box<dyn Channel>)> {
        self.made.pop_front()
    }

    fn claims(&self, frame: &[u8]) -> bool {
        is_call(frame)
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        if !self.may_look(now) {
            return;
        }
        match Message::parse(frame, self.options.mac, &self.options.key) {
            Some((peer, Message::Call { caller })) => self.on_call(now, peer, caller),
            Some((peer, Message::Answer { caller, answerer, terms })) => {
                self.on_answer(peer, caller, answerer, terms);
            }
            Some((peer, Message::Accept { caller, answerer, terms })) => {
                self.on_accept(peer, caller, answerer, terms);
            }
            None => {}
        }
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.frames.is_empty() {
            let due = |(_, call): &(&MacAddr, &Call<H::Half>)| call.deadline().is_some_and(|at| at <= now);
            let due: Vec<MacAddr> = self.peers.iter().filter(due).map(|(peer, _)| *peer).collect();
            due.into_iter().for_each(|peer| self.tend(now, peer));
        }
        self.frames.pop_front()
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.frames.is_empty() {
            return Some(Instant::ZERO);
        }
        self.peers.values().filter_map(Call::deadline).min()
    }
}

#[cfg(test)]
mod tests;
