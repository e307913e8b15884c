//! Moving a running machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where to move a machine, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// Where `verbena receive` listens: `unix:PATH`, an absolute path, or `tcp:HOST:PORT`.
    pub to: String,
    /// How long the machine may stand still, in milliseconds.
    #[serde(default = "downtime_limit")]
    pub downtime_limit_ms: u64,
    /// Seconds after which it stays where it is; without end if there are none.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Connections for memory.
    #[serde(default = "connections")]
    pub connections: u8,
    /// Whether it is held back when it writes to memory faster than that is copied.
    #[serde(default = "yes")]
    pub auto_converge: bool,
    /// Whether memory is copied even to a process of this host, which could just take it over.
    #[serde(default)]
    pub copy: bool,
    /// Files for TLS, if it is to be spoken.
    #[serde(default)]
    pub tls: Option<TlsFiles>,
}

/// PEM files of the host that the machine runs on, by absolute paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate to show.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificate of the authority that signs the other end's.
    pub ca: PathBuf,
    /// Name or address in the other end's certificate, if it is not what is dialled.
    #[serde(default)]
    pub name: Option<String>,
}

const fn downtime_limit() -> u64 {
    30
}

const fn connections() -> u8 {
    2
}

const fn yes() -> bool {
    true
}

impl Migrate {
    /// To move a machine there, and all else as usual.
    pub fn to(to: impl Into<String>) -> Self {
        Self {
            to: to.into(),
            downtime_limit_ms: downtime_limit(),
            timeout_s: None,
            connections: connections(),
            auto_converge: true,
            copy: false,
            tls: None,
        }
    }
}

/// One end of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Where the machine was.
    Source,
    /// Where it goes.
    Target,
}

/// Who is to have a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// This end.
    pub side: Side,
}

/// Where a migration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// There was none.
    #[default]
    None,
    /// The target is asked, or the source waited for.
    Connecting,
    /// Memory is copied, and the machine runs.
    Copying,
    /// The machine stands still.
    Stopped,
    /// Nobody can know whether the machine runs at the target: the source asks again, or the operator decides.
    Undecided,
    /// The machine runs at the target.
    Completed,
    /// The machine is where it was.
    Failed,
    /// A phase that this client is too old to know.
    #[serde(other)]
    Other,
}

/// How a migration is going.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigrationStatus {
    /// Where it is.
    pub phase: MigrationPhase,
    /// Rounds over memory that have begun.
    pub rounds: u32,
    /// Bytes of memory the machine has.
    pub memory_bytes: u64,
    /// Bytes sent for memory so far.
    pub sent_bytes: u64,
    /// Bytes of memory that have yet to be copied.
    pub remaining_bytes: u64,
    /// Bytes sent a second in the last round.
    pub sent_per_s: u64,
    /// Bytes of memory a second that the machine wrote to in the last round.
    pub dirtied_per_s: u64,
    /// How long it would stand still if it were stopped now, in microseconds.
    pub expected_downtime_us: u64,
    /// For how much of its time it is held back, in percent.
    pub held_back_percent: u8,
    /// How long it stood still, in microseconds: from its stop until the target was heard to run it.
    pub downtime_us: Option<u64>,
    /// How long all of it took, in microseconds.
    pub total_us: Option<u64>,
    /// Why it failed, or what is not decided.
    pub reason: Option<String>,
}
