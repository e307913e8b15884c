//! A link with a bad network in front of it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use device_model::net::Link;
use device_model::time::Instant;
use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::channel::{Channel, ChannelCounters};
use super::spec::Impairment;
use crate::clock::MonotonicClock;
use crate::event::Timer;
use crate::forward::forward_to_inner;

/// Seed of the receiving direction, relative to that of the sending one.
const INWARD_SEED: u64 = 0x5bd1_e995;
/// Frames taken from the link in one call of `recv` that delivers none, at most.
const MAX_SKIPPED: usize = 64;

/// Impairs what is sent and what is received over `L`, each direction by itself.
///
/// Frames that are due are moved by [`Link::recv`], which [`Link::readable_fd`] asks for in time.
#[derive(Debug)]
pub struct Impair<L> {
    inner: L,
    clock: MonotonicClock,
    outward: Mutex<Channel>,
    inward: Mutex<Inward>,
    timer: Timer,
    /// What the timer is set to.
    wake_at: Mutex<Option<Instant>>,
    /// Readable when the inner link or the timer is; `None` when the inner link is only polled.
    poll: Option<OwnedFd>,
}

#[derive(Debug)]
struct Inward {
    channel: Channel,
    /// Frames that have come out of the channel.
    arrived: VecDeque<Box<[u8]>>,
    buffer: Vec<u8>,
}

impl<L: Link> Impair<L> {
    /// Puts a bad network in front of `inner`.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new(inner: L, impairment: Impairment) -> io::Result<Self> {
        let timer = Timer::new()?;
        let poll = inner.readable_fd().map(|fd| poll_of(fd, &timer)).transpose()?;
        let back = Impairment { seed: impairment.seed ^ INWARD_SEED, ..impairment };
        let inward = Inward {
            channel: Channel::new(back),
            arrived: VecDeque::new(),
            buffer: vec![0; crate::frame::max_len(inner.mtu())],
        };
        Ok(Self {
            clock: MonotonicClock::new(),
            outward: Mutex::new(Channel::new(impairment)),
            inward: Mutex::new(inward),
            timer,
            wake_at: Mutex::new(None),
            poll,
            inner,
        })
    }

    /// What has happened to frames sent and to frames received.
    pub fn counters(&self) -> (ChannelCounters, ChannelCounters) {
        (self.outward.lock().counters(), self.inward.lock().channel.counters())
    }

    /// Sees to it that `recv` is called when something is due.
    fn wake_for(&self, due: Option<Instant>) {
        let Some(due) = due else { return };
        let mut wake_at = self.wake_at.lock();
        if wake_at.is_none_or(|at| due < at) {
            *wake_at = Some(due);
            self.timer.set(Some(due.saturating_since(self.clock.now())));
        }
    }

    fn release_outward(&self, now: Instant) -> Option<Instant> {
        let mut outward = self.outward.lock();
        // A frame that cannot be sent now is lost, as the contract of links says.
        outward.release(now, &mut |parts| drop(self.inner.send(parts)));
        outward.next_due()
    }

    /// The next frame that has come through.
    fn next_inward(&self, now: Instant) -> io::Result<Option<Box<[u8]>>> {
        let mut inward = self.inward.lock();
        let Inward { channel, arrived, buffer } = &mut *inward;
        channel.release(now, &mut |parts| arrived.push_back(boxed(parts)));
        for _ in 0..MAX_SKIPPED {
            if !arrived.is_empty() {
                break;
            }
            let Some(len) = self.inner.recv(buffer)? else { break };
            let frame = buffer.get(..len).unwrap_or_default();
            channel.offer(now, &[IoSlice::new(frame)], &mut |parts| arrived.push_back(boxed(parts)));
        }
        let frame = arrived.pop_front();
        self.wake_for(if arrived.is_empty() { channel.next_due() } else { Some(now) });
        Ok(frame)
    }
}

impl<L: Link> Link for Impair<L> {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut outcome = Ok(());
        let due = {
            let mut outward = self.outward.lock();
            outward.offer(self.clock.now(), parts, &mut |parts| outcome = self.inner.send(parts));
            outward.next_due()
        };
        self.wake_for(due);
        outcome
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let now = self.clock.now();
        if self.timer.take_expired() {
            *self.wake_at.lock() = None;
        }
        self.wake_for(self.release_outward(now));
        while let Some(frame) = self.next_inward(now)? {
            if let Some(room) = buf.get_mut(..frame.len()) {
                room.copy_from_slice(&frame);
                return Ok(Some(frame.len()));
            }
        }
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.poll.as_ref().map(AsFd::as_fd)
    }

    forward_to_inner!(mtu, is_up);
}

fn poll_of(inner: BorrowedFd<'_>, timer: &Timer) -> io::Result<OwnedFd> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, inner, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&poll, timer, EventData::new_u64(0), EventFlags::IN)?;
    Ok(poll)
}

fn boxed(parts: &[IoSlice<'_>]) -> Box<[u8]> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{PairLink, pair};
    use crate::testing::{frame, mac, readable_for, recv, send, wait_readable};
    use std::time::Duration;

    fn impaired(text: &str) -> (Impair<PairLink>, PairLink) {
        let (near, far) = pair(1500).unwrap();
        (Impair::new(near, text.parse().unwrap()).unwrap(), far)
    }

    #[test]
    fn delayed_frames_cross_in_both_directions_driven_by_the_descriptor() {
        let (near, far) = impaired("delay:2ms");
        send(&near, &frame(mac(1), mac(2), 60, 1));
        assert_eq!(far.recv(&mut [0; 2000]).unwrap(), None);
        while !readable_for(far.readable_fd().unwrap(), Duration::ZERO) {
            wait_readable(near.readable_fd().unwrap());
            assert_eq!(near.recv(&mut [0; 2000]).unwrap(), None);
        }
        assert_eq!(recv(&far), frame(mac(1), mac(2), 60, 1));
        send(&far, &frame(mac(2), mac(1), 60, 2));
        assert_eq!(recv(&near), frame(mac(2), mac(1), 60, 2));
    }

    #[test]
    fn second_of_two_frames_that_came_at_once_is_announced_by_the_descriptor() {
        let (near, far) = impaired("duplicate:100%");
        send(&far, &frame(mac(2), mac(1), 60, 3));
        assert_eq!(near.recv(&mut [0; 2000]).unwrap(), Some(60));
        wait_readable(near.readable_fd().unwrap());
        assert_eq!(near.recv(&mut [0; 2000]).unwrap(), Some(60));
        assert_eq!(near.recv(&mut [0; 2000]).unwrap(), None);
    }

    #[test]
    fn directions_lose_different_frames_and_errors_of_the_link_are_passed_on() {
        let (near, far) = impaired("loss:50%/seed:5");
        let pattern = |from: &dyn Link, to: &dyn Link| -> Vec<bool> {
            (0..64)
                .map(|n| {
                    send(from, &frame(mac(1), mac(2), 60, n));
                    to.recv(&mut [0; 2000]).unwrap().is_some()
                })
                .collect()
        };
        assert_ne!(pattern(&near, &far), pattern(&far, &near));
        let (outward, inward) = near.counters();
        assert_eq!((outward.offered, inward.offered), (64, 64));
        let (near, far) = impaired("seed:1");
        drop(far);
        assert!(!near.is_up());
        assert_eq!(near.send(&[IoSlice::new(&[0; 60])]).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
