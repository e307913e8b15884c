//! Several datagrams in one call: the kernel cuts what is sent (UDP_SEGMENT) and joins what it received (UDP_GRO).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt, sockopt::UdpGroSegment,
};

/// Most datagrams of one call (UDP_MAX_SEGMENTS of the first kernels that have it).
pub(super) const MAX_SEGMENTS: usize = 64;
/// Most bytes of one call, whatever the version of IP.
pub(super) const MAX_BYTES: usize = 65_507;

/// What was received.
pub(super) struct Joined {
    /// Bytes of all datagrams, one after the other.
    pub(super) bytes: usize,
    /// Bytes of each but the last.
    pub(super) segment: usize,
    /// There was more than the buffer holds.
    pub(super) truncated: bool,
}

/// Lets the kernel join datagrams. One that cannot does without.
pub(super) fn join(socket: &UdpSocket) {
    if let Err(error) = setsockopt(socket, UdpGroSegment, &true) {
        tracing::debug!(%error, "Kernel does not join datagrams");
    }
}

/// Sends what `parts` hold as datagrams of `segment` bytes; the last one may be shorter.
pub(super) fn send(socket: &UdpSocket, parts: &[IoSlice<'_>], segment: u16) -> io::Result<()> {
    let cut = [ControlMessage::UdpGsoSegments(&segment)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), parts, &cut, flags, None).map(drop)?)
}

/// Receives one datagram, or several that the kernel joined.
pub(super) fn recv(socket: &UdpSocket, buf: &mut [u8]) -> io::Result<Joined> {
    let mut control = cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(buf)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
    let segment = got.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::UdpGroSegments(segment) => usize::try_from(segment).ok(),
        _ => None,
    });
    let segment = segment.filter(|segment| *segment > 0).unwrap_or(got.bytes);
    Ok(Joined { bytes: got.bytes, segment, truncated: got.flags.contains(MsgFlags::MSG_TRUNC) })
}
