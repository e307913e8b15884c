//! `verbena migrate` and `verbena receive`

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::ArgAction;
use host_io::tls::Files;
use vmm_api::{Client, ClientError, MigrationPhase, MigrationStatus, Side, TlsFiles};

use super::inspect::{Socket, explain};
use crate::config::RunOptions;
use crate::config::key_value::parse;
use crate::config::values::parse_on_off;
use crate::error::{EXIT_STATUS_HELP, Error, Exit, Result};
use crate::migrate::Address;
use crate::session;

const EXAMPLES: &str = "\
Example:
  verbena run --kernel vmlinuz … --api-socket /tmp/a.sock &

  On one host, where memory is handed over and not copied:
    verbena receive --listen unix:/tmp/move.sock --kernel vmlinuz … --api-socket /tmp/b.sock &
    verbena migrate --api-socket /tmp/a.sock --to unix:/tmp/move.sock

  To another host:
    verbena receive --listen tcp:0.0.0.0:4000 …            (there)
    verbena migrate --api-socket /tmp/a.sock --to tcp:THERE:4000
  and over a network that others are on, at both ends:
    --tls cert=host.pem,key=host.key,ca=ca.pem

The process that had the machine ends with status 0 when it runs there. When anything fails the machine goes on where it
was, and this command ends with status 1. docs/migration.md has the details.";

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Move a running machine to another process or host, where `verbena receive` waits for it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Migrate {
    #[command(flatten)]
    socket: Socket,

    /// Where `verbena receive` listens: unix:PATH or tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["cancel", "resolve", "status"])]
    to: Option<Address>,

    /// How long the machine may stand still, in milliseconds; memory is copied again until what is left takes no longer
    #[arg(long, value_name = "MS", default_value_t = 30)]
    downtime_limit: u64,

    /// Seconds after which the machine stays where it is [default: none]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Speak TLS with tcp:HOST:PORT: cert=FILE,key=FILE,ca=FILE[,name=NAME]; both ends show certificates. NAME is what
    /// the other end's certificate says, if it is not HOST
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<Files>)]
    tls: Option<Files>,

    /// Connections for memory
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    connections: u8,

    /// Hold the machine back, its RDMA device and peers included, when it writes to memory faster than that is copied
    #[arg(long, value_name = "on|off", value_parser = parse_on_off, default_value = "on", action = ArgAction::Set)]
    auto_converge: bool,

    /// Copy memory even to a process of this host
    #[arg(long)]
    copy: bool,

    /// Return at once; --status tells how it goes
    #[arg(long)]
    detach: bool,

    /// Give up a migration: the machine stays where it is
    #[arg(long, conflicts_with_all = ["to", "resolve", "status"])]
    cancel: bool,

    /// Say which end has the machine, if the connection was lost when neither could know
    #[arg(long, value_name = "source|target", value_parser = parse_side, conflicts_with_all = ["to", "status"])]
    resolve: Option<Side>,

    /// Print how the migration goes or went, as JSON
    #[arg(long, conflicts_with = "to")]
    status: bool,
}

/// Receive a machine that `verbena migrate` moves, and run it
///
/// All options must be as those the machine runs with, but for --kernel and --initramfs, which are used only should the
/// guest reboot, and for what belongs to this process: --api-socket and what serial ports are connected to.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS_HELP)]
pub(super) struct Receive {
    /// Where to wait: unix:PATH or tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,

    /// Speak TLS, and only with who has a certificate of the authority: cert=FILE,key=FILE,ca=FILE
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<Files>)]
    tls: Option<Files>,

    /// Configuration file, as for `verbena run`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: RunOptions,
}

impl Receive {
    pub(super) fn run(self) -> Result<Exit> {
        let options = match &self.config {
            Some(path) => self.options.over(RunOptions::from_file(path)?),
            None => self.options,
        };
        session::receive(&options.resolve_received()?, &self.listen, self.tls.as_ref())
    }
}

impl Migrate {
    pub(super) fn run(self) -> Result<Exit> {
        let mut client = self.socket.connect()?;
        if self.status {
            let status = client.migration_status().map_err(explain)?;
            let text = serde_json::to_string_pretty(&status).map_err(|e| Error::Failure(e.to_string()))?;
            return super::write_out(&(text + "\n"));
        }
        if self.cancel {
            client.cancel_migration().map_err(explain)?;
            return Ok(Exit::PoweredOff);
        }
        if let Some(side) = self.resolve {
            client.resolve_migration(side).map_err(explain)?;
            return Ok(Exit::PoweredOff);
        }
        self.begin(&mut client)?;
        if self.detach { Ok(Exit::PoweredOff) } else { follow(&mut client) }
    }

    fn begin(&self, client: &mut Client) -> Result<()> {
        let to = match &self.to {
            Some(Address::Unix(path)) => Address::Unix(absolute(path)?),
            Some(address) => address.clone(),
            None => return Err(Error::Usage("Give --to ADDRESS".to_owned())),
        };
        let how = vmm_api::Migrate {
            downtime_limit_ms: self.downtime_limit,
            timeout_s: self.timeout,
            connections: self.connections,
            auto_converge: self.auto_converge,
            copy: self.copy,
            tls: self.tls.as_ref().map(there).transpose()?,
            ..vmm_api::Migrate::to(to.to_string())
        };
        client.migrate(how).map_err(explain)
    }
}

/// The machine's working directory need not be this one.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("find a file", e))
}

/// The files as the machine's process finds them.
fn there(files: &Files) -> Result<TlsFiles> {
    let Files { cert, key, ca, name } = files;
    Ok(TlsFiles { cert: absolute(cert)?, key: absolute(key)?, ca: absolute(ca)?, name: name.clone() })
}

/// Shows how a migration goes until it is over.
fn follow(client: &mut Client) -> Result<Exit> {
    let mut shown = String::new();
    loop {
        let status = match client.migration_status() {
            Ok(status) => status,
            // It may have ended before it could be asked once more.
            Err(error @ (ClientError::Io { .. } | ClientError::Foreign { .. })) => {
                let error = explain(error).chain();
                return Err(Error::Failure(format!("The machine ended while it was being moved ({error})")));
            }
            Err(error) => return Err(explain(error)),
        };
        let line = describe(&status);
        if line != shown {
            eprintln!("{line}");
            shown = line;
        }
        match status.phase {
            MigrationPhase::Completed => return Ok(Exit::PoweredOff),
            MigrationPhase::Undecided => return Ok(Exit::Undecided),
            MigrationPhase::Failed | MigrationPhase::None => return Ok(Exit::Failure),
            _ => thread::sleep(LOOK),
        }
    }
}

/// A migration in one line.
fn describe(status: &MigrationStatus) -> String {
    let reason = || status.reason.clone().unwrap_or_default();
    match status.phase {
        MigrationPhase::None => "There is no migration".to_owned(),
        MigrationPhase::Connecting => "connecting".to_owned(),
        MigrationPhase::Copying => copying(status),
        MigrationPhase::Stopped => "the machine stands still".to_owned(),
        MigrationPhase::Undecided => format!("UNDECIDED: {}", reason()),
        MigrationPhase::Failed => format!("failed, the machine goes on here: {}", reason()),
        MigrationPhase::Completed => format!(
            "moved in {}, {} of it standing still; {} rounds, {} sent",
            millis(status.total_us.unwrap_or(0)),
            millis(status.downtime_us.unwrap_or(0)),
            status.rounds,
            mib(status.sent_bytes)
        ),
        MigrationPhase::Other => "under way".to_owned(),
    }
}

fn copying(status: &MigrationStatus) -> String {
    let mut line = format!("round {}: {} to go", status.rounds, mib(status.remaining_bytes));
    if status.rounds > 1 {
        line += &format!(
            ", {}/s sent, {}/s written to, would stand still for {}",
            mib(status.sent_per_s),
            mib(status.dirtied_per_s),
            millis(status.expected_downtime_us)
        );
    }
    if status.held_back_percent > 0 {
        line += &format!(", held back for {} % of its time", status.held_back_percent);
    }
    line
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}

fn parse_side(text: &str) -> Result<Side, String> {
    match text {
        "source" => Ok(Side::Source),
        "target" => Ok(Side::Target),
        _ => Err("give source or target".to_owned()),
    }
}
