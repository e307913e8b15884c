//! What the tests of this crate share. Waits are bounded and end as soon as their condition holds.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use device_model::net::{Link, MacAddr};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Far longer than anything here takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A frame of `len` bytes whose payload repeats `fill`.
pub(crate) fn frame(to: MacAddr, from: MacAddr, len: usize, fill: u8) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5]].concat();
    frame.resize(len, fill);
    frame
}

/// A locally administered address.
pub(crate) const fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

pub(crate) fn send(link: &dyn Link, frame: &[u8]) {
    link.send(&[IoSlice::new(frame)]).unwrap();
}

/// The next frame, waited for; `None` when nothing came in `time`.
pub(crate) fn recv_for(link: &dyn Link, time: Duration) -> Option<Vec<u8>> {
    let mut buf = vec![0; 70_000];
    let deadline = Instant::now() + time;
    loop {
        if let Some(len) = link.recv(&mut buf).unwrap() {
            buf.truncate(len);
            return Some(buf);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        readable_for(link.readable_fd().unwrap(), left);
    }
}

/// Whether the descriptor becomes readable in `time`.
pub(crate) fn readable_for(fd: impl AsFd, time: Duration) -> bool {
    let timeout = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// Waits until the descriptor, which must become readable, is.
pub(crate) fn wait_readable(fd: impl AsFd) {
    assert!(readable_for(fd, PATIENCE), "descriptor should have become readable");
}

/// The next frame, which must come.
pub(crate) fn recv(link: &dyn Link) -> Vec<u8> {
    recv_for(link, PATIENCE).expect("a frame should have arrived")
}

/// Whether nothing comes for a moment. Can only err towards passing.
pub(crate) fn is_silent(link: &dyn Link) -> bool {
    recv_for(link, Duration::from_millis(50)).is_none()
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
