//! The I/O thread of a monitor that is built on `mio`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use device_model::doorbell::Bell;
use device_model::net::{Link, MAX_FRAME};
use device_model::time::Instant;
use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use pvrdma::Pvrdma;
use rustix::event::{EventfdFlags, eventfd};
use zerocopy::IntoBytes;

/// Ends the thread.
const STOP: Token = Token(usize::MAX);

/// An eventfd.
pub struct Wake(OwnedFd);

impl Wake {
    /// One that nobody has rung.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Whether it was rung since the last call.
    fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Bell for Wake {
    fn ring(&self) {
        // The only failure is a counter that is full: then it has been rung already.
        let _ = rustix::io::write(&self.0, 1_u64.as_bytes());
    }
}

/// Time as the device counts it: nanoseconds from any moment on.
#[derive(Clone, Copy)]
pub struct MonotonicClock(std::time::Instant);

impl MonotonicClock {
    /// Zero is now.
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Now.
    pub fn now(self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What the thread looks after.
pub struct Events {
    /// The device.
    pub device: Arc<Pvrdma>,
    /// Its link.
    pub link: Arc<dyn Link>,
    /// Rung by register accesses.
    pub work: Arc<Wake>,
    /// Rung by doorbells.
    pub groups: Vec<Arc<Wake>>,
    /// Time.
    pub clock: MonotonicClock,
}

/// A running I/O thread.
pub struct EventLoop {
    stop: Arc<Wake>,
    thread: JoinHandle<io::Result<()>>,
}

impl EventLoop {
    /// Starts the thread.
    pub fn start(events: Events) -> io::Result<Self> {
        let poll = Poll::new()?;
        let stop = Arc::new(Wake::new()?);
        // Level or edge makes no difference: every wake-up empties what it finds.
        let watch = |fd: BorrowedFd<'_>, token| {
            poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)
        };
        watch(stop.as_fd(), STOP)?;
        let bells = std::iter::once(&events.work).chain(&events.groups).map(|bell| bell.as_fd());
        for (number, fd) in bells.chain(events.link.readable_fd()).enumerate() {
            watch(fd, Token(number))?;
        }
        let thread = std::thread::Builder::new().name("rdma".to_owned()).spawn(move || events.run(poll))?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread and waits for it.
    pub fn stop(self) -> io::Result<()> {
        self.stop.ring();
        self.thread.join().map_err(|_| io::Error::other("the I/O thread panicked"))?
    }
}

impl Events {
    fn run(&self, mut poll: Poll) -> io::Result<()> {
        let mut ready = mio::Events::with_capacity(16);
        let mut frame = vec![0; MAX_FRAME];
        let mut timeout = None;
        loop {
            match poll.poll(&mut ready, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            if ready.iter().any(|event| event.token() == STOP) {
                return Ok(());
            }
            self.work.take();
            while let Some(length) = self.link.recv(&mut frame)? {
                // A receive request that was posted before its message was sent must be found before the message is.
                self.look_at_groups();
                self.device.receive(self.clock.now(), &frame[..length]);
            }
            self.look_at_groups();
            let next = self.device.service(self.clock.now());
            let wait = next.deadline.map(|deadline| deadline.saturating_since(self.clock.now()));
            timeout = if next.more { Some(Duration::ZERO) } else { wait };
        }
    }

    fn look_at_groups(&self) {
        for (number, _) in self.groups.iter().enumerate().filter(|(_, bell)| bell.take()) {
            self.device.rang(number);
        }
    }
}
