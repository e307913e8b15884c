//! The RDMA device of a guest, found rather than assumed.
//!
//! rdma-core renames devices by where they sit on the bus, and the guest's kernel picks the GID indices, so both are
//! looked up: the device by listing, a GID by its value.

use std::thread;
use std::time::{Duration, Instant};

use crate::guests::{Guest, GuestError};

/// How long GIDs may take to appear after a link came up.
const GIDS_TIMEOUT: Duration = Duration::from_secs(60);
/// Prints every non-empty row of every GID table as PATH:GID.
const LIST_GIDS: &str = "cd /sys/class/infiniband && grep -Hv '^0000:0000:0000:0000:0000:0000:0000:0000$' \
                         */ports/1/gids/* 2>/dev/null; true";

/// What a GID is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// The NIC's IPv6 link-local address.
    LinkLocal,
    /// The NIC's IPv4 address, mapped.
    Ipv4,
}

/// Why a guest's RDMA device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The guest did not do as asked.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// No device has a GID of that value.
    #[error("Guest {guest} has no RDMA device with the GID {gid}; its GID tables are:\n{tables}")]
    NoGid {
        /// Name of the guest.
        guest: char,
        /// The GID, as the kernel writes it.
        gid: String,
        /// What there is, one `device/…/index:gid` a line.
        tables: String,
    },
}

/// The RDMA device beside a guest's first NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name in the guest.
    pub name: String,
    /// GID index of the link-local GID.
    pub link_local: u32,
    /// GID index of the IPv4-mapped GID.
    pub ipv4: u32,
}

impl RdmaDevice {
    /// Looks for the device that has both GIDs of the guest's first NIC, and gives the rows time to appear.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoGid`] with the tables as they are, or a guest that does not answer.
    pub fn of(guest: &Guest) -> Result<Self, DeviceError> {
        let wanted = [guest.address().ipv4_gid(0), guest.address().link_local_gid(0)];
        let deadline = Instant::now() + GIDS_TIMEOUT;
        loop {
            let tables = guest.must(LIST_GIDS)?;
            let rows: Vec<Row> = tables.lines().filter_map(Row::parse).collect();
            match wanted.each_ref().map(|gid| rows.iter().find(|row| row.gid == *gid)) {
                [Some(ipv4), Some(link_local)] => {
                    let name = ipv4.device.to_string();
                    return Ok(Self { name, link_local: link_local.index, ipv4: ipv4.index });
                }
                [ipv4, _] if Instant::now() >= deadline => {
                    let gid = wanted[usize::from(ipv4.is_some())].clone();
                    return Err(DeviceError::NoGid { guest: guest.name(), gid, tables });
                }
                _ => thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    /// Index of a GID in its table.
    pub fn gid(&self, kind: GidKind) -> u32 {
        match kind {
            GidKind::LinkLocal => self.link_local,
            GidKind::Ipv4 => self.ipv4,
        }
    }
}

/// One row of a GID table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    device: &'a str,
    index: u32,
    gid: &'a str,
}

impl<'a> Row<'a> {
    /// Reads `rocep0s3f1/ports/1/gids/0:fe80:…`.
    fn parse(line: &'a str) -> Option<Self> {
        let (path, gid) = line.split_once(':')?;
        let (device, rest) = path.split_once('/')?;
        let index = rest.rsplit('/').next()?.parse().ok()?;
        Some(Self { device, index, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_the_listing_gives_device_index_and_gid() {
        let line = "rocep0s3f1/ports/1/gids/12:0000:0000:0000:0000:0000:ffff:0a00:0001";
        let gid = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        assert_eq!(Row::parse(line), Some(Row { device: "rocep0s3f1", index: 12, gid }));
        assert_eq!(Row::parse("grep: x: Invalid argument"), None);
        assert_eq!(Row::parse(""), None);
    }
}
