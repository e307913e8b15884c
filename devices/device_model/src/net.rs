//! Network links, as a device sees them: whole Ethernet frames in and out.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;

/// Ethertype of the frames by which monitors find each other's RDMA devices (IEEE 802 local experimental 1).
pub const ETHERTYPE_TUNNEL: u16 = 0x88b5;

/// Largest frame any link carries: header, one VLAN tag and the largest IP packet a port's MTU allows.
pub const MAX_FRAME: usize = 65_536 + ETHERNET_HEADER + 4;

/// An Ethernet address, in transmission order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set (multicast and broadcast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The modified EUI-64 of this address (RFC 4291, appendix A): the interface id of its link-local IPv6 address
    /// and the node GUID derived from it.
    pub const fn eui64(self) -> [u8; 8] {
        let m = self.0;
        [m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not six hexadecimal bytes separated by colons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address like 52:54:00:12:34:56")]
pub struct ParseMacError(String);

impl std::str::FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || ParseMacError(s.to_owned());
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Self(out)) }
    }
}

/// One end of an Ethernet link: a port of a switch, a UDP tunnel, a tap device or a test.
///
/// Frames have no preamble and no frame check sequence. Links lose frames: a frame that cannot be taken at once is
/// dropped, as a real switch does.
pub trait Link: Send + Sync {
    /// Sends one frame gathered from `parts`. Never blocks.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when the link's queue is full; any other error when the link is gone. The frame is lost either way.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// Sends whole frames, one a slice, and as many of them at a time as the link can. Returns how many it took, from the
    /// first on; for the next one its queue is full. Never blocks.
    ///
    /// # Errors
    ///
    /// When the link is gone, and the frames with it.
    fn send_batch(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        for (taken, frame) in frames.iter().enumerate() {
            match self.send(std::slice::from_ref(frame)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                other => other?,
            }
        }
        Ok(frames.len())
    }

    /// Takes one received frame into `buf` and returns its length, or `None` when nothing waits. Never blocks. A frame
    /// longer than `buf` is dropped.
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;

    /// Takes what waits into `buf` while that has room for any frame, and appends the place of each frame to `frames` until
    /// these are `most` or a few more. Never blocks.
    ///
    /// A link may have the kernel join frames for the sake of this call. Its user takes frames this way or by
    /// [`Link::recv`], not by both.
    ///
    /// # Errors
    ///
    /// Those of [`Link::recv`]; what came before is in `frames`.
    fn recv_batch(&self, buf: &mut [u8], most: usize, frames: &mut Vec<Range<usize>>) -> io::Result<()> {
        let mut start = 0;
        while frames.len() < most
            && let Some(room) = buf.get_mut(start..).filter(|room| room.len() >= MAX_FRAME)
            && let Some(len) = self.recv(room)?
        {
            frames.push(start..start + len);
            start += len;
        }
        Ok(())
    }

    /// Becomes readable when [`Link::recv`] may have a frame; `None` for links that are only polled.
    fn readable_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Largest IP packet in bytes that the link carries (the interface MTU, without the Ethernet header).
    fn mtu(&self) -> u16;

    /// Whether the other side is there.
    fn is_up(&self) -> bool {
        true
    }
}

/// A shared link: several devices may send over one port.
impl<L: Link + ?Sized> Link for Arc<L> {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (**self).send(parts)
    }

    fn send_batch(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).send_batch(frames)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        (**self).recv(buf)
    }

    fn recv_batch(&self, buf: &mut [u8], most: usize, frames: &mut Vec<Range<usize>>) -> io::Result<()> {
        (**self).recv_batch(buf, most, frames)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).readable_fd()
    }

    fn mtu(&self) -> u16 {
        (**self).mtu()
    }

    fn is_up(&self) -> bool {
        (**self).is_up()
    }
}
