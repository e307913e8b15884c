//! The body of discover's completion.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::connect::NAME_SIZE;
use super::{Error, Name};

layout! {
    /// One device of a target.
    EntryLayout [264] {
        name: [u8; NAME_SIZE] = 0,
        device_id: U32 = 256,
        virtqueues: U16 = 260,
        reserved: U16 = 262,
    }
}

/// A device that a target exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// The name to connect to.
    pub name: Name,
    /// Virtio device id.
    pub device: u32,
    /// Virtqueues it has.
    pub virtqueues: u16,
}

impl Discovered {
    /// Most devices in one completion.
    pub const MOST: usize = 15;

    /// Parses the body of a completion.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with it.
    pub fn parse_all(body: &[u8]) -> Result<Vec<Self>, Error> {
        let entries = <[EntryLayout]>::ref_from_bytes(body).map_err(|_| Error::Length("list of devices"))?;
        let parse = |entry: &EntryLayout| {
            let name = Name::parse(&entry.name)?;
            Ok(Discovered { name, device: entry.device_id.get(), virtqueues: entry.virtqueues.get() })
        };
        entries.iter().map(parse).collect()
    }

    /// The bytes of one device.
    pub fn emit(&self) -> Vec<u8> {
        let layout = EntryLayout {
            name: self.name.emit(),
            device_id: self.device.into(),
            virtqueues: self.virtqueues.into(),
            reserved: 0.into(),
        };
        layout.as_bytes().to_vec()
    }
}
