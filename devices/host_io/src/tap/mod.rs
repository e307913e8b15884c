//! A tap interface of the host as a port.
//!
//! Needs CAP_NET_ADMIN, or an interface made beforehand for the user who runs the machine. The interface's addresses,
//! MTU, bridge and state are the administrator's and are never changed here.

mod ioctl;

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use device_model::net::Link;
use rustix::fs::OFlags;
use rustix::io::{Errno, readv, writev};

use crate::frame;

const DEVICE: &str = "/dev/net/tun";
/// Flags of `/sys/class/net/NAME/flags` (linux/if.h): the administrator has set the interface up.
const IFF_UP: u32 = 1;
/// Frames skipped in one call of `recv`, at most.
const MAX_SKIPPED: usize = 64;

/// Why a tap interface could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel has no tap driver, or the container no device node.
    #[error(
        "{DEVICE} does not exist: load the module with `modprobe tun`, or give the container `--device {DEVICE}`"
    )]
    NoDevice,
    /// The device node is not open to this user.
    #[error("No permission to open {DEVICE}: run as root or make it accessible to this user")]
    Device,
    /// Neither the privilege to make an interface nor one that is ours.
    #[error(
        "No permission to use tap interface {0}: run with CAP_NET_ADMIN, or make it once as root with `ip tuntap add dev {0} mode tap user USER`"
    )]
    Permission(String),
    /// Another process has it.
    #[error("Tap interface {0} is in use by another process")]
    Busy(String),
    /// It exists and is something else.
    #[error("Interface {0} is not a single-queue tap interface: choose another name")]
    NotTap(String),
    /// The port would send what the interface does not carry.
    #[error(
        "Port MTU {port} is larger than the {interface} of {name}: lower it, or run `ip link set {name} mtu {port}`"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Asked for.
        port: u16,
        /// Carried by the interface.
        interface: u16,
    },
    /// The operating system refused.
    #[error("Cannot {action} tap interface {name}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The interface.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A link to a tap interface.
#[derive(Debug)]
pub struct TapLink {
    file: File,
    mtu: u16,
}

impl TapLink {
    /// Attaches to the interface `name`, which is made if it does not exist and this process may.
    ///
    /// # Errors
    ///
    /// [`TapError`] names the cause and the remedy.
    pub fn open(name: &str, mtu: Option<u16>) -> Result<Self, TapError> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(DEVICE);
        let file = file.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => TapError::NoDevice,
            io::ErrorKind::PermissionDenied => TapError::Device,
            _ => TapError::Io { action: "open the device of", name: name.into(), source },
        })?;
        ioctl::attach(&file, name).map_err(|errno| match errno {
            Errno::PERM | Errno::ACCESS => TapError::Permission(name.into()),
            Errno::BUSY => TapError::Busy(name.into()),
            Errno::INVAL => TapError::NotTap(name.into()),
            errno => TapError::Io { action: "attach to", name: name.into(), source: errno.into() },
        })?;
        warn_if_down(name);
        Ok(Self { file, mtu: usable_mtu(name, mtu)? })
    }
}

fn usable_mtu(name: &str, wanted: Option<u16>) -> Result<u16, TapError> {
    let fail = |source| TapError::Io { action: "read the MTU of", name: name.into(), source };
    let text = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).map_err(fail)?;
    // An interface may carry more than a port can say.
    let interface = text.trim().parse::<u32>().map_err(|e| fail(io::Error::other(e)))?;
    let interface = u16::try_from(interface).unwrap_or(u16::MAX);
    match wanted {
        Some(port) if port > interface => Err(TapError::Mtu { name: name.into(), port, interface }),
        wanted => Ok(wanted.unwrap_or(interface)),
    }
}

fn warn_if_down(name: &str) {
    let flags = fs::read_to_string(format!("/sys/class/net/{name}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16);
    if flags.is_ok_and(|flags| flags & IFF_UP == 0) {
        tracing::warn!("Tap interface {name} is down; no frame passes until `ip link set {name} up`");
    }
}

impl Link for TapLink {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        frame::checked_len(parts, self.mtu)?;
        match writev(&self.file, parts) {
            // What the driver says while the interface is down.
            Err(Errno::IO) => Err(io::ErrorKind::NotConnected.into()),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other.map(drop)?),
        }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let room = buf.len();
        // The driver cuts long frames silently; a byte in the spill shows it.
        let mut spill = [0];
        for _ in 0..MAX_SKIPPED {
            let mut parts = [IoSliceMut::new(buf), IoSliceMut::new(&mut spill)];
            match readv(&self.file, &mut parts) {
                Ok(len) if len <= room => return Ok(Some(len)),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_either_opens_or_names_what_is_missing() {
        let name = format!("vrbt{}", std::process::id() % 100_000);
        match TapLink::open(&name, Some(1500)) {
            Ok(link) => {
                assert_eq!(link.mtu(), 1500);
                assert!(matches!(TapLink::open(&name, None), Err(TapError::Busy(_))));
                // The interface is down: nothing waits, and what is sent goes nowhere.
                assert_eq!(link.recv(&mut [0; 2048]).unwrap(), None);
                let lost = link.send(&[IoSlice::new(&[2; 60])]).unwrap_err();
                assert_eq!(lost.kind(), io::ErrorKind::NotConnected);
                assert!(matches!(
                    TapLink::open(&format!("{name}x"), Some(9000)),
                    Err(TapError::Mtu { port: 9000, interface: 1500, .. })
                ));
            }
            Err(TapError::NoDevice | TapError::Device | TapError::Permission(_)) => {
                eprintln!("not run: this machine has no usable {DEVICE}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn interface_that_is_no_tap_is_refused() {
        match TapLink::open("lo", None) {
            Err(TapError::NotTap(_) | TapError::NoDevice | TapError::Device | TapError::Permission(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
