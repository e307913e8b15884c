//! A target in a thread of its own, exporting a disk in a file and the host's entropy.
#![allow(dead_code, reason = "Every test uses its own part")]

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use host_io::file_io::FileIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio_fabric::export::{Disk, DiskOptions, Entropy, Export};
use virtio_fabric::tcp::Server;
use virtio_fabric::wire::{Features, Name};
use virtio_fabric::{initiator, target};

pub const SIZE: u64 = 8 << 20;
const MAX_XFER: u32 = (1 << 20) + 4096;
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// A target in a thread, which can be stopped as if it were killed.
pub struct Process {
    stop: Arc<AtomicBool>,
    refresh: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start(listener: TcpListener, path: &Path, features: Features, drain: bool) -> Self {
        let options = DiskOptions {
            name: name("disk0"),
            path: path.into(),
            read_only: false,
            queues: 2,
            id: "id0".into(),
        };
        let disk = Disk::open(&options, MAX_XFER).unwrap();
        let exports: Vec<Box<dyn Export>> = vec![Box::new(disk), Box::new(Entropy::new(name("rng")))];
        let config = target::Config { features, max_xfer: MAX_XFER, ..target::Config::default() };
        let mut server = Server::new(config, listener, exports, FileIo::new(64).unwrap()).unwrap();
        let [stop, refresh] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (stopped, refreshed) = (Arc::clone(&stop), Arc::clone(&refresh));
        let thread = std::thread::spawn(move || {
            loop {
                let timeout = Timespec::try_from(Duration::from_millis(5)).unwrap();
                poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&timeout)).unwrap();
                server.run().unwrap();
                if refreshed.swap(false, Ordering::SeqCst) {
                    server.refresh();
                }
                if stopped.load(Ordering::SeqCst) {
                    if !drain || server.drain_time() == Some(Duration::ZERO) {
                        return;
                    }
                    if server.drain_time().is_none() {
                        server.drain(Duration::from_secs(10));
                    }
                }
            }
        });
        Process { stop, refresh, thread: Some(thread) }
    }

    /// Ends it, while `meanwhile` goes on.
    pub fn end(mut self, mut meanwhile: impl FnMut()) {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().unwrap();
        while !thread.is_finished() {
            meanwhile();
        }
        thread.join().unwrap();
    }
}

pub struct Rig {
    dir: tempfile::TempDir,
    pub address: SocketAddr,
    process: Option<Process>,
    features: Features,
}

impl Rig {
    pub fn new(features: Features) -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("image")).unwrap().set_len(SIZE).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let process = Some(Process::start(listener, &dir.path().join("image"), features, false));
        Rig { dir, address, process, features }
    }

    pub fn image(&self) -> File {
        File::options().read(true).write(true).open(self.dir.path().join("image")).unwrap()
    }

    /// Ends the target and starts another that knows nothing.
    pub fn restart(&mut self, drain: bool, meanwhile: impl FnMut()) {
        self.stop(meanwhile);
        self.start(drain);
    }

    /// Ends the target.
    pub fn stop(&mut self, meanwhile: impl FnMut()) {
        self.process.take().unwrap().end(meanwhile);
    }

    /// Starts a target that knows nothing of those before it.
    pub fn start(&mut self, drain: bool) {
        let listener = std::iter::repeat_with(|| TcpListener::bind(self.address))
            .find_map(Result::ok)
            .expect("the port is ours");
        let image = self.dir.path().join("image");
        self.process = Some(Process::start(listener, &image, self.features, drain));
    }

    /// How to connect to one of its devices.
    pub fn config(&self, target: &str) -> initiator::Config {
        let backoff = Duration::from_millis(10);
        let features = target::FEATURES;
        initiator::Config { target: name(target), features, backoff, repeatable: true, ..Default::default() }
    }

    /// Looks whether the disk has another size.
    pub fn refresh(&self) {
        self.process.as_ref().expect("it runs").refresh.store(true, Ordering::SeqCst);
    }
}
