//! Ethernet frames in UDP datagrams between two hosts, without privilege.
//!
//! One frame a datagram, after a header of four bytes: `'V' 'E'`, the version 1 and a zero. The peer is fixed; datagrams
//! from elsewhere are dropped by the kernel, those without the header here. There is no encryption and no
//! authentication: use it inside a network you trust, or inside a tunnel.
//!
//! Frames that are sent together leave in one call, if they have one length (the last may be shorter) and the host's path
//! carries their datagrams whole; what comes together is taken in one call.
//!
//! The default MTU fits the outer packet into 1500 bytes. A larger one works too; the host then sends IP fragments
//! unless its path carries such packets.

mod offload;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_model::net::{Link, MAX_FRAME};
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
    /// Datagrams longer than this are sent one by one: the kernel cuts none that it would have to fragment afterwards.
    longest_cut: AtomicUsize,
    /// The kernel was asked to join datagrams.
    joins: OnceLock<()>,
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
        // A larger buffer only takes longer bursts, so a refusal is no error. An administrator may pass the system's limit.
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER));
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER));
        let longest_cut = AtomicUsize::new(offload::MAX_BYTES);
        Ok(Self { socket, mtu, longest_cut, joins: OnceLock::new() })
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

impl UdpLink {
    /// How many of `frames`, from the first on, can leave as the datagrams of one call; at least one.
    fn run(&self, frames: &[IoSlice<'_>]) -> usize {
        let datagram = |frame: &IoSlice<'_>| HEADER.len() + frame.len();
        let segment = frames.first().map_or(0, datagram);
        if segment > self.longest_cut.load(Ordering::Relaxed) {
            return 1;
        }
        let (mut bytes, mut count) = (0, 0);
        for len in frames.iter().map(datagram).take(offload::MAX_SEGMENTS) {
            bytes += len;
            if len > segment || bytes > offload::MAX_BYTES {
                break;
            }
            count += 1;
            if len < segment {
                break;
            }
        }
        count.max(1)
    }

    /// Sends frames of a [`UdpLink::run`] of several in one call. Returns `false` when the kernel does not do that.
    fn send_run(&self, frames: &[IoSlice<'_>]) -> io::Result<bool> {
        let mut parts = SmallVec::<[IoSlice<'_>; 2 * offload::MAX_SEGMENTS]>::new();
        for frame in frames {
            frame::checked_len(std::slice::from_ref(frame), self.mtu)?;
            parts.extend([IoSlice::new(&HEADER), *frame]);
        }
        let segment = HEADER.len() + frames.first().map_or(0, |frame| frame.len());
        let Ok(cut) = u16::try_from(segment) else { return Ok(false) };
        match offload::send(&self.socket, &parts, cut).map_err(|error| (errno(&error), error)) {
            Ok(()) => Ok(true),
            Err((Errno::INVAL | Errno::IO | Errno::MSGSIZE, _)) => {
                self.longest_cut.fetch_min(segment - 1, Ordering::Relaxed);
                Ok(false)
            }
            Err((errno, _)) if is_report(errno) => Ok(true),
            Err((Errno::NOBUFS | Errno::NOMEM | Errno::INTR, _)) => Err(io::ErrorKind::WouldBlock.into()),
            Err((_, error)) => Err(error),
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
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

/// Appends the places of the frames in some datagrams of `segment` bytes, which begin at `start`.
fn push_frames(datagrams: &[u8], segment: usize, start: usize, frames: &mut Vec<Range<usize>>) {
    let starts = (start..).step_by(segment.max(1));
    for (at, datagram) in starts.zip(datagrams.chunks(segment.max(1))) {
        if datagram.len() > HEADER.len() && datagram.starts_with(&HEADER) {
            frames.push(at + HEADER.len()..at + datagram.len());
        } else {
            device_model::guest_warn!("Dropped a datagram that carries no frame");
        }
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

    fn send_batch(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(rest) = frames.get(taken..).filter(|rest| !rest.is_empty()) {
            let (run, _) = rest.split_at(self.run(rest));
            let outcome = match run {
                [frame] => self.send(&[*frame]),
                // The next look at it finds shorter runs.
                _ => match self.send_run(run) {
                    Ok(false) => continue,
                    other => other.map(drop),
                },
            };
            match outcome {
                Ok(()) => taken += run.len(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
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

    fn recv_batch(&self, buf: &mut [u8], most: usize, frames: &mut Vec<Range<usize>>) -> io::Result<()> {
        self.joins.get_or_init(|| offload::join(&self.socket));
        let mut start = 0;
        for _ in 0..MAX_SKIPPED {
            let Some(room) = buf.get_mut(start..).filter(|room| room.len() >= MAX_FRAME) else { break };
            if frames.len() >= most {
                break;
            }
            match offload::recv(&self.socket, room).map_err(|error| (errno(&error), error)) {
                // Longer than any datagram can be.
                Ok(got) if got.truncated => {}
                Ok(got) => {
                    let datagrams = room.get(..got.bytes).unwrap_or_default();
                    push_frames(datagrams, got.segment, start, frames);
                    start += got.bytes;
                }
                Err((Errno::AGAIN | Errno::INTR, _)) => break,
                Err((errno, _)) if is_report(errno) => {}
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
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

    fn recv_all(link: &UdpLink, count: usize) -> Vec<Vec<u8>> {
        let (mut buf, mut all) = (vec![0; 4 * MAX_FRAME], vec![]);
        crate::testing::wait_until("all frames", || {
            let mut frames = vec![];
            link.recv_batch(&mut buf, 64, &mut frames).unwrap();
            all.extend(frames.into_iter().map(|place| buf[place].to_vec()));
            all.len() >= count
        });
        all
    }

    #[test]
    fn frames_of_all_lengths_pass_in_batches_and_in_order() {
        let (a, b) = joined();
        // Before anything is sent: what the kernel holds already is not joined.
        b.recv_batch(&mut [0; MAX_FRAME], 1, &mut vec![]).unwrap();
        let lengths = [9018, 4158, 4158, 4158, 100, 60, 60, 61, 60, 1000, 9018, 9018].into_iter();
        let frames: Vec<Vec<u8>> = lengths.chain([4158; 40]).zip(0..).map(|(len, n)| vec![n; len]).collect();
        let slices: Vec<_> = frames.iter().map(|frame| IoSlice::new(frame)).collect();
        assert_eq!(a.send_batch(&slices).unwrap(), frames.len());
        assert_eq!(recv_all(&b, frames.len()), frames);
        assert_eq!(a.longest_cut.load(Ordering::Relaxed), offload::MAX_BYTES, "the kernel cut none");
    }

    #[test]
    fn run_is_of_one_length_but_for_a_shorter_last() {
        let (a, _b) = joined();
        let bytes = [0; 9018];
        let run =
            |lens: &[usize]| a.run(&lens.iter().map(|len| IoSlice::new(&bytes[..*len])).collect::<Vec<_>>());
        assert_eq!(run(&[60]), 1);
        assert_eq!(run(&[60, 61, 60]), 1);
        assert_eq!(run(&[60, 60, 59, 60]), 3);
        assert_eq!(run(&[60; 100]), offload::MAX_SEGMENTS);
        assert_eq!(run(&[9018; 10]), 7);
        a.longest_cut.store(4000, Ordering::Relaxed);
        assert_eq!((run(&[4158; 3]), run(&[1458; 3])), (1, 3));
    }

    #[test]
    fn datagrams_that_the_kernel_does_not_cut_leave_one_by_one() {
        let (a, b) = joined();
        let frames: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 9018]).collect();
        let slices: Vec<_> = frames.iter().map(|frame| IoSlice::new(frame)).collect();
        // More bytes than it takes: it refuses this as it refuses datagrams that are too long for the path.
        assert!(!a.send_run(&slices).unwrap());
        assert_eq!(a.longest_cut.load(Ordering::Relaxed), HEADER.len() + 9017);
        assert_eq!((a.run(&slices), a.send_batch(&slices).unwrap()), (1, frames.len()));
        assert_eq!(recv_all(&b, frames.len()), frames);
    }

    #[test]
    fn datagrams_without_header_are_left_out_of_a_batch() {
        let (a, b) = joined();
        b.recv_batch(&mut [0; MAX_FRAME], 1, &mut vec![]).unwrap();
        let mut frames = vec![];
        let joined = [&HEADER[..], b"first", b"something", &HEADER, b"3"].concat();
        push_frames(&joined, 9, 100, &mut frames);
        assert_eq!(frames, [104..109, 122..123]);
        a.socket.send(&HEADER).unwrap();
        send(&a, &[1; 60]);
        assert_eq!(recv_all(&b, 1), [vec![1; 60]]);
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
