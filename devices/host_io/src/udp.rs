//! Ethernet frames in UDP datagrams between two hosts, without privilege.
//!
//! One frame a datagram, after a header of four bytes: `'V' 'E'`, the version 1 and a zero. The peer is fixed; datagrams
//! from elsewhere are dropped by the kernel, those without the header here. There is no encryption and no
//! authentication: use it inside a network you trust, or inside a tunnel.
//!
//! The default MTU fits the outer packet into 1500 bytes. A larger one works too; the host then sends IP fragments
//! unless its path carries such packets.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use device_model::net::Link;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, sockopt,
};
use smallvec::SmallVec;

use crate::frame;
use crate::port::PortError;

/// In front of every frame.
const HEADER: [u8; 4] = *b"VE\x01\0";
/// Largest UDP payload over IPv4, less the headers of a frame without its IP packet.
pub const MAX_MTU: u16 = (65_507 - HEADER.len() - frame::max_len(0)) as u16;
/// Largest outer packet assumed of an unknown path.
const PATH_MTU: u16 = 1500;
/// MTU towards a peer on this host, whose packets never see a wire.
const LOCAL_MTU: u16 = 9000;
/// Kernel buffer asked for in each direction; what the system's limit allows is used.
const SOCKET_BUFFER: usize = 4 << 20;
/// Datagrams skipped in one call of `recv`, at most.
const MAX_SKIPPED: usize = 64;

/// A link to the one peer at the other end of a UDP socket.
#[derive(Debug)]
pub struct UdpLink {
    socket: UdpSocket,
    mtu: u16,
}

impl UdpLink {
    /// Opens a socket at `local` that speaks with `peer` only. Port 0 of `local` lets the system choose.
    ///
    /// # Errors
    ///
    /// [`PortError::Udp`] when the address is not the host's or in use, [`PortError::LargeMtu`].
    pub fn open(local: SocketAddr, peer: SocketAddr, mtu: Option<u16>) -> Result<Self, PortError> {
        let mtu = mtu.unwrap_or_else(|| default_mtu(peer));
        if mtu > MAX_MTU {
            return Err(PortError::LargeMtu(mtu));
        }
        let fail = |source| PortError::Udp { local, source };
        let socket = UdpSocket::bind(local).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        socket.connect(peer).map_err(fail)?;
        // A larger buffer only takes longer bursts, so a refusal is no error.
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
        Ok(Self { socket, mtu })
    }

    /// Where the socket listens.
    ///
    /// # Errors
    ///
    /// When the system cannot tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// What fits into [`PATH_MTU`] after IP, UDP, our header and the frame's own.
fn default_mtu(peer: SocketAddr) -> u16 {
    const UDP: u16 = 8;
    let ip = if peer.is_ipv4() { 20 } else { 40 };
    if peer.ip().is_loopback() {
        LOCAL_MTU
    } else {
        PATH_MTU - ip - UDP - (HEADER.len() + frame::max_len(0)) as u16
    }
}

/// Whether an error tells of an earlier datagram's fate (ICMP), which a link does not report.
fn is_report(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN
    )
}

impl Link for UdpLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        frame::checked_len(parts, self.mtu)?;
        let mut datagram = SmallVec::<[IoSlice<'_>; 8]>::new();
        datagram.push(IoSlice::new(&HEADER));
        datagram.extend(parts.iter().copied());
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.socket, &datagram, &mut SendAncillaryBuffer::default(), flags) {
            Err(errno) if is_report(errno) => Ok(()),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other.map(drop)?),
        }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let mut header = [0; HEADER.len()];
        for _ in 0..MAX_SKIPPED {
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buf)];
            match recvmsg(&self.socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)
            {
                Ok(got) if got.flags.contains(ReturnFlags::TRUNC) => {}
                Ok(got) if got.bytes > HEADER.len() && header == HEADER => {
                    return Ok(Some(got.bytes - HEADER.len()));
                }
                Ok(_) => device_model::guest_warn!("Dropped a datagram that carries no frame"),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) if is_report(errno) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::testing::{is_silent, recv, send};

    /// Two links to each other. Neither port is known before both are bound, so the first is bound anew at its own.
    fn joined() -> (UdpLink, UdpLink) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let placeholder = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let a = UdpLink::open(any, placeholder, None).unwrap();
        let b = UdpLink::open(any, a.local_addr().unwrap(), None).unwrap();
        a.socket.connect(b.local_addr().unwrap()).unwrap();
        (a, b)
    }

    #[test]
    fn frames_up_to_the_mtu_pass_both_ways() {
        let (a, b) = joined();
        assert_eq!(a.mtu(), LOCAL_MTU);
        for len in [14, 60, 9018] {
            send(&a, &vec![7; len]);
            assert_eq!(recv(&b), vec![7; len]);
            b.send(&[IoSlice::new(&[8; 10]), IoSlice::new(&vec![8; len - 10])]).unwrap();
            assert_eq!(recv(&a), vec![8; len]);
        }
        assert_eq!(a.send(&[IoSlice::new(&[0; 9019])]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn foreign_datagrams_and_frames_beyond_the_buffer_are_dropped() {
        let (a, b) = joined();
        a.socket.send(b"hello").unwrap();
        a.socket.send(b"").unwrap();
        a.socket.send(&HEADER).unwrap();
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        stranger.send_to(&[&HEADER[..], &[1; 60]].concat(), b.local_addr().unwrap()).unwrap();
        assert!(is_silent(&b));
        send(&a, &[1; 100]);
        send(&a, &[2; 60]);
        crate::testing::wait_until("the short frame", || b.recv(&mut [0; 64]).unwrap() == Some(60));
    }

    #[test]
    fn absent_peer_is_silence_and_no_error() {
        let (a, b) = joined();
        drop(b);
        for _ in 0..5 {
            send(&a, &[1; 60]);
            assert_eq!(a.recv(&mut [0; 64]).unwrap(), None);
        }
    }

    #[test]
    fn default_mtu_leaves_room_for_the_outer_headers() {
        assert_eq!(default_mtu("192.0.2.1:5".parse().unwrap()), 1450);
        assert_eq!(default_mtu("[2001:db8::1]:5".parse().unwrap()), 1430);
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert!(matches!(UdpLink::open(any, peer, Some(MAX_MTU + 1)), Err(PortError::LargeMtu(_))));
        let largest = UdpLink::open(any, peer, Some(MAX_MTU)).unwrap();
        largest.send(&[IoSlice::new(&vec![0; frame::max_len(MAX_MTU)])]).unwrap();
    }

    #[test]
    fn port_in_use_is_named() {
        let (a, _b) = joined();
        let local = a.local_addr().unwrap();
        let error = UdpLink::open(local, local, None).unwrap_err();
        assert!(error.to_string().contains(&local.to_string()), "{error}");
    }
}
