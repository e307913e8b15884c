//! Two ends of a cable inside one process.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use device_model::net::Link;
use parking_lot::Mutex;

use crate::event::Event;
use crate::frame;

/// Frames that wait for one end, at most.
const QUEUE_FRAMES: usize = 1024;

/// Frames on their way to one end.
#[derive(Debug)]
struct Direction {
    frames: Mutex<VecDeque<Box<[u8]>>>,
    waiting: Event,
}

impl Direction {
    fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { frames: Mutex::default(), waiting: Event::new()? }))
    }
}

/// One end of a [`pair`].
#[derive(Debug)]
pub struct PairLink {
    out: Arc<Direction>,
    inward: Arc<Direction>,
    mtu: u16,
}

/// Makes a cable: what one end sends, the other receives in order. Each direction holds 1024 frames; more are refused
/// with `WouldBlock`. The link is down once the other end is dropped.
///
/// # Errors
///
/// When the process has no descriptor left.
pub fn pair(mtu: u16) -> io::Result<(PairLink, PairLink)> {
    let (there, back) = (Direction::new()?, Direction::new()?);
    let far = PairLink { out: Arc::clone(&back), inward: Arc::clone(&there), mtu };
    Ok((PairLink { out: there, inward: back, mtu }, far))
}

impl Link for PairLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len = frame::checked_len(parts, self.mtu)?;
        if !self.is_up() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut frames = self.out.frames.lock();
        if frames.len() >= QUEUE_FRAMES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut frame = Vec::with_capacity(len);
        parts.iter().for_each(|part| frame.extend_from_slice(part));
        frames.push_back(frame.into_boxed_slice());
        if frames.len() == 1 {
            self.out.waiting.signal();
        }
        Ok(())
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let mut frames = self.inward.frames.lock();
        while let Some(frame) = frames.pop_front() {
            if frames.is_empty() {
                self.inward.waiting.clear();
            }
            if let Some(room) = buf.get_mut(..frame.len()) {
                room.copy_from_slice(&frame);
                return Ok(Some(frame.len()));
            }
        }
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inward.waiting.as_fd())
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        // The other end holds the second reference.
        Arc::strong_count(&self.out) > 1
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;

    use super::*;

    fn readable(link: &PairLink) -> bool {
        let fd = PollFd::from_borrowed_fd(link.readable_fd().unwrap(), PollFlags::IN);
        poll(&mut [fd], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn frames_arrive_in_order_and_the_descriptor_follows_the_queue() {
        let (a, b) = pair(1500).unwrap();
        assert!(!readable(&b));
        for n in 0..3_u8 {
            a.send(&[IoSlice::new(&[n; 14]), IoSlice::new(&[n; 50])]).unwrap();
        }
        let mut buf = [0; 1518];
        for n in 0..3_u8 {
            assert!(readable(&b));
            assert_eq!(b.recv(&mut buf).unwrap(), Some(64));
            assert_eq!(buf[..64], [n; 64]);
        }
        assert!(!readable(&b));
        assert_eq!(b.recv(&mut buf).unwrap(), None);
    }

    #[test]
    fn full_queue_refuses_and_a_dropped_end_takes_the_link_down() {
        let (a, b) = pair(1500).unwrap();
        let frame = [0; 64];
        for _ in 0..QUEUE_FRAMES {
            a.send(&[IoSlice::new(&frame)]).unwrap();
        }
        assert_eq!(a.send(&[IoSlice::new(&frame)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(b);
        assert!(!a.is_up());
        assert_eq!(a.send(&[IoSlice::new(&frame)]).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn frame_beyond_the_mtu_is_refused_and_one_beyond_the_buffer_dropped() {
        let (a, b) = pair(1500).unwrap();
        assert_eq!(a.send(&[IoSlice::new(&[0; 1519])]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        a.send(&[IoSlice::new(&[0; 1518])]).unwrap();
        a.send(&[IoSlice::new(&[0; 100])]).unwrap();
        assert_eq!(b.recv(&mut [0; 200]).unwrap(), Some(100));
        assert!(!readable(&b));
    }
}
