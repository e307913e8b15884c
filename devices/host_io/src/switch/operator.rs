//! Channels between ports: what a machine asks the switch for, and what it gets.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use device_model::net::MacAddr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, socketpair};

use super::protocol::{ATTACH, CALL, CONNECT, MAX_CONTROL, Named};
use super::socket::{self, KIND, dial};

/// A machine's connection to the switch on which it asks for channels and is given them.
#[derive(Debug)]
pub struct Operator(OwnedFd);

impl Operator {
    /// Tells the switch at `path` that this process has a port with the address `mac`, and takes channels there.
    ///
    /// # Errors
    ///
    /// When there is no switch.
    pub fn dial(path: &Path, mac: MacAddr) -> io::Result<Self> {
        let connection = dial(&SocketAddrUnix::new(path)?)?;
        socket::send(&connection, &[IoSlice::new(&Named::new(mac).encode(ATTACH))])?;
        Ok(Self(connection))
    }

    /// Asks for a channel to the machine whose port has the address `peer`. If there is none, or it takes no channels, there
    /// is no answer.
    pub fn call(&self, peer: MacAddr) {
        // A switch that has gone is noticed by the end of the connection.
        let _ = socket::send(&self.0, &[IoSlice::new(&Named::new(peer).encode(CALL))]);
    }

    /// The next end of a channel, and who is at the other; `None` when none waits.
    ///
    /// # Errors
    ///
    /// When the switch has gone, or does not make channels.
    pub fn answer(&self) -> io::Result<Option<(MacAddr, OwnedFd)>> {
        let mut buf = [0; MAX_CONTROL];
        let Some((len, file)) = socket::recv_with_file(&self.0, &mut buf)? else { return Ok(None) };
        let peer = Named::parse(buf.get(..len).unwrap_or_default(), CONNECT);
        match (peer, file) {
            (Some(peer), Some(file)) => Ok(Some((peer.mac(), file))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl AsFd for Operator {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The switch's side of such a connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) socket: OwnedFd,
    pub(super) mac: MacAddr,
    /// The process at the other end.
    pub(super) pid: i32,
}

/// Gives two machines an end of a new socket pair each. Who cannot take one finds out nothing, and the other one that its
/// peer is gone.
pub(super) fn connect(caller: &Attached, callee: &Attached) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, KIND, flags, None)?;
    for (to, peer, end) in [(callee, caller, a), (caller, callee, b)] {
        socket::send_with_file(&to.socket, &Named::new(peer.mac).encode(CONNECT), &end)?;
    }
    Ok(())
}
