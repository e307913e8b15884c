//! What a case is, and what it stands on.

use std::path::Path;

use anyhow::Result;

use crate::guests::{Guest, Guests, Nic, Options};
use crate::provider::Provider;
use crate::rdma::{DeviceError, End, RdmaDevice};
use crate::setup::Setup;

/// How a case that did not fail ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it is there for.
    Passed,
    /// It could not, for this reason, which is no fault of ours.
    Skipped(String),
}

/// The function of a case.
type Run = dyn Fn(&mut Stand<'_>) -> Result<Outcome>;
/// The function that describes the guests of a stage.
type Describe = dyn Fn(&Setup, &Path) -> Result<Options>;

/// A test.
pub struct Case {
    /// Its name, `topic/what-holds`.
    pub name: String,
    /// Runs it.
    pub run: Box<Run>,
}

impl Case {
    /// A case that passes unless it fails.
    pub fn new(name: impl Into<String>, run: impl Fn(&mut Stand<'_>) -> Result<()> + 'static) -> Self {
        Self { name: name.into(), run: Box::new(move |stand| run(stand).map(|()| Outcome::Passed)) }
    }

    /// A case that may find that it cannot run.
    pub fn may_skip(
        name: impl Into<String>,
        run: impl Fn(&mut Stand<'_>) -> Result<Outcome> + 'static,
    ) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// The same among the cases of another topic: `rdma/x` becomes `TOPIC/rdma-x`.
    pub fn under(self, topic: &str) -> Self {
        Self { name: format!("{topic}/{}", self.name.replace('/', "-")), ..self }
    }

    /// The same where it cannot run, for this reason.
    pub fn skipped(self, reason: &'static str) -> Self {
        Self::may_skip(self.name, move |_| Ok(Outcome::Skipped(reason.to_owned())))
    }
}

/// Cases that share one boot of the same guests, in order.
pub struct Stage {
    /// Its name, for messages.
    pub name: &'static str,
    /// What carries out the verbs of its guests.
    pub provider: Provider,
    /// What to boot; files that the guests need go to the directory. The error is why it cannot be booted.
    pub options: Box<Describe>,
    /// Why its cases are skipped in this run, if they are.
    pub why_not: fn(&Setup) -> Option<&'static str>,
    /// The cases.
    pub cases: Vec<Case>,
}

/// What a case stands on.
pub struct Stand<'a> {
    /// What was made for the run.
    pub setup: &'a Setup,
    /// The stage's guests.
    pub guests: &'a mut Guests,
    /// The stage's own files.
    pub scratch: &'a Path,
}

impl Stand<'_> {
    /// The first guest.
    pub fn a(&self) -> &Guest {
        self.guests.a()
    }

    /// The second guest.
    pub fn b(&self) -> &Guest {
        self.guests.b()
    }

    /// Where programs of a guest meet their peers by the address of a NIC.
    ///
    /// # Errors
    ///
    /// As [`End::at`].
    pub fn end(&self, guest: &Guest, nic: Nic) -> Result<End> {
        Ok(End::at(guest, guest.ip(nic).parse()?)?)
    }

    /// The RDMA device of a guest, looked up anew: it may have another name or other indices than before.
    ///
    /// # Errors
    ///
    /// As [`RdmaDevice::of`].
    pub fn device(&self, guest: &Guest) -> Result<RdmaDevice, DeviceError> {
        RdmaDevice::of(guest)
    }
}
