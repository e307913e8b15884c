//! Which guest has which names and addresses.

use std::fmt;

/// A guest's place in the plan, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u8);

/// A NIC's number in a guest, counted from zero.
pub type Nic = u8;

impl Address {
    /// The most guests one plan has room for: one letter each.
    pub const MAX: usize = 26;

    /// The first `count` guests of the plan; more than [`Address::MAX`] are not given.
    pub fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..Self::MAX as u8).take(count).map(Self)
    }

    /// `a` for the first guest, `b` for the second.
    pub fn name(self) -> char {
        char::from(b'a' + self.0)
    }

    /// IPv4 address of a NIC; each NIC number is a network of its own.
    pub fn ipv4(self, nic: Nic) -> String {
        format!("10.0.{nic}.{}", self.0 + 1)
    }

    /// MAC address of a NIC, locally administered.
    pub fn mac(self, nic: Nic) -> String {
        format!("02:00:00:00:{nic:02x}:{:02x}", self.0 + 1)
    }

    /// The IPv6 link-local address that Linux derives from the MAC of a NIC (RFC 4291, appendix A), as the kernel
    /// writes a GID: all eight groups, no `::`.
    pub fn link_local_gid(self, nic: Nic) -> String {
        format!("fe80:0000:0000:0000:0000:00ff:fe00:{nic:02x}{:02x}", self.0 + 1)
    }

    /// The IPv4-mapped GID of a NIC, as the kernel writes it.
    pub fn ipv4_gid(self, nic: Nic) -> String {
        format!("0000:0000:0000:0000:0000:ffff:0a00:{nic:02x}{:02x}", self.0 + 1)
    }

    /// What the kernel command line says about this guest's names and addresses, for the guest's init.
    pub fn command_line(self, nics: impl Iterator<Item = Nic>) -> String {
        let addresses: Vec<String> = nics.map(|nic| format!("eth{nic}={}/24", self.ipv4(nic))).collect();
        let mut words = format!("verbena.host={}", self.name());
        if !addresses.is_empty() {
            words += &format!(" verbena.ip={}", addresses.join(","));
        }
        words
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

/// `/etc/hosts` for a network of `count` guests.
pub fn hosts_file(count: usize) -> String {
    let own = "127.0.0.1 localhost\n::1 localhost\n".to_string();
    Address::first(count).fold(own, |text, guest| text + &format!("{} {guest}\n", guest.ipv4(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_gives_every_guest_its_own_names() {
        let b = Address::first(2).last().unwrap();
        assert_eq!(b.to_string(), "b");
        assert_eq!(b.ipv4(0), "10.0.0.2");
        assert_eq!(b.mac(1), "02:00:00:00:01:02");
        assert_eq!(b.ipv4_gid(1), "0000:0000:0000:0000:0000:ffff:0a00:0102");
        assert_eq!(b.command_line(0..2), "verbena.host=b verbena.ip=eth0=10.0.0.2/24,eth1=10.0.1.2/24");
        assert_eq!(b.command_line(0..0), "verbena.host=b");
    }

    #[test]
    fn link_local_gid_is_the_mac_with_its_universal_bit_flipped() {
        let a = Address::first(1).next().unwrap();
        assert_eq!(a.mac(0), "02:00:00:00:00:01");
        assert_eq!(a.link_local_gid(0), "fe80:0000:0000:0000:0000:00ff:fe00:0001");
    }

    #[test]
    fn hosts_file_names_every_guest() {
        assert!(hosts_file(2).ends_with("10.0.0.1 a\n10.0.0.2 b\n"));
    }
}
