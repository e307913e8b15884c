//! Finding a verbs device and a GID by address. The index of a GID is the kernel's choice, so it is looked up.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// A row of a GID table of port 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidRow {
    /// Name of the device.
    pub device: String,
    /// Index in its table.
    pub index: u8,
    /// The GID.
    pub gid: Ipv6Addr,
}

/// All rows of all devices below `root`, which is `/sys/class/infiniband` but for tests.
pub fn rows(root: &Path) -> Vec<GidRow> {
    let names = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut found = Vec::new();
    for device in names(root) {
        let table = root.join(&device).join("ports/1/gids");
        for index in names(&table) {
            let gid = fs::read_to_string(table.join(&index)).ok().and_then(|text| text.trim().parse().ok());
            if let (Some(gid), Ok(index)) = (gid, index.parse()) {
                found.push(GidRow { device: device.clone(), index, gid });
            }
        }
    }
    found.retain(|row| !row.gid.is_unspecified());
    found.sort_by_key(|row| (row.device.clone(), row.index));
    found
}

/// The row of an address; an IPv4 address stands in the table as `::ffff:a.b.c.d`.
pub fn find(rows: &[GidRow], address: IpAddr) -> Option<&GidRow> {
    let wanted = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    rows.iter().find(|row| row.gid == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_address_and_empty_ones_are_left_out() {
        let root = std::env::temp_dir().join(format!("verify-gids-{}", std::process::id()));
        let table = root.join("rocep0s3f1/ports/1/gids");
        fs::create_dir_all(&table).unwrap();
        fs::write(table.join("0"), "0000:0000:0000:0000:0000:0000:0000:0000\n").unwrap();
        fs::write(table.join("3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n").unwrap();
        let rows = rows(&root);
        fs::remove_dir_all(&root).unwrap();
        let found = find(&rows, "10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!((found.device.as_str(), found.index), ("rocep0s3f1", 3));
        assert_eq!(rows.len(), 1);
        assert_eq!(find(&rows, "10.0.0.2".parse().unwrap()), None);
    }
}
