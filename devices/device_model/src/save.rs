//! Saving and restoring the state of devices.
//!
//! What is saved is plain data of its own, one type for each kind of device: it implements [`Saved`], which gives it a name
//! and a version. A [`Record`] holds one such state as bytes with both in front, so that a reader knows what it has before
//! it looks inside. [`Records`] holds those of a whole machine, each under the name of the device it belongs to.
//!
//! A device saves while nothing makes use of it, and restores into a device that was just made from the same configuration.
//!
//! # Trust
//!
//! A record may come from anywhere. Its body is decoded without trust in any length in it; what it says is checked by who
//! restores it, and refused with a [`RestoreError`] if it could not have been saved. Unknown kinds and versions, bytes that
//! are left over and records that nobody asks for are refused.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest saved state of one device in bytes.
const MAX_BODY: usize = 1 << 30;

/// The saved state of one kind of device.
pub trait Saved: Serialize + DeserializeOwned {
    /// What it is the state of.
    const KIND: &'static str;
    /// Version of its layout. It changes with every change of the layout.
    const VERSION: u16;
}

/// A device that cannot be saved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// For a reason of its own.
    #[error("Cannot be saved: {0}")]
    Unsupported(String),
    /// Its state takes more room than anybody would read.
    #[error("State of {0} is too large to be saved")]
    TooLarge(&'static str),
}

/// A saved state that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Of another kind of device.
    #[error(
        "Saved state is of {found:?}, but {wanted:?} was expected: use the same configuration as at the source"
    )]
    Kind {
        /// What was saved.
        found: String,
        /// What is to be restored.
        wanted: &'static str,
    },
    /// Of a version that this program does not know.
    #[error(
        "Saved state of {kind} has version {found}, but only {known} is known: use the program that saved it, or a later one"
    )]
    Version {
        /// Kind of device.
        kind: &'static str,
        /// The version that was saved.
        found: u16,
        /// The version that can be restored.
        known: u16,
    },
    /// Its bytes make no sense.
    #[error("Saved state of {0} is damaged")]
    Malformed(&'static str),
    /// It says what cannot be.
    #[error("Saved state of {kind} is not valid: {why}")]
    Invalid {
        /// Kind of device.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A device whose state was not saved.
    #[error("No state was saved for {0}: use the same configuration as at the source")]
    Missing(String),
    /// A state that was saved of a device that does not exist.
    #[error(
        "State was saved for {0}, which this machine does not have: use the same configuration as at the source"
    )]
    Leftover(String),
    /// A device that cannot be restored.
    #[error("Cannot be restored: {0}")]
    Unsupported(String),
}

impl RestoreError {
    /// A state of kind `S` that says what cannot be.
    pub fn invalid<S: Saved>(why: impl fmt::Display) -> Self {
        Self::Invalid { kind: S::KIND, why: why.to_string() }
    }
}

/// One saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    kind: String,
    version: u16,
    body: Vec<u8>,
}

impl Record {
    /// Encodes a state.
    ///
    /// # Errors
    ///
    /// [`SaveError::TooLarge`] beyond 1 GiB.
    pub fn new<S: Saved>(state: &S) -> Result<Self, SaveError> {
        let body = postcard::to_allocvec(state).map_err(|_| SaveError::TooLarge(S::KIND))?;
        if body.len() > MAX_BODY {
            return Err(SaveError::TooLarge(S::KIND));
        }
        Ok(Self { kind: S::KIND.to_owned(), version: S::VERSION, body })
    }

    /// Decodes the state.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Kind`], [`RestoreError::Version`], and [`RestoreError::Malformed`] also for bytes left over.
    pub fn open<S: Saved>(&self) -> Result<S, RestoreError> {
        if self.kind != S::KIND {
            return Err(RestoreError::Kind { found: self.kind.clone(), wanted: S::KIND });
        }
        if self.version != S::VERSION {
            return Err(RestoreError::Version { kind: S::KIND, found: self.version, known: S::VERSION });
        }
        match postcard::take_from_bytes(&self.body) {
            Ok((state, [])) => Ok(state),
            _ => Err(RestoreError::Malformed(S::KIND)),
        }
    }

    /// Bytes of the state.
    pub const fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether the state has no bytes, as that of a device without state.
    pub const fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}

/// Saved states by the names of what they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records(BTreeMap<String, Record>);

impl Records {
    /// Adds a state. One that is there already under this name is replaced.
    pub fn put(&mut self, name: impl Into<String>, record: Record) {
        self.0.insert(name.into(), record);
    }

    /// Takes a state out.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Missing`] when there is none under this name.
    pub fn take(&mut self, name: &str) -> Result<Record, RestoreError> {
        self.0.remove(name).ok_or_else(|| RestoreError::Missing(name.to_owned()))
    }

    /// Makes sure that every state has been taken.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Leftover`] names one that was not.
    pub fn finish(self) -> Result<(), RestoreError> {
        match self.0.into_keys().next() {
            Some(name) => Err(RestoreError::Leftover(name)),
            None => Ok(()),
        }
    }

    /// Names and bytes of the states.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(name, record)| (name.as_str(), record.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Lamp {
        lit: bool,
        hours: Vec<u32>,
    }

    impl Saved for Lamp {
        const KIND: &'static str = "lamp";
        const VERSION: u16 = 3;
    }

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct OldLamp;

    impl Saved for OldLamp {
        const KIND: &'static str = "lamp";
        const VERSION: u16 = 2;
    }

    fn lamp() -> Lamp {
        Lamp { lit: true, hours: vec![1, 300] }
    }

    #[test]
    fn state_comes_back_as_it_was() {
        let record = Record::new(&lamp()).unwrap();
        assert_eq!(record.open(), Ok(lamp()));
        assert_eq!(record.len(), 5);
    }

    #[test]
    fn other_kinds_and_versions_are_refused() {
        let record = Record::new(&lamp()).unwrap();
        let version = RestoreError::Version { kind: "lamp", found: 3, known: 2 };
        assert_eq!(record.open::<OldLamp>(), Err(version));
        let stranger = Record { kind: "bulb".into(), ..record };
        assert!(matches!(stranger.open::<Lamp>(), Err(RestoreError::Kind { .. })));
    }

    #[test]
    fn bytes_missing_or_left_over_are_refused() {
        let record = Record::new(&lamp()).unwrap();
        let cut = Record { body: record.body[..4].to_vec(), ..record.clone() };
        assert_eq!(cut.open::<Lamp>(), Err(RestoreError::Malformed("lamp")));
        let mut long = record;
        long.body.push(0);
        assert_eq!(long.open::<Lamp>(), Err(RestoreError::Malformed("lamp")));
    }

    #[test]
    fn length_that_no_body_can_have_costs_no_memory() {
        let body = vec![1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        let record = Record { body, ..Record::new(&lamp()).unwrap() };
        assert_eq!(record.open::<Lamp>(), Err(RestoreError::Malformed("lamp")));
    }

    #[test]
    fn records_that_are_missing_or_not_asked_for_are_refused() {
        let mut records = Records::default();
        records.put("hall", Record::new(&lamp()).unwrap());
        assert_eq!(records.take("cellar"), Err(RestoreError::Missing("cellar".into())));
        assert_eq!(records.clone().finish(), Err(RestoreError::Leftover("hall".into())));
        assert!(records.take("hall").is_ok());
        assert_eq!(records.finish(), Ok(()));
    }
}
