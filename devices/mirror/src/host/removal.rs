//! Notices that a device is being taken away.
//!
//! A driver that can part from its users says so by an event of the device. One that cannot (`rdma_rxe`) says nothing, and
//! whoever removes the device waits until all have closed it. The file by which users open the device goes at once with
//! either, and the kernel announces that on a socket.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{Socket, SocketAddr};

/// The group to which the kernel sends announcements; that of udev is another one.
const FROM_KERNEL: u32 = 1;
/// Announcements read at once.
const BATCH: usize = 64;

/// Watches over the device file of one device.
pub(super) struct Removal {
    announcements: Socket,
    entry: PathBuf,
    inode: u64,
}

impl Removal {
    /// Of the device with the file of that name, `uverbs0` or the like.
    pub(super) fn of(file: &str) -> io::Result<Self> {
        Self::of_entry(Path::new("/sys/class/infiniband_verbs").join(file))
    }

    fn of_entry(entry: PathBuf) -> io::Result<Self> {
        let mut announcements = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        announcements.set_non_blocking(true)?;
        // Before the entry is looked up, so that nothing is missed in between.
        announcements.bind(&SocketAddr::new(0, FROM_KERNEL))?;
        let inode = fs::metadata(&entry)?.ino();
        Ok(Self { announcements, entry, inode })
    }

    /// Reads what has been announced. Returns whether there may be more.
    pub(super) fn read(&self) -> bool {
        // What they say does not matter, and some may be lost: they are the occasion to look.
        let mut byte = [0; 1];
        (0..BATCH).all(|_| self.announcements.recv(&mut &mut byte[..], 0).is_ok())
    }

    /// Whether the device is gone, or another one has its name.
    pub(super) fn has_come(&self) -> bool {
        !fs::metadata(&self.entry).is_ok_and(|entry| entry.ino() == self.inode)
    }
}

impl AsFd for Removal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.announcements.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_goes_or_is_another_ones_is_missed() {
        let directory = tempfile::tempdir().unwrap();
        let [entry, other] = ["uverbs0", "uverbs1"].map(|name| directory.path().join(name));
        fs::write(&entry, "").unwrap();
        let removal = Removal::of_entry(entry.clone()).unwrap();
        assert!(!removal.has_come());
        // Made while the first one is there, so it has another number.
        fs::write(&other, "").unwrap();
        fs::rename(&other, &entry).unwrap();
        assert!(removal.has_come());
        fs::remove_file(&entry).unwrap();
        assert!(removal.has_come());
        assert!(Removal::of_entry(entry).is_err());
    }
}
