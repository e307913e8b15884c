//! A target in a thread of its own, exporting a disk in a file and the host's entropy.
#![allow(dead_code, reason = "Every test uses its own part")]

use std::cell::Cell;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use device_model::net::{Link, MacAddr};
use host_io::file_io::FileIo;
use host_io::impair::Impair;
use host_io::switch::{Options, SwitchLink, SwitchLinkOptions, SwitchThread};
use host_port::{HostPort, PortConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio_fabric::export::{Disk, DiskOptions, Entropy, Export};
use virtio_fabric::wire::{Features, Name, PORT};
use virtio_fabric::{Listen, OperationCounts, Server, Via, initiator, target};

pub const SIZE: u64 = 8 << 20;
const MAX_XFER: u32 = (1 << 20) + 4096;
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// What carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Tcp,
    Rdma,
    /// RDMA over a network that loses, repeats and reorders frames.
    BadRdma,
}

impl Carrier {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Rdma, Self::BadRdma];
}

/// A port of a switch, the `n`th.
pub fn port(switch: &Path, n: u8, bad: bool) -> HostPort {
    let options = SwitchLinkOptions { name: format!("port{n}"), mtu: None };
    let link = SwitchLink::connect(switch, &options).unwrap();
    let link: Arc<dyn Link> = match bad {
        true => Arc::new(Impair::new(link, "loss:1%/duplicate:1%/reorder:1%".parse().unwrap()).unwrap()),
        false => Arc::new(link),
    };
    let config = PortConfig {
        mac: MacAddr([2, 0, 0, 0, 0, n]),
        ip: IpAddr::from([10, 9, 0, n]),
        arena: 64 << 20,
        direct: None,
    };
    HostPort::new(&config, link).unwrap()
}

/// A target in a thread, which can be stopped as if it were killed.
pub struct Process {
    counts: Arc<Mutex<OperationCounts>>,
    stop: Arc<AtomicBool>,
    refresh: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start(at: Listen, path: &Path, features: Features, drain: bool) -> Self {
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
        let mut server = Server::new(config, at, exports, FileIo::new(64).unwrap()).unwrap();
        let [stop, refresh] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let counts = Arc::new(Mutex::new(OperationCounts::default()));
        let counted = Arc::clone(&counts);
        let (stopped, refreshed) = (Arc::clone(&stop), Arc::clone(&refresh));
        let thread = std::thread::spawn(move || {
            loop {
                let timeout = Timespec::try_from(Duration::from_millis(5)).unwrap();
                poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&timeout)).unwrap();
                // Before what was done can be answered.
                let mut counts = counted.lock().unwrap();
                server.run().unwrap();
                *counts = server.counts().unwrap_or_default();
                drop(counts);
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
        Process { counts, stop, refresh, thread: Some(thread) }
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
    carrier: Carrier,
    _switch: Option<SwitchThread>,
    ports: Cell<u8>,
}

impl Rig {
    /// Over TCP.
    pub fn new(features: Features) -> Self {
        Self::over(Carrier::Tcp, features)
    }

    pub fn over(carrier: Carrier, features: Features) -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("image")).unwrap().set_len(SIZE).unwrap();
        let switch = (carrier != Carrier::Tcp)
            .then(|| SwitchThread::spawn(&dir.path().join("switch"), Options::default()).unwrap());
        // A port that was free a moment ago.
        let address = match carrier {
            Carrier::Tcp => TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
            _ => SocketAddr::new(IpAddr::from([10, 9, 0, 1]), PORT),
        };
        let ports = Cell::new(2);
        let mut rig = Rig { dir, address, process: None, features, carrier, _switch: switch, ports };
        rig.start(false);
        rig
    }

    pub fn switch(&self) -> PathBuf {
        self.dir.path().join("switch")
    }

    /// How one more initiator reaches the target.
    pub fn via(&self) -> Via {
        let n = self.ports.replace(self.ports.get() + 1);
        match self.carrier {
            Carrier::Tcp => Via::Tcp,
            carrier => Via::Rdma(Box::new(port(&self.switch(), n, carrier == Carrier::BadRdma))),
        }
    }

    fn listen(&self) -> Listen {
        match self.carrier {
            Carrier::Tcp => {
                let bind = || TcpListener::bind(self.address);
                Listen::Tcp(std::iter::repeat_with(bind).find_map(Result::ok).expect("the port is ours"))
            }
            carrier => Listen::Rdma(
                Box::new(port(&self.switch(), 1, carrier == Carrier::BadRdma)),
                self.address.port(),
            ),
        }
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
        let image = self.dir.path().join("image");
        self.process = Some(Process::start(self.listen(), &image, self.features, drain));
    }

    /// How to connect to one of its devices.
    pub fn config(&self, target: &str) -> initiator::Config {
        let backoff = Duration::from_millis(10);
        let features = target::FEATURES;
        initiator::Config { target: name(target), features, backoff, repeatable: true, ..Default::default() }
    }

    /// What the target has done.
    pub fn counts(&self) -> OperationCounts {
        *self.process.as_ref().expect("it runs").counts.lock().unwrap()
    }

    /// Looks whether the disk has another size.
    pub fn refresh(&self) {
        self.process.as_ref().expect("it runs").refresh.store(true, Ordering::SeqCst);
    }
}
