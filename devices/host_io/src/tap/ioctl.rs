//! The one call that no safe wrapper offers: `TUNSETIFF` (linux/if_tun.h).

// `ioctl` takes a request number and an untyped pointer, which only this module can vouch for.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Argument of `TUNSETIFF`: `struct ifreq` (linux/if.h) with `ifr_flags` as its union's member.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// Declared with `int` in the header, although it takes a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;

/// Makes an open `/dev/net/tun` the other side of the tap interface `name`.
pub(super) fn attach(device: impl AsFd, name: &str) -> Result<(), Errno> {
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
    // The last byte stays zero.
    let room = request.name.get_mut(..name.len()).filter(|room| room.len() < 16).ok_or(Errno::INVAL)?;
    room.copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which is what `InterfaceRequest` lays out, all 40 bytes.
    let update = unsafe { Updater::<TUNSETIFF, _>::new(&mut request) };
    // SAFETY: the kernel touches nothing but `request`, which is borrowed mutably for the call. On a descriptor that is
    // not a tun device the number is unknown and refused.
    unsafe { ioctl(device, update) }
}
