//! The RDMA device of a guest, found rather than assumed.
//!
//! rdma-core renames devices by where they sit on the bus, and the guest's kernel picks the GID indices, so both are
//! looked up: the device by listing, a GID by its value.

use std::net::IpAddr;
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
        let [ipv4, link_local] = rows_of(guest, wanted)?;
        Ok(Self { name: ipv4.device, link_local: link_local.index, ipv4: ipv4.index })
    }

    /// Index of a GID in its table.
    pub fn gid(&self, kind: GidKind) -> u32 {
        match kind {
            GidKind::LinkLocal => self.link_local,
            GidKind::Ipv4 => self.ipv4,
        }
    }
}

/// Where a program meets its peer: a device, one of its GIDs, and the address that this GID stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Name of the device in its guest.
    pub device: String,
    /// Index of the GID.
    pub gid: u32,
    /// The address.
    pub address: String,
}

impl End {
    /// The device of a guest that has the GID of an address, which may take its time to appear.
    ///
    /// # Errors
    ///
    /// As [`RdmaDevice::of`].
    pub fn at(guest: &Guest, address: IpAddr) -> Result<Self, DeviceError> {
        let gid = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let written = gid.segments().map(|group| format!("{group:04x}")).join(":");
        let [row] = rows_of(guest, [written])?;
        Ok(Self { device: row.device, gid: row.index, address: address.to_string() })
    }
}

/// The rows of the given GIDs, once all are there.
fn rows_of<const N: usize>(guest: &Guest, wanted: [String; N]) -> Result<[Row; N], DeviceError> {
    let deadline = Instant::now() + GIDS_TIMEOUT;
    loop {
        let tables = guest.must(LIST_GIDS)?;
        let rows: Vec<Row> = tables.lines().filter_map(Row::parse).collect();
        let find = |gid: &String| rows.iter().find(|row| row.gid == *gid);
        match wanted.iter().find(|gid| find(gid).is_none()) {
            Some(gid) if Instant::now() >= deadline => {
                return Err(DeviceError::NoGid { guest: guest.name(), gid: gid.clone(), tables });
            }
            Some(_) => thread::sleep(Duration::from_millis(500)),
            None => {
                let found: Vec<Row> = wanted.iter().filter_map(find).cloned().collect();
                return Ok(found.try_into().expect("there is a row for each"));
            }
        }
    }
}

/// One row of a GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    device: String,
    index: u32,
    gid: String,
}

impl Row {
    /// Reads `rocep0s3f1/ports/1/gids/0:fe80:…`.
    fn parse(line: &str) -> Option<Self> {
        let (path, gid) = line.split_once(':')?;
        let (device, rest) = path.split_once('/')?;
        let index = rest.rsplit('/').next()?.parse().ok()?;
        Some(Self { device: device.into(), index, gid: gid.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_the_listing_gives_device_index_and_gid() {
        let line = "rocep0s3f1/ports/1/gids/12:0000:0000:0000:0000:0000:ffff:0a00:0001";
        let gid = "0000:0000:0000:0000:0000:ffff:0a00:0001".into();
        assert_eq!(Row::parse(line), Some(Row { device: "rocep0s3f1".into(), index: 12, gid }));
        assert_eq!(Row::parse("grep: x: Invalid argument"), None);
        assert_eq!(Row::parse(""), None);
    }
}
