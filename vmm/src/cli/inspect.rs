//! `verbena rdma show` and `verbena net show`

use std::path::PathBuf;

use vmm_api::{Client, ClientError, ErrorKind};

use super::tables;
use crate::error::{Error, Exit, Result};

/// Names the socket when the flag does not.
const VARIABLE: &str = "VERBENA_API_SOCKET";

const RDMA_EXAMPLES: &str = "\
Example:
  verbena run … --net link=switch:/tmp/lab.sock --api-socket /tmp/a.sock &
  verbena rdma show --api-socket /tmp/a.sock

Counters that are zero are left out of the tables; --json has all of them.";

/// Look at RDMA devices of a running machine
#[derive(Debug, clap::Subcommand)]
pub(super) enum RdmaCommand {
    /// Show port, GIDs, objects, queue pairs, failures and counters
    #[command(after_help = RDMA_EXAMPLES)]
    Show(Show),
}

/// Look at network interfaces of a running machine
#[derive(Debug, clap::Subcommand)]
pub(super) enum NetCommand {
    /// Show links, addresses and counters
    Show(Show),
}

/// Which machine.
#[derive(Debug, clap::Args)]
pub(super) struct Socket {
    /// API socket of the machine [default: $VERBENA_API_SOCKET]
    #[arg(long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// Slot to show, by the id of its --net (net0, net1, …) [default: all]
    slot: Option<String>,

    #[command(flatten)]
    socket: Socket,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

impl RdmaCommand {
    pub(super) fn run(self) -> Result<Exit> {
        let Self::Show(show) = self;
        let report = show.socket.connect()?.rdma_show(show.slot.as_deref()).map_err(explain)?;
        show.print(&report, || tables::rdma(&report))
    }
}

impl NetCommand {
    pub(super) fn run(self) -> Result<Exit> {
        let Self::Show(show) = self;
        let mut slots = show.socket.connect()?.vm_info().map_err(explain)?.slots;
        if let Some(wanted) = &show.slot {
            slots.retain(|slot| slot.id == *wanted);
            if slots.is_empty() {
                return Err(Error::Usage(format!("There is no slot {wanted}")));
            }
        }
        show.print(&slots, || tables::net(&slots))
    }
}

impl Socket {
    pub(super) fn connect(&self) -> Result<Client> {
        let path = match &self.api_socket {
            Some(path) => path.clone(),
            None => std::env::var_os(VARIABLE).map(PathBuf::from).ok_or_else(|| {
                Error::Usage(format!("Which machine? Give --api-socket PATH, or set {VARIABLE}"))
            })?,
        };
        Client::connect(&path).map_err(explain)
    }
}

impl Show {
    fn print<T: serde::Serialize>(&self, value: &T, table: impl FnOnce() -> String) -> Result<Exit> {
        let text = if self.json {
            serde_json::to_string_pretty(value).map_err(|e| Error::Failure(e.to_string()))? + "\n"
        } else {
            table()
        };
        super::write_out(&text)
    }
}

pub(super) fn explain(error: ClientError) -> Error {
    match error {
        ClientError::Refused(error) if matches!(error.kind, ErrorKind::NoSuchSlot | ErrorKind::NoRdma) => {
            Error::Usage(error.message)
        }
        ClientError::Absent(_) | ClientError::Permission(_) | ClientError::Silent(_) => {
            Error::Resource(error.to_string())
        }
        ClientError::Io { path, source } => {
            Error::io(format!("talk to the machine at {}", path.display()), source)
        }
        ClientError::Refused(_) | ClientError::Foreign { .. } => Error::Failure(error.to_string()),
    }
}
