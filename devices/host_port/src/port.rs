//! An endpoint that waits for its link and its timers.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use device_model::net::{Link, MacAddr};
use host_io::clock::MonotonicClock;
use host_io::direct::{Driver, DriverOptions};
use host_io::event::{Event as Bell, Timer};
use roce::{RoceConfig, RoceProvider};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::arena::Arena;
use crate::endpoint::{self, Endpoint};

/// Rounds of work before the owner has its turn.
const ROUNDS: usize = 64;

/// What a port is made of.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Ethernet address.
    pub mac: MacAddr,
    /// The address that peers connect to.
    pub ip: IpAddr,
    /// Bytes of memory for buffers.
    pub arena: u64,
    /// Socket of the switch by which memory is shared with machines on it, if it may be.
    pub direct: Option<PathBuf>,
}

/// An endpoint over the engine.
///
/// Its descriptor is readable when [`HostPort::run`] has something to do.
pub struct HostPort {
    endpoint: Endpoint,
    clock: MonotonicClock,
    poll: OwnedFd,
    timer: Timer,
    /// Work is left over.
    again: Bell,
    channels: Option<Driver>,
}

impl HostPort {
    /// A port on `link`.
    ///
    /// # Errors
    ///
    /// When the link cannot carry RDMA, or the host has no memory or descriptors left.
    pub fn new(config: &PortConfig, link: Arc<dyn Link>) -> io::Result<Self> {
        let arena = Arena::new(config.arena)?;
        let engine = RoceProvider::new(RoceConfig::new(config.mac), arena.ram().clone(), link.clone());
        let mut engine = engine.map_err(io::Error::other)?;
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let (timer, again) = (Timer::new()?, Bell::new()?);
        let mut channels = None;
        if let Some(switch) = &config.direct {
            let (driver, handle) = Driver::new(DriverOptions {
                switch: switch.clone(),
                mac: config.mac,
                addresses: Some(vec![config.ip]),
                ram: arena.ram().clone(),
            })?;
            engine = engine.with_exchange(Box::new(handle));
            watch(&poll, driver.as_fd())?;
            channels = Some(driver);
        }
        if let Some(fd) = link.readable_fd() {
            watch(&poll, fd)?;
        }
        watch(&poll, timer.as_fd())?;
        watch(&poll, again.as_fd())?;
        let identity = endpoint::Config::new(config.mac, config.ip);
        let endpoint = Endpoint::new(identity, Box::new(engine), arena, link)?;
        Ok(Self { endpoint, clock: MonotonicClock::new(), poll, timer, again, channels })
    }

    /// The endpoint, and the time for its calls.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        let now = self.clock.now();
        self.endpoint.set_time(now);
        &mut self.endpoint
    }

    /// Does a bounded amount of what can be done without waiting.
    pub fn run(&mut self) {
        self.timer.take_expired();
        self.again.clear();
        if let Some(driver) = &mut self.channels {
            driver.process();
        }
        self.settle();
    }

    /// Sends what was posted since the last call.
    pub fn settle(&mut self) {
        let busy = (0..ROUNDS).all(|_| {
            self.endpoint.set_time(self.clock.now());
            self.endpoint.work()
        });
        if busy || !self.endpoint.rest() {
            self.again.signal();
        }
        let now = self.clock.now();
        self.timer.set(self.endpoint.deadline().map(|at| at.saturating_since(now)));
    }
}

impl AsFd for HostPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

fn watch(poll: &OwnedFd, fd: impl AsFd) -> io::Result<()> {
    Ok(epoll::add(poll, fd, EventData::new_u64(0), EventFlags::IN)?)
}
