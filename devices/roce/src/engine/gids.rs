//! Own addresses.

use verbs::{Error, Gid};

/// The GID table.
///
/// An address may stand in several rows, as a guest does it that has the same link-local address on several VLANs: each
/// row stands for itself, and the address is the device's own until the last of them is gone.
#[derive(Debug)]
pub(crate) struct GidTable {
    /// By row; empty rows are zero.
    rows: Vec<Gid>,
    /// Those that are not empty, since every packet asks whether an address is among them.
    own: Vec<Gid>,
}

impl GidTable {
    pub(crate) fn new(rows: u16) -> Self {
        Self { rows: vec![Gid::default(); usize::from(rows)], own: Vec::new() }
    }

    pub(crate) fn get(&self, row: u8) -> Option<Gid> {
        self.rows.get(usize::from(row)).copied().filter(|gid| !gid.is_zero())
    }

    /// Rows that are not empty.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u16, Gid)> {
        (0..).zip(self.rows.iter().copied()).filter(|(_, gid)| !gid.is_zero())
    }

    pub(crate) fn contains(&self, gid: &Gid) -> bool {
        self.own.contains(gid)
    }

    pub(crate) fn set(&mut self, row: u16, gid: Gid) -> Result<(), Error> {
        let place = self.rows.get_mut(usize::from(row));
        *place.ok_or(Error::Invalid("GID index is beyond the table"))? = gid;
        self.own = self.rows.iter().copied().filter(|gid| !gid.is_zero()).collect();
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.rows.fill(Gid::default());
        self.own.clear();
    }
}
