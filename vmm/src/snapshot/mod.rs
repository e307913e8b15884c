//! Snapshots: a paused machine as files in a directory.
//!
//! | file | what it holds |
//! |---|---|
//! | `memory` | guest RAM in the order of its addresses, without the holes between; what is zero takes no room |
//! | `state` | everything else: magic, version, length and checksum, then the records of all devices; written last |
//! | `restored` | made when the snapshot is restored for the first time |
//!
//! # Trust
//!
//! A snapshot may come from anywhere. It is checked before it is used, and what it says is checked by each device that
//! it is restored into.

mod memory;
mod state;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use device_model::ram::Ram;
use device_model::save::{Record, Records, Saved};
use serde::{Deserialize, Serialize};

use crate::config::RestoreConfig;
use crate::error::{Error, Result};
use crate::machine::Controls;

const MEMORY: &str = "memory";
const STATE: &str = "state";
const RESTORED: &str = "restored";
/// Name of the record about the snapshot itself.
const ABOUT: &str = "snapshot";

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Whether the machine went on after it was saved.
    pub origin_goes_on: bool,
    /// RDMA connections that were up.
    pub connections: u64,
}

impl Saved for About {
    const KIND: &'static str = "snapshot";
    const VERSION: u16 = 1;
}

/// Saves a paused machine in `directory`, which is made if need be.
///
/// # Errors
///
/// When the machine cannot be saved, the directory holds a snapshot already, or there is no room.
pub fn save(controls: &Controls, directory: &Path, about: About) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    let path = directory.join(STATE);
    if path.exists() {
        return Err(Error::Usage(format!(
            "{} holds a snapshot already: choose another",
            directory.display()
        )));
    }
    let mut records = controls.save()?;
    let record = Record::new(&about).map_err(|e| Error::Failure(e.to_string()))?;
    records.put(ABOUT, record);
    memory::write(&directory.join(MEMORY), controls.vm().ram())?;
    state::write(&path, &records)
}

/// Fills `ram` and gives the rest of what was saved.
///
/// # Errors
///
/// When there is no snapshot, it is damaged or of another size, or its connections may be in use elsewhere.
pub fn load(config: &RestoreConfig, ram: &Ram) -> Result<Records> {
    let mut records = state::read(&config.from.join(STATE))?;
    let about: About = records
        .take(ABOUT)
        .and_then(|record| record.open())
        .map_err(|e| Error::Failure(format!("{} cannot be restored: {e}", config.from.display())))?;
    let first = mark_restored(&config.from)?;
    check_connections(about, first, config)?;
    memory::read(&config.from.join(MEMORY), ram)?;
    Ok(records)
}

/// Refuses a copy that would send in the name of connections which another machine may be using.
fn check_connections(about: About, first: bool, config: &RestoreConfig) -> Result<()> {
    let why = match (about.connections, about.origin_goes_on, first) {
        (0, ..) | (_, false, true) => return Ok(()),
        (_, true, _) => "the machine went on after it was saved",
        (_, false, false) => "it was restored before",
    };
    if config.take_over {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} holds {} live RDMA connections, and {why}: two machines would answer for them. Make sure that the other one \
         is gone and give --take-over, or take the snapshot with --stop",
        config.from.display(),
        about.connections
    )))
}

/// Notes that the snapshot is being restored; `true` for the first time.
fn mark_restored(directory: &Path) -> Result<bool> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(RESTORED));
    match made {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        // A snapshot that cannot be written to cannot say how often it was restored.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => Ok(false),
        Err(error) => Err(Error::io(format!("note in {} that it is restored", directory.display()), error)),
    }
}
