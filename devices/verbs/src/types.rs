//! Names and small values.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);
    };
}

id!(/** A protection domain, by the number the device model chose for it. */ PdId);
id!(/** A memory region, by the number the device model chose for it. */ MrId);
id!(/** A completion queue, by the number the device model chose for it. */ CqId);
id!(/** A shared receive queue, by the number the device model chose for it. */ SrqId);
id!(/** A queue pair, by the number the device model chose for it; not the number on the wire, see [`Qpn`]. */ QpId);
id!(/** A queue pair number as peers see it, 24 bits. */ Qpn);

impl Qpn {
    /// The general service interface, where connection managers meet.
    pub const GSI: Self = Self(1);
    /// Bits of a queue pair number.
    pub const MASK: u32 = 0xff_ffff;
}

/// Queue pair transport service, with the values of `enum ib_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpType {
    /// General service interface: unreliable datagrams on queue pair 1.
    Gsi = 1,
    /// Reliable connection.
    Rc = 2,
    /// Unreliable datagram.
    Ud = 4,
}

/// On whose behalf an object exists. Decides which work requests it may post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// The guest's kernel: all opcodes, DMA regions.
    Kernel,
    /// A process of the guest.
    User,
}

/// A global identifier: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// As an IPv6 address.
    pub const fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }

    /// As an IPv4 address when it is a mapped one; RoCE v2 then uses IPv4 on the wire.
    pub const fn ipv4(self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }

    /// Whether it is all zeros: an empty table entry.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ipv6(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

/// Path MTU: payload bytes of a packet, with the values of `enum ib_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All of them, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Decodes the verbs value, 1 to 5.
    pub fn from_verbs(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == value)
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest path MTU whose packets, with `overhead` bytes of headers inside the IP packet, fit a link MTU.
    pub fn largest_within(link_mtu: u32, overhead: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + overhead <= link_mtu)
    }
}

bitflags::bitflags! {
    /// Access rights, with the values of `enum ib_access_flags`. Optional bits (20 and up) are not represented.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(try_from = "u32", into = "u32")]
    pub struct Access: u32 {
        /// Local writes: receives, read responses, atomic results.
        const LOCAL_WRITE = 1;
        /// Remote RDMA writes.
        const REMOTE_WRITE = 1 << 1;
        /// Remote RDMA reads.
        const REMOTE_READ = 1 << 2;
        /// Remote atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// Flags that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Unknown bits in flags {0:#x}")]
pub struct UnknownFlags(pub u32);

/// Conversions of flags by which they are saved and restored.
macro_rules! saved_as_bits {
    ($($flags:ty),+) => {$(
        impl From<$flags> for u32 {
            fn from(flags: $flags) -> Self {
                flags.bits()
            }
        }

        impl TryFrom<u32> for $flags {
            type Error = $crate::types::UnknownFlags;

            fn try_from(bits: u32) -> Result<Self, Self::Error> {
                Self::from_bits(bits).ok_or($crate::types::UnknownFlags(bits))
            }
        }
    )+};
}
pub(crate) use saved_as_bits;

saved_as_bits!(Access);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_sizes_follow_the_verbs_values() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::from_verbs(0), None);
        assert_eq!(Mtu::from_verbs(6), None);
    }

    #[test]
    fn mapped_ipv4_gid_is_recognised() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(Gid::from(Ipv6Addr::LOCALHOST).ipv4(), None);
    }
}
