//! RDMA objects that exist, as the guest's kernel and its monitor count them: what a program used is gone with it.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::inspect::show;
use crate::guests::Guest;
use crate::suite::Stand;

/// How long the kernel may take to clean up: connections that were closed last linger in it.
const SETTLE: Duration = Duration::from_secs(90);

/// Objects of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// What `rdma resource` says, a line a device.
    guest: String,
    /// What the monitor says, by kind.
    monitor: BTreeMap<String, u64>,
}

impl Objects {
    /// The objects of a guest.
    pub fn of(stand: &Stand<'_>, guest: &Guest) -> Result<Self> {
        let counts = guest.must("rdma resource show")?;
        let device = show(stand, guest)?;
        let monitor = device.objects.into_iter().map(|object| (object.kind, object.used)).collect();
        Ok(Self { guest: counts, monitor })
    }

    /// The objects of every guest of a stage.
    pub fn of_all(stand: &Stand<'_>) -> Result<All> {
        stand.guests.all().iter().map(|guest| Self::of(stand, guest)).collect::<Result<_>>().map(All)
    }
}

/// Objects of all guests.
#[derive(Debug, PartialEq, Eq)]
pub struct All(Vec<Objects>);

impl All {
    /// Makes sure that soon there are these objects and no others.
    pub fn are_all(&self, stand: &Stand<'_>) -> Result<()> {
        let deadline = Instant::now() + SETTLE;
        loop {
            let now = Objects::of_all(stand).context("The objects cannot be counted")?;
            if now == *self {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "Objects went from {self:?} to {now:?}");
            thread::sleep(Duration::from_secs(1));
        }
    }
}
