//! `verbena target`

use std::net::TcpListener;
use std::thread::Builder;
use std::time::Duration;

use host_io::event::Event;
use host_io::file_io::FileIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use virtio_fabric::export::{Disk, DiskOptions, Entropy, Export};
use virtio_fabric::target::Config;
use virtio_fabric::wire::Name;
use virtio_fabric::{Listen, Server};

use crate::config::key_value::parse;
use crate::config::{ExportConfig, ExportKind, FabricUrl, NetConfig, Scheme};
use crate::error::{Error, Exit, Result};
use crate::fabric::{TARGET_ARENA, open_port};

const EXAMPLES: &str = "\
Examples:
  verbena target --listen tcp://0.0.0.0 --export name=disk0,path=disk.img --export name=iso,path=cd.iso,readonly
  verbena fabric list tcp://HOST
  verbena run … --fabric-disk tcp://HOST/disk0
  verbena target --listen rdma://10.0.0.9 --net link=switch:/tmp/lan.sock,ip=10.0.0.9 --export name=disk0,path=disk.img
  verbena fabric inspect rdma://10.0.0.9/disk0 --net link=switch:/tmp/lan.sock,ip=10.0.0.8
  verbena run … --fabric-disk target=rdma://10.0.0.9/disk0,link=switch:/tmp/lan.sock,ip=10.0.0.8

Whoever can reach the address can use what is exported: there is no authentication and no encryption yet, so listen where
only friends are. Two writers of one disk must know of each other.

SIGTERM and SIGINT ask initiators to finish and leave within the time of --drain; a second one ends at once. SIGHUP looks
for disks that have grown or shrunk and tells their users.";

/// Requests that are with the kernel at a time.
const DEPTH: u32 = 256;

/// Export disks by virtio over fabrics.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Command {
    /// Where to listen: tcp://ADDRESS[:PORT] or rdma://ADDRESS[:PORT] [default port: 8549]
    #[arg(long, value_name = "URL")]
    listen: FabricUrl,

    /// The port that RDMA comes by: link=switch:PATH,ip=ADDRESS and what else `verbena run --help` says of --net
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<NetConfig>)]
    net: Option<NetConfig>,

    /// A device: name=NAME,path=FILE,readonly=on|off,queues=N,id=TEXT or name=NAME,device=rng; repeat for more
    ///
    /// FILE is a raw image or a block device. Initiators may use up to N queues (4 by default); TEXT is the serial number
    /// that guests see.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<ExportConfig>, required = true)]
    export: Vec<ExportConfig>,

    /// Seconds that initiators get to finish when the target is asked to end
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
}

impl Command {
    pub(super) fn run(self) -> Result<Exit> {
        let config = Config::default();
        let exports = self.exports(&config)?;
        let failed = |action: &str| {
            let action = action.to_owned();
            move |e: std::io::Error| Error::io(action, e)
        };
        let (at, shown) = self.listen()?;
        let io = FileIo::new(DEPTH).map_err(failed("set up file access"))?;
        let mut server = Server::new(config, at, exports, io).map_err(failed("set up the target"))?;
        let wishes = Wishes::watch()?;
        // For scripts that wait for it, or asked for port 0.
        super::write_out(&format!("listening at {shown}\n"))?;
        loop {
            let left = server.drain_time();
            if left == Some(Duration::ZERO) {
                return Ok(Exit::PoweredOff);
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::new(&server, PollFlags::IN),
                PollFd::new(&wishes.end, PollFlags::IN),
                PollFd::new(&wishes.look, PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("wait for events", errno)),
            }
            server.run().map_err(failed("serve"))?;
            if wishes.look.clear() {
                server.refresh();
            }
            if wishes.end.clear() {
                if left.is_some() {
                    return Ok(Exit::Signalled);
                }
                server.drain(Duration::from_secs(self.drain));
            }
        }
    }

    /// Where it listens, and the same for people.
    fn listen(&self) -> Result<(Listen, String)> {
        let failed = |e| Error::io(format!("listen at {}", self.listen), e);
        if self.listen.scheme == Scheme::Tcp {
            let listener = TcpListener::bind(&self.listen.addresses()?[..]).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            return Ok((Listen::Tcp(listener), format!("tcp://{address}")));
        }
        // The port has one address, which is the one to listen at.
        let host = self.listen.host.parse().ok();
        let net = self.net.clone().map(|net| NetConfig { ip: net.ip.or(host), ..net });
        if net.as_ref().is_some_and(|net| net.ip != host) {
            return Err(Error::Usage(format!("{} is not the address of --net", self.listen.host)));
        }
        let port = open_port(net.as_ref(), TARGET_ARENA)?;
        Ok((Listen::Rdma(port, self.listen.port), self.listen.to_string()))
    }

    fn exports(&self, config: &Config) -> Result<Vec<Box<dyn Export>>> {
        let mut names = Vec::new();
        let mut exports: Vec<Box<dyn Export>> = Vec::new();
        for export in &self.export {
            if names.contains(&&export.name) {
                return Err(Error::Usage(format!("Two exports are named {}", export.name)));
            }
            names.push(&export.name);
            exports.push(open(export, config.max_xfer)?);
        }
        Ok(exports)
    }
}

fn open(export: &ExportConfig, max_xfer: u32) -> Result<Box<dyn Export>> {
    let usage = |why: &str| Error::Usage(format!("Export {}: {why}", export.name));
    let name = Name::new(&export.name).map_err(|e| usage(&e.to_string()))?;
    if export.name.is_empty() {
        return Err(usage("the name is empty"));
    }
    match (export.device, &export.path) {
        (ExportKind::Rng, None) => Ok(Box::new(Entropy::new(name))),
        (ExportKind::Rng, Some(_)) => Err(usage("an entropy device has no path")),
        (ExportKind::Disk, None) => Err(usage("give the disk's file as path=FILE")),
        (ExportKind::Disk, Some(path)) => {
            if !(1..=64).contains(&export.queues) {
                return Err(usage("queues must be 1 to 64"));
            }
            let id = export.id.clone().unwrap_or_else(|| export.name.clone());
            let options = DiskOptions {
                name,
                path: path.clone(),
                read_only: export.readonly,
                queues: export.queues,
                id,
            };
            let disk = Disk::open(&options, max_xfer).map_err(|e| Error::disk_image(path, &e))?;
            Ok(Box::new(disk))
        }
    }
}

/// What signals ask for, as events.
struct Wishes {
    end: Event,
    look: Event,
}

impl Wishes {
    fn watch() -> Result<Self> {
        let failed = |e| Error::io("watch for signals", e);
        let wishes = Wishes { end: Event::new().map_err(failed)?, look: Event::new().map_err(failed)? };
        let (end, look) = (wishes.end.try_clone().map_err(failed)?, wishes.look.try_clone().map_err(failed)?);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map_err(failed)?;
        let forward = move || {
            for signal in signals.forever() {
                if signal == SIGHUP { look.signal() } else { end.signal() }
            }
        };
        Builder::new().name("signals".to_owned()).spawn(forward).map_err(failed)?;
        Ok(wishes)
    }
}
