//! Connections between a switch and its ports: whole messages, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with, sockopt,
};

use crate::socket_file::Listener;

/// Keeps messages whole and in order, and tells when the other side is gone.
pub(super) const KIND: SocketType = SocketType::SEQPACKET;
/// Kernel buffer asked for in each direction; what the system's limit allows is used.
const SEND_BUFFER: usize = 4 << 20;

/// A connection that waits at the switch's listener.
pub(super) fn accept(listener: &Listener) -> Result<OwnedFd, Errno> {
    let socket = listener.accept()?;
    enlarge_send_buffer(&socket);
    Ok(socket)
}

/// A connection to the switch at `path`, which has not greeted yet.
pub(super) fn dial(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = new_socket()?;
    connect(&socket, address)?;
    enlarge_send_buffer(&socket);
    Ok(socket)
}

/// Sends one message. Never blocks.
pub(super) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags).map(drop)
}

/// Sends one message and a file along. Never blocks.
pub(super) fn send_with_file(socket: impl AsFd, message: &[u8], file: impl AsFd) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

/// Takes one message and the file that came along; `None` when there is none. Never blocks.
pub(super) fn recv_with_file(
    socket: impl AsFd,
    buf: &mut [u8],
) -> Result<Option<(usize, Option<OwnedFd>)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags) {
        Ok(got) if got.bytes == 0 => return Err(Errno::CONNRESET),
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(Some((got.bytes, files.next().and_then(|mut files| files.next()))))
}

/// What [`recv`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A whole message of this many bytes.
    Message(usize),
    /// A message longer than the buffer; it is gone.
    TooLong,
    /// The peer has hung up.
    Closed,
}

/// Takes one message. Never blocks: [`Errno::AGAIN`] when there is none.
pub(super) fn recv(socket: impl AsFd, parts: &mut [IoSliceMut<'_>]) -> Result<Received, Errno> {
    // Without room for control data the kernel closes any descriptor a peer sends along.
    let got = recvmsg(socket, parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?;
    Ok(match got {
        m if m.flags.contains(ReturnFlags::TRUNC) => Received::TooLong,
        m if m.bytes == 0 => Received::Closed,
        m => Received::Message(m.bytes),
    })
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, KIND, flags, None)
}

/// A larger kernel buffer only saves copies into the queue behind it, so a refusal is no error.
fn enlarge_send_buffer(socket: &OwnedFd) {
    let forced = sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER);
    let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER));
}
