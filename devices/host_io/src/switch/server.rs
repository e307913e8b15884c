//! The switch's event loop: one thread, all sockets non-blocking.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use device_model::net::{MAX_FRAME, MacAddr};
use device_model::time::Instant;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::Options;
use super::error::SwitchError;
use super::operator::{self, Attached};
use super::port::{Delivery, Port};
use super::protocol::{ATTACH, Answer, CALL, FRAME, HEADER_LEN, Introduction, MAX_CONTROL, Named};
use super::socket::{self, Received};
use super::stats::{Snapshot, Statistics};
use super::table::{Dropped, PortId, Table, Verdict};
use crate::clock::MonotonicClock;
use crate::socket_file::Listener;

/// Frames taken from one port before the others have their turn.
const BURST: usize = 64;
/// Pause before the next connection is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that may be about to introduce themselves while all ports are taken, to be told so in answer.
const GREETING_SLOTS: usize = 16;
/// Events handled per turn of the loop.
const EVENTS: usize = 64;
/// Epoll keys of what is not a port; port numbers start above.
const STOP: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PORT: PortId = 2;

/// A switch that listens and does not yet run.
#[derive(Debug)]
pub struct Switch {
    listener: Listener,
    poll: OwnedFd,
    ports: BTreeMap<PortId, Port>,
    /// Connections that channels are asked for on.
    attached: BTreeMap<PortId, Attached>,
    next_port: PortId,
    table: Table,
    options: Options,
    statistics: Statistics,
    clock: MonotonicClock,
    /// When to look at the listener again after the process ran out of descriptors.
    accept_again: Option<Instant>,
    buffer: Box<[u8]>,
}

impl Switch {
    /// Listens at `path`. The socket file is usable by this user only and removed when the switch is dropped.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Listen`] when the path cannot be had.
    pub fn bind(path: &Path, options: Options) -> Result<Self, SwitchError> {
        let listener = Listener::bind(path, socket::KIND)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| SwitchError::Loop(e.into()))?;
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(|e| SwitchError::Loop(e.into()))?;
        Ok(Self {
            listener,
            poll,
            ports: BTreeMap::new(),
            attached: BTreeMap::new(),
            next_port: FIRST_PORT,
            table: Table::new(options.addresses),
            options,
            statistics: Statistics::default(),
            clock: MonotonicClock::new(),
            accept_again: None,
            buffer: vec![0; HEADER_LEN + MAX_FRAME].into_boxed_slice(),
        })
    }

    /// A handle that reads this switch's counters while it runs.
    pub fn statistics(&self) -> Statistics {
        self.statistics.clone()
    }

    /// Carries frames until `stop` becomes readable, and returns the last counters.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Loop`] when the operating system's event queue fails. No port can cause that.
    pub fn run(mut self, stop: impl AsFd) -> Result<Snapshot, SwitchError> {
        let fail = |errno: Errno| SwitchError::Loop(errno.into());
        epoll::add(&self.poll, stop.as_fd(), EventData::new_u64(STOP), EventFlags::IN).map_err(fail)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = self.next_timeout();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
            let now = self.clock.now();
            for event in &events {
                match event.data.u64() {
                    STOP => return Ok(self.statistics.snapshot()),
                    LISTENER => self.accept(now),
                    id => self.serve(id, event.flags, now),
                }
            }
            self.hang_up_silent(now);
            self.resume_accepting(now);
        }
    }

    /// Time until the next silent connection is hung up on, or the listener is looked at again.
    fn next_timeout(&self) -> Option<Timespec> {
        let silent = self.ports.values().filter(|port| !port.is_open());
        let hang_up = silent.map(|port| port.since + self.options.greeting_time).min();
        let next = hang_up.into_iter().chain(self.accept_again).min()?;
        let left = next.saturating_since(self.clock.now());
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn hang_up_silent(&mut self, now: Instant) {
        let patience = self.options.greeting_time;
        let late = |port: &Port| !port.is_open() && now.saturating_since(port.since) > patience;
        let silent: Vec<PortId> = self.ports.iter().filter(|(_, p)| late(p)).map(|(&id, _)| id).collect();
        for id in silent {
            self.refuse(id, "No hello received".into());
        }
    }

    fn accept(&mut self, now: Instant) {
        let socket = match socket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // Out of descriptors or memory: the connection stays readable and must not make the loop spin.
            Err(errno) => return self.pause_accepting(errno, now),
        };
        self.statistics.0.connections.add(1);
        if self.ports.len() >= self.options.max_ports.saturating_add(GREETING_SLOTS) {
            self.statistics.0.refused.add(1);
            return;
        }
        let port = Port::new(socket, self.options.queue_bytes, now);
        let id = self.next_port;
        self.next_port += 1;
        if epoll::add(&self.poll, &port, EventData::new_u64(id), EventFlags::IN).is_ok() {
            self.ports.insert(id, port);
        }
    }

    fn pause_accepting(&mut self, errno: Errno, now: Instant) {
        device_model::guest_warn!(%errno, "Cannot accept connections");
        self.accept_again = Some(now + ACCEPT_PAUSE);
        // The listener is registered, so only its mask changes; likewise below.
        let _ = epoll::modify(&self.poll, &self.listener, EventData::new_u64(LISTENER), EventFlags::empty());
    }

    fn resume_accepting(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|at| now >= at) {
            self.accept_again = None;
            let _ = epoll::modify(&self.poll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN);
        }
    }

    fn serve(&mut self, id: PortId, flags: EventFlags, now: Instant) {
        if self.attached.contains_key(&id) {
            return self.hear(id, now);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.receive(id, now);
        }
    }

    fn flush(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        match port.flush() {
            Ok(true) => self.watch(id, EventFlags::IN),
            Ok(false) => {}
            Err(_) => self.close(id),
        }
    }

    fn receive(&mut self, id: PortId, now: Instant) {
        // Taken out for the borrow; `close` and `forward` do not touch it.
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..BURST {
            let Some(port) = self.ports.get(&id) else { break };
            match port.recv(&mut buffer) {
                Ok(Received::Message(len)) => self.handle(id, &buffer[..len], now),
                Ok(Received::TooLong) => port.counters.dropped_too_long.add(1),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Ok(Received::Closed) | Err(_) => {
                    self.close(id);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn handle(&mut self, id: PortId, message: &[u8], now: Instant) {
        let Some(port) = self.ports.get(&id) else { return };
        if !port.is_open() {
            return match Named::parse(message, ATTACH) {
                Some(named) => self.attach(id, named.mac()),
                None => self.greet(id, message),
            };
        }
        match message.split_at_checked(HEADER_LEN) {
            Some(([FRAME, ..], frame)) => self.forward(id, message, frame, now),
            _ => port.counters.unknown_messages.add(1),
        }
    }

    fn greet(&mut self, id: PortId, message: &[u8]) {
        let introduction = match Introduction::parse(message) {
            Ok(introduction) => introduction,
            Err(error) => return self.refuse(id, error.to_string()),
        };
        if self.ports.values().filter(|port| port.is_open()).count() >= self.options.max_ports {
            return self.refuse(id, format!("All {} ports are taken", self.options.max_ports));
        }
        let Some(port) = self.ports.get_mut(&id) else { return };
        let number = u32::try_from(id - FIRST_PORT).unwrap_or(u32::MAX);
        // Counted before it is told, so that a port which knows it is open finds itself in the statistics.
        self.statistics.0.add_port(id - FIRST_PORT, &introduction.name, &port.counters);
        match port.open(&introduction, &Answer::Welcome { mtu: self.options.mtu, port: number }) {
            Ok(()) => tracing::info!(port = number, name = introduction.name, "Port connected"),
            Err(_) => self.close(id),
        }
    }

    /// Makes a connection one that channels are asked for on.
    fn attach(&mut self, id: PortId, mac: MacAddr) {
        let Some(port) = self.ports.remove(&id) else { return };
        // Without a place the connection ends, and with it what its owner wants of it.
        if let Some(pid) = port.pid()
            && self.attached.len() < self.options.max_ports
        {
            self.attached.insert(id, Attached { socket: port.into_socket(), mac, pid });
        }
    }

    /// Takes what is asked for on such a connection.
    fn hear(&mut self, id: PortId, now: Instant) {
        let mut buffer = [0; MAX_CONTROL];
        for _ in 0..BURST {
            let Some(attached) = self.attached.get(&id) else { return };
            match socket::recv(&attached.socket, &mut [IoSliceMut::new(&mut buffer)]) {
                Ok(Received::Message(len)) => {
                    if let Some(named) = Named::parse(buffer.get(..len).unwrap_or_default(), CALL) {
                        self.connect(id, named.mac(), now);
                    }
                }
                Ok(Received::TooLong) => {}
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(Received::Closed) | Err(_) => drop(self.attached.remove(&id)),
            }
        }
    }

    /// Connects two machines, if both have a port at the address they claim.
    fn connect(&self, caller: PortId, peer: MacAddr, now: Instant) {
        let has_port = |attached: &Attached| {
            let port = self.table.lookup(attached.mac, now).and_then(|port| self.ports.get(&port));
            port.and_then(Port::pid) == Some(attached.pid)
        };
        let Some(caller) = self.attached.get(&caller).filter(|attached| has_port(attached)) else { return };
        let mut others = self.attached.values().filter(|attached| attached.mac == peer && peer != caller.mac);
        if let Some(callee) = others.find(|attached| has_port(attached))
            && let Err(error) = operator::connect(caller, callee)
        {
            device_model::guest_warn!(%error, "Failed to connect two machines");
        }
    }

    /// Sends a frame, with the header it came with, where it belongs.
    fn forward(&mut self, from: PortId, message: &[u8], frame: &[u8], now: Instant) {
        let Some(port) = self.ports.get(&from) else { return };
        port.counters.received_frames.add(1);
        port.counters.received_bytes.add(frame.len() as u64);
        match self.table.route(from, frame, now) {
            Verdict::Drop(Dropped::Malformed) => port.counters.dropped_malformed.add(1),
            Verdict::Drop(Dropped::Local) => port.counters.dropped_local.add(1),
            Verdict::Unicast(to) => self.deliver(to, message),
            Verdict::Flood => {
                self.statistics.0.flooded.add(1);
                let others: Vec<PortId> = self.ports.keys().copied().filter(|&id| id != from).collect();
                others.into_iter().for_each(|to| self.deliver(to, message));
            }
        }
    }

    fn deliver(&mut self, to: PortId, message: &[u8]) {
        let Some(port) = self.ports.get_mut(&to) else { return };
        match port.deliver(message) {
            Delivery::StartedQueue => self.watch(to, EventFlags::IN | EventFlags::OUT),
            Delivery::Gone => self.close(to),
            Delivery::Sent | Delivery::QueuedOrLost => {}
        }
    }

    fn watch(&mut self, id: PortId, flags: EventFlags) {
        let Some(port) = self.ports.get(&id) else { return };
        if epoll::modify(&self.poll, port, EventData::new_u64(id), flags).is_err() {
            self.close(id);
        }
    }

    fn refuse(&mut self, id: PortId, reason: String) {
        if let Some(port) = self.ports.get(&id) {
            device_model::guest_warn!(reason, "Refused a connection");
            self.statistics.0.refused.add(1);
            port.refuse(reason);
        }
        self.close(id);
    }

    /// Forgets a port; dropping its socket takes it out of the event queue.
    fn close(&mut self, id: PortId) {
        let Some(port) = self.ports.remove(&id) else { return };
        self.table.forget(id);
        self.statistics.0.remove_port(id - FIRST_PORT);
        if port.is_open() {
            tracing::info!(port = id - FIRST_PORT, "Port disconnected");
        }
    }
}
