//! `verbena fabric`: the initiator as a command.

mod bench;
mod disk;
mod transfer;

use std::time::Duration;

use clap::{Args, Subcommand};
use virtio_bindings::virtio_ids::{VIRTIO_ID_BLOCK, VIRTIO_ID_RNG};
use virtio_fabric::discover;

use crate::config::key_value::parse;
use crate::config::{FabricUrl, NetConfig};
use crate::error::{Error, Exit, Result};
use crate::fabric::{initiator_name, via};
use disk::RemoteDisk;

/// Most virtqueues that a device can have.
const MAX_QUEUES: u16 = 1024;

/// What all of these take.
#[derive(Debug, Args)]
struct Common {
    /// The target and its device: tcp://HOST[:PORT]/NAME or rdma://ADDRESS[:PORT]/NAME
    #[arg(value_name = "URL")]
    url: FabricUrl,

    /// The port that RDMA leaves by: link=switch:PATH,ip=ADDRESS and what else `verbena run --help` says of --net
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<NetConfig>)]
    net: Option<NetConfig>,

    /// Seconds to wait for a target that is not there, or is lost meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,

    /// Checksum everything that is sent (CRC32C)
    #[arg(long)]
    digest: bool,
}

/// Use disks that a target exports.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show what a target exports
    List(List),
    /// Show what a device is
    Inspect(Inspect),
    /// Copy a part of a disk to standard output or a file
    Read(transfer::Read),
    /// Copy standard input or a file to a part of a disk
    Write(transfer::Write),
    /// Fill a part of a disk with a pattern, read it back and compare; destroys what is there
    Verify(transfer::Verify),
    /// Measure throughput and latency
    Bench(bench::Bench),
}

impl Command {
    pub(super) fn run(self) -> Result<Exit> {
        match self {
            Self::List(command) => command.run(),
            Self::Inspect(command) => command.run(),
            Self::Read(command) => command.run(),
            Self::Write(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Bench(command) => command.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// The target: tcp://HOST[:PORT] or rdma://ADDRESS[:PORT]
    #[arg(value_name = "URL")]
    url: FabricUrl,

    /// The port that RDMA leaves by: link=switch:PATH,ip=ADDRESS
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<NetConfig>)]
    net: Option<NetConfig>,

    /// Seconds to wait for its answer
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
}

impl List {
    fn run(self) -> Result<Exit> {
        let limit = Duration::from_secs(self.timeout);
        let found =
            discover(initiator_name()?, via(&self.url, self.net.as_ref())?, self.url.addresses()?, limit)
                .map_err(|e| Error::io(format!("ask {} what it exports", self.url), e))?;
        let mut text = format!("{:<8} {:>6}  NAME\n", "TYPE", "QUEUES");
        for device in found {
            let kind = kind(device.device);
            text.push_str(&format!("{kind:<8} {:>6}  {}\n", device.virtqueues, device.name.as_str()));
        }
        super::write_out(&text)
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Inspect {
    #[command(flatten)]
    common: Common,
}

impl Inspect {
    fn run(self) -> Result<Exit> {
        let disk = RemoteDisk::connect(&self.common, MAX_QUEUES)?;
        let mut text = format!("{}\n  type      {}\n", self.common.url, kind(disk.device()));
        text.push_str(&format!("  features  {:#x}\n", disk.features()));
        let queues: Vec<_> = disk.queue_sizes().iter().map(u16::to_string).collect();
        text.push_str(&format!("  queues    {} (entries: {})\n", queues.len(), queues.join(", ")));
        if disk.device() == VIRTIO_ID_BLOCK {
            let access = if disk.is_read_only() { "read-only" } else { "read and write" };
            text.push_str(&format!("  size      {} bytes, {access}\n", disk.size()));
            text.push_str(&format!("  largest   {} bytes a request\n", disk.max_request()));
        }
        super::write_out(&text)
    }
}

fn kind(device: u32) -> String {
    match device {
        VIRTIO_ID_BLOCK => "disk".to_owned(),
        VIRTIO_ID_RNG => "rng".to_owned(),
        other => format!("type {other}"),
    }
}
