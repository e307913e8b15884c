//! Ports with nobody at the other end.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use device_model::net::Link;

use crate::frame;
use crate::pair::{PairLink, pair};

/// A link that is up although nobody is there: a frame to its own sender comes back, every other one is lost.
///
/// A plain hairpin would return a guest's broadcasts too, and duplicate address detection would then find the guest's
/// own address taken.
#[derive(Debug)]
pub struct Loopback {
    near: PairLink,
    far: PairLink,
}

impl Loopback {
    /// A loopback that carries IP packets of `mtu` bytes.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new(mtu: u16) -> io::Result<Self> {
        let (near, far) = pair(mtu)?;
        Ok(Self { near, far })
    }
}

impl Link for Loopback {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        frame::checked_len(parts, self.mtu())?;
        let mut addresses = [0; 12];
        frame::peek(parts, &mut addresses);
        let (destination, source) = addresses.split_at(6);
        if destination == source { self.far.send(parts) } else { Ok(()) }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.near.recv(buf)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.near.readable_fd()
    }

    fn mtu(&self) -> u16 {
        self.near.mtu()
    }
}

/// A cable that is not plugged in.
#[derive(Debug)]
pub struct Unplugged {
    mtu: u16,
}

impl Unplugged {
    /// An unplugged port that reports this MTU.
    pub const fn new(mtu: u16) -> Self {
        Self { mtu }
    }
}

impl Link for Unplugged {
    fn send(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_to_oneself_come_back() {
        let link = Loopback::new(1500).unwrap();
        let mut buf = [0; 1518];
        link.send(&[IoSlice::new(&[0xff; 6]), IoSlice::new(&[2; 54])]).unwrap();
        assert_eq!(link.recv(&mut buf).unwrap(), None);
        link.send(&[IoSlice::new(&[2; 5]), IoSlice::new(&[2; 55])]).unwrap();
        assert_eq!(link.recv(&mut buf).unwrap(), Some(60));
        assert!(link.is_up());
    }
}
