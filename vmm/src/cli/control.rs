//! `verbena pause`, `verbena resume` and `verbena snapshot`

use std::path::PathBuf;

use vmm_api::Client;

use super::inspect::{Socket, explain};
use crate::error::{Error, Exit, Result};

const SNAPSHOT_EXAMPLES: &str = "\
Example:
  verbena run --kernel vmlinuz … --api-socket /tmp/a.sock &
  verbena snapshot --api-socket /tmp/a.sock --to /var/tmp/saved --stop
  verbena run --kernel vmlinuz … --restore /var/tmp/saved

Disk images are not part of a snapshot: keep a copy of them if the machine goes on.";

/// Pause a running machine: its CPUs and devices stand still
#[derive(Debug, clap::Args)]
pub(super) struct Pause {
    #[command(flatten)]
    socket: Socket,
}

/// Let a paused machine go on
#[derive(Debug, clap::Args)]
pub(super) struct Resume {
    #[command(flatten)]
    socket: Socket,
}

/// Save a running machine in a directory, for `verbena run --restore`
#[derive(Debug, clap::Args)]
#[command(after_help = SNAPSHOT_EXAMPLES)]
pub(super) struct Snapshot {
    #[command(flatten)]
    socket: Socket,

    /// Directory to save the machine in; it must not hold a snapshot
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// End the machine once it is saved, so that the copy can go on with its RDMA connections
    #[arg(long)]
    stop: bool,
}

impl Pause {
    pub(super) fn run(self) -> Result<Exit> {
        self.socket.connect()?.pause().map_err(explain)?;
        Ok(Exit::PoweredOff)
    }
}

impl Resume {
    pub(super) fn run(self) -> Result<Exit> {
        self.socket.connect()?.resume().map_err(explain)?;
        Ok(Exit::PoweredOff)
    }
}

impl Snapshot {
    pub(super) fn run(self) -> Result<Exit> {
        // The machine's working directory need not be this one.
        let to = std::path::absolute(&self.to).map_err(|e| Error::io("find the directory", e))?;
        let mut client: Client = self.socket.connect()?;
        client.snapshot(&to, self.stop).map_err(explain)?;
        Ok(Exit::PoweredOff)
    }
}
