//! One channel: two rings, the peer's memory, and a socket to wake and be woken by.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use device_model::direct::Channel;
use device_model::ram::{Ram, RamError, RamSlice};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recvmsg, send, sendmsg, shutdown,
};

use super::memory::{PeerMemory, share};
use super::ring::{Reader, Writer};
use super::terms::{MAX_TERMS, Terms};

/// How long a peer is waited for that has to let go of memory.
const PATIENCE: Duration = Duration::from_millis(100);
/// Polls before the wait gives the processor away: by far the most waits are shorter.
const SPINS: u32 = 200;

/// A channel whose peer has not told its terms yet.
#[derive(Debug)]
pub struct Offer {
    socket: Arc<OwnedFd>,
    writer: Writer,
}

/// A channel to another machine.
#[derive(Debug)]
pub struct DirectChannel {
    socket: Arc<OwnedFd>,
    writer: Writer,
    reader: Reader,
    memory: PeerMemory,
    addresses: Option<Vec<IpAddr>>,
    /// The socket is not closed.
    alive: Arc<AtomicBool>,
    /// Since when the peer is waited for, and how often it was looked at.
    waiting: Option<(Instant, u32)>,
}

impl Offer {
    /// Tells the peer at the other end of `socket` this machine's terms.
    ///
    /// # Errors
    ///
    /// When the memory cannot be shared, the host has no memory or descriptor left, or the peer is gone.
    pub fn new(socket: OwnedFd, ram: &Ram, addresses: Option<Vec<IpAddr>>) -> io::Result<Self> {
        let (file, ranges) = share(ram)?;
        let (writer, ring) = Writer::create()?;
        let terms = Terms { ranges, addresses }.encode().ok_or(io::ErrorKind::InvalidInput)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd(), ring.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&socket, &[IoSlice::new(&terms)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(Self { socket: Arc::new(socket), writer })
    }

    /// The channel, if the peer has told its terms; itself, if not yet.
    ///
    /// # Errors
    ///
    /// When the peer is gone, or its terms or files are not to be accepted.
    pub fn accept(self) -> io::Result<Result<DirectChannel, Self>> {
        let Some((message, files)) = receive(&self.socket)? else { return Ok(Err(self)) };
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let terms = Terms::parse(&message).ok_or_else(|| invalid("terms that make no sense"))?;
        let [memory, ring] = <[OwnedFd; 2]>::try_from(files).map_err(|_| invalid("terms without files"))?;
        Ok(Ok(DirectChannel {
            memory: PeerMemory::map(memory, &terms.ranges)?,
            reader: Reader::open(ring)?,
            addresses: terms.addresses,
            socket: self.socket,
            writer: self.writer,
            alive: Arc::new(AtomicBool::new(true)),
            waiting: None,
        }))
    }
}

impl AsFd for Offer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message and the files that came along; `None` when nothing waits.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_TERMS];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(got) if got.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            files.extend(sent);
        }
    }
    bytes.truncate(got.bytes);
    Ok(Some((bytes, files)))
}

/// Takes the wake-ups of a socket; `false` when it is closed.
pub(super) fn take_wake_ups(socket: impl AsFd) -> bool {
    let mut byte = [0; 1];
    loop {
        match rustix::net::recv(&socket, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok(_) => {}
            Err(errno) => return matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }
}

impl DirectChannel {
    /// What the driver of channels needs: where wake-ups come, and how to say that no more will.
    pub(super) fn wake_up(&self) -> (Arc<OwnedFd>, Arc<AtomicBool>) {
        (Arc::clone(&self.socket), Arc::clone(&self.alive))
    }

    /// Wakes the peer. A socket that is full of wake-ups needs no more of them.
    fn wake(&self) {
        let _ = send(&*self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl Channel for DirectChannel {
    fn send(&mut self, record: &[u8]) -> bool {
        self.writer.write(record)
    }

    fn flush(&mut self) {
        if self.writer.show() {
            self.wake();
        }
    }

    fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let len = self.reader.read(buf);
        if len.is_none() && self.reader.owes_wake_up() {
            self.wake();
        }
        len
    }

    fn may_use(&self, source: IpAddr) -> bool {
        self.addresses.as_ref().is_none_or(|allowed| allowed.contains(&source))
    }

    fn reaches(&self, gpa: u64, len: u32) -> bool {
        self.memory.reaches(gpa, len)
    }

    fn pull(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        self.memory.copy(gpa, to)
    }

    fn is_settled(&mut self) -> bool {
        let settled = self.writer.is_empty();
        if settled {
            self.waiting = None;
        }
        settled
    }

    fn wait(&mut self) -> bool {
        let (_, looks) = self.waiting.get_or_insert_with(|| (Instant::now(), 0));
        *looks += 1;
        if *looks < SPINS {
            std::hint::spin_loop();
        } else {
            thread::yield_now();
        }
        let patient = self.is_up() && self.waiting.is_some_and(|(since, _)| since.elapsed() < PATIENCE);
        if !patient {
            self.writer.close();
            self.reader.close();
        }
        patient
    }

    fn rest(&mut self) -> bool {
        self.writer.rest() && self.reader.rest()
    }

    fn is_up(&self) -> bool {
        self.writer.is_up() && self.reader.is_up() && self.alive.load(Ordering::Relaxed)
    }
}

impl Drop for DirectChannel {
    fn drop(&mut self) {
        self.writer.close();
        self.reader.close();
        // Both drivers hear that, whoever else has the socket open.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}
