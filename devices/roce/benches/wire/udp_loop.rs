//! Raw UDP between two sockets of this host.

use std::io::IoSlice;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

/// Bytes of a datagram: a frame with 4096 bytes of payload, its headers, and the port's own.
const DATAGRAM: u16 = 4 + 14 + 20 + 8 + 12 + 4096 + 4;
/// Datagrams of one call.
const BATCH: usize = 15;
const BUFFER: usize = 4 << 20;

/// Gigabytes of such payload a second that arrive.
pub fn run(span: Duration) -> f64 {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let (from, to) = (bind(), bind());
    from.connect(to.local_addr().expect("an address")).expect("a connection");
    to.connect(from.local_addr().expect("an address")).expect("a connection");
    setsockopt(&to, sockopt::UdpGroSegment, &true).expect("joined datagrams");
    // Where this is refused, the buffer is smaller.
    let _ = setsockopt(&to, sockopt::RcvBufForce, &BUFFER);
    to.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let receiver = thread::spawn(move || {
        super::pin(1);
        receive(&to, &stop)
    });
    let batch = vec![7; usize::from(DATAGRAM) * BATCH];
    let start = Clock::now();
    while start.elapsed() < span {
        let cut = [ControlMessage::UdpGsoSegments(&DATAGRAM)];
        let parts = [IoSlice::new(&batch)];
        sendmsg::<()>(from.as_raw_fd(), &parts, &cut, MsgFlags::empty(), None).expect("a socket that sends");
    }
    let passed = start.elapsed();
    over.store(true, Ordering::Relaxed);
    let datagrams = receiver.join().expect("the receiver") as f64 / f64::from(DATAGRAM);
    datagrams * 4096.0 / passed.as_nanos() as f64
}

/// Receives until nothing more comes; returns the bytes.
fn receive(socket: &UdpSocket, over: &AtomicBool) -> u64 {
    let (mut buf, mut bytes) = (vec![0; 1 << 16], 0);
    loop {
        match socket.recv(&mut buf) {
            Ok(len) => bytes += len as u64,
            Err(_) if over.load(Ordering::Relaxed) => return bytes,
            Err(_) => {}
        }
    }
}
