//! Frames a second through a switch, between two links of this process, beside a bare socket of the same kind.
//!
//! `cargo run --release -p host_io --example switch_rate`

use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use device_model::net::{Link, MacAddr};
use host_io::guard::{AddressPolicy, Guard};
use host_io::switch::{Options, SwitchLink, SwitchLinkOptions, SwitchThread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::time::Timespec;

const RUN: Duration = Duration::from_millis(1000);
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const SIZES: [usize; 4] = [64, 1514, 4200, 9014];
const SENDER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const RECEIVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("switch.sock");
    let switch = SwitchThread::spawn(&path, Options::default())?;
    let connect =
        |name: &str| SwitchLink::connect(&path, &SwitchLinkOptions { name: name.into(), mtu: None });
    let (a, b) = (connect("a")?, connect("b")?);
    let address: IpAddr = [10, 0, 0, 1].into();
    let guarded = Guard::new(connect("guarded")?, AddressPolicy::with_addresses(SENDER, vec![address]));
    // Teaches the switch where the receiver is.
    b.send(&[IoSlice::new(&frame(64, SENDER, RECEIVER))])?;

    println!("{:>6} {:>22} {:>22} {:>22}", "bytes", "one bare socket", "switch", "guard and switch");
    for size in SIZES {
        let bare = rate(size, &Bare::pair()?)?;
        let plain = rate(size, &(&a, &b))?;
        let guarded = rate(size, &(&guarded, &b))?;
        println!("{size:>6} {} {} {}", show(bare, size), show(plain, size), show(guarded, size));
    }
    println!("\n{}", switch.snapshot());
    Ok(())
}

fn show(rate: f64, size: usize) -> String {
    format!("{:>8.0}/s {:>6.2} Gb/s", rate, rate * size as f64 * 8.0 / 1e9)
}

/// An IPv4 frame that a guard has to look into.
fn frame(size: usize, to: MacAddr, from: MacAddr) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x08, 0x00, 0x45, 0, 0, 46]].concat();
    frame.extend_from_slice(&[
        0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0x12, 0xb7, 0, 26,
    ]);
    frame.resize(size, 0);
    frame
}

/// A way from a sender to a receiver.
trait Way: Sync {
    /// Whether the frame was taken.
    fn send(&self, frame: &[u8]) -> io::Result<bool>;
    /// Whether there was one.
    fn recv(&self, buf: &mut [u8]) -> io::Result<bool>;
    /// Waits until there may be one.
    fn wait(&self) -> io::Result<()>;
}

impl<A: Link, B: Link> Way for (&A, &B) {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        // As a device sends: header and payload from different places.
        let (header, payload) = frame.split_at(54);
        taken(self.0.send(&[IoSlice::new(header), IoSlice::new(payload)]))
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<bool> {
        Ok(self.1.recv(buf)?.is_some())
    }

    fn wait(&self) -> io::Result<()> {
        self.1.readable_fd().map_or(Ok(()), wait_readable)
    }
}

/// One socket pair without a switch: half the copies and half the wake-ups.
struct Bare(OwnedFd, OwnedFd);

impl Bare {
    fn pair() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self(a, b))
    }
}

impl Way for Bare {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        taken(send(&self.0, frame, SendFlags::NOSIGNAL).map(drop).map_err(Into::into))
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<bool> {
        taken(recv(&self.1, buf, RecvFlags::empty()).map(drop).map_err(Into::into))
    }

    fn wait(&self) -> io::Result<()> {
        wait_readable(&self.1)
    }
}

fn taken(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn wait_readable(fd: impl AsFd) -> io::Result<()> {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&PATIENCE))?;
    Ok(())
}

/// Frames received a second while the sender sends as fast as it can.
fn rate(size: usize, way: &impl Way) -> Result<f64, Error> {
    let done = AtomicBool::new(false);
    let frame = frame(size, RECEIVER, SENDER);
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> io::Result<()> {
            while !done.load(Ordering::Relaxed) {
                if !way.send(&frame)? {
                    thread::yield_now();
                }
            }
            Ok(())
        });
        let received = receive(way);
        done.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| "sender panicked")??;
        let rate = received?;
        // What is still on its way belongs to no measurement.
        while way.recv(&mut [0; 16_384])? || {
            way.wait()?;
            way.recv(&mut [0; 16_384])?
        } {}
        Ok(rate)
    })
}

fn receive(way: &impl Way) -> io::Result<f64> {
    let mut buf = vec![0; 16_384];
    let (start, mut frames) = (Instant::now(), 0_u64);
    while start.elapsed() < RUN {
        way.wait()?;
        while start.elapsed() < RUN && way.recv(&mut buf)? {
            frames += 1;
        }
    }
    Ok(frames as f64 / start.elapsed().as_secs_f64())
}
