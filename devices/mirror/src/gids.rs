//! Guest addresses on the host device.
//!
//! A host device sends from the addresses of its network interface only. So an address that the guest binds becomes an
//! address of that interface, alone in its subnet and for a short time that is renewed: a monitor that is killed leaves
//! nothing behind. An address that the operator gave to the interface for good is used as it is.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use device_model::guest_warn;
use device_model::net::MacAddr;
use device_model::time::Instant;
use verbs::{Gid, GidEntry};

/// How long an address stays on the host unless it is renewed.
pub const LIFETIME: Duration = Duration::from_secs(30);
/// How often it is renewed.
const RENEWAL: Duration = Duration::from_secs(10);

/// Whose an address on the host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Ours; it has to be renewed, and released in the end.
    Us,
    /// The host's own.
    Host,
}

/// Addresses of the host device's network interface.
pub trait Addresses: Send {
    /// Makes sure that the interface has the address, for [`LIFETIME`] unless it has it for good.
    ///
    /// # Errors
    ///
    /// The kernel's; [`io::ErrorKind::PermissionDenied`] without `CAP_NET_ADMIN`.
    fn hold(&mut self, address: IpAddr) -> io::Result<Holder>;

    /// Takes an address away that [`Addresses::hold`] said is ours.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn release(&mut self, address: IpAddr) -> io::Result<()>;
}

/// Which addresses a guest may have on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidPolicy(Vec<Gid>);

impl GidPolicy {
    /// The addresses the operator gave to the guest, and the link-local one of its interface.
    pub fn new(addresses: &[IpAddr], mac: MacAddr) -> Self {
        let mut gids: Vec<Gid> = addresses.iter().map(|address| gid_of(*address)).collect();
        let mut link_local = [0; 16];
        let (prefix, suffix) = link_local.split_at_mut(8);
        prefix.copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        suffix.copy_from_slice(&mac.eui64());
        gids.push(Gid(link_local));
        Self(gids)
    }

    fn allows(&self, gid: Gid) -> bool {
        self.0.contains(&gid)
    }
}

fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address_of(gid: Gid) -> IpAddr {
    gid.ipv4().map_or_else(|| gid.ipv6().into(), IpAddr::V4)
}

/// The guest's GID table, and the addresses that stand for it on the host.
pub(crate) struct Gids {
    policy: GidPolicy,
    addresses: Box<dyn Addresses>,
    rows: BTreeMap<u16, Gid>,
    held: BTreeMap<Gid, Holder>,
    /// When the addresses that are ours are renewed.
    renew_at: Option<Instant>,
}

impl Gids {
    pub(crate) fn new(policy: GidPolicy, addresses: Box<dyn Addresses>) -> Self {
        Self { policy, addresses, rows: BTreeMap::new(), held: BTreeMap::new(), renew_at: None }
    }

    /// Fills a row. An address the host cannot have stands in the table all the same: the guest's kernel can use it.
    pub(crate) fn set(&mut self, entry: GidEntry) {
        self.clear(entry.index);
        self.rows.insert(entry.index, entry.gid);
        if !self.policy.allows(entry.gid) || self.held.contains_key(&entry.gid) {
            return;
        }
        match self.addresses.hold(address_of(entry.gid)) {
            Ok(holder) => {
                self.held.insert(entry.gid, holder);
            }
            Err(error) => guest_warn!(
                gid = %entry.gid, %error,
                "The host device cannot have this address: give it to its interface beforehand, or run with CAP_NET_ADMIN"
            ),
        }
    }

    /// Empties a row, and takes its address off the host unless another row has it.
    pub(crate) fn clear(&mut self, index: u16) {
        let Some(gid) = self.rows.remove(&index) else { return };
        if self.rows.values().any(|other| *other == gid) {
            return;
        }
        if self.held.remove(&gid) == Some(Holder::Us) {
            self.release(gid);
        }
    }

    /// Empties the table.
    pub(crate) fn reset(&mut self) {
        let rows: Vec<_> = self.rows.keys().copied().collect();
        rows.into_iter().for_each(|index| self.clear(index));
        self.renew_at = None;
    }

    /// Takes all addresses off the host. The table stays.
    pub(crate) fn withdraw(&mut self) {
        for (gid, holder) in std::mem::take(&mut self.held) {
            if holder == Holder::Us {
                self.release(gid);
            }
        }
        self.renew_at = None;
    }

    /// The address in a row, if the host has it.
    pub(crate) fn on_host(&self, index: u16) -> Option<Gid> {
        self.rows.get(&index).copied().filter(|gid| self.held.contains_key(gid))
    }

    /// Renews what is due.
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.renew_at.is_some_and(|at| at > now) {
            return;
        }
        self.renew_at = None;
        let ours = self.held.iter().filter(|(_, holder)| **holder == Holder::Us);
        for (gid, _) in ours {
            self.renew_at = Some(now + RENEWAL);
            if let Err(error) = self.addresses.hold(address_of(*gid)) {
                guest_warn!(%gid, %error, "Failed to renew an address on the host");
            }
        }
    }

    /// When [`Gids::advance`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let ours = self.held.values().any(|holder| *holder == Holder::Us);
        ours.then(|| self.renew_at.unwrap_or(Instant::ZERO))
    }

    fn release(&mut self, gid: Gid) {
        if let Err(error) = self.addresses.release(address_of(gid)) {
            guest_warn!(%gid, %error, "Failed to take an address off the host; it expires by itself");
        }
    }
}

impl Drop for Gids {
    fn drop(&mut self) {
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[derive(Clone, Default)]
    struct Fake {
        /// Addresses of the interface and how often each was asked for.
        present: Arc<Mutex<BTreeMap<IpAddr, u32>>>,
        permanent: Vec<IpAddr>,
    }

    impl Addresses for Fake {
        fn hold(&mut self, address: IpAddr) -> io::Result<Holder> {
            if self.permanent.contains(&address) {
                return Ok(Holder::Host);
            }
            *self.present.lock().unwrap().entry(address).or_default() += 1;
            Ok(Holder::Us)
        }

        fn release(&mut self, address: IpAddr) -> io::Result<()> {
            self.present.lock().unwrap().remove(&address).map(drop).ok_or(io::ErrorKind::NotFound.into())
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn row(index: u16, text: &str) -> GidEntry {
        GidEntry { index, gid: gid_of(address(text)) }
    }

    fn gids(fake: &Fake) -> Gids {
        let policy = GidPolicy::new(&[address("10.0.0.1"), address("fd00::1")], MAC);
        Gids::new(policy, Box::new(fake.clone()))
    }

    fn present(fake: &Fake) -> Vec<String> {
        fake.present.lock().unwrap().keys().map(IpAddr::to_string).collect()
    }

    #[test]
    fn only_addresses_of_the_guest_reach_the_host() {
        let fake = Fake::default();
        let mut gids = gids(&fake);
        for (index, text) in (0..).zip(["fe80::ff:fe00:1", "10.0.0.1", "10.0.0.9", "fe80::1", "fd00::1"]) {
            gids.set(row(index, text));
        }
        assert_eq!(present(&fake), ["10.0.0.1", "fd00::1", "fe80::ff:fe00:1"]);
        assert!(gids.on_host(1).is_some());
        assert_eq!((gids.on_host(2), gids.on_host(3), gids.on_host(9)), (None, None, None));
        drop(gids);
        assert!(present(&fake).is_empty());
    }

    #[test]
    fn an_address_in_two_rows_stays_until_both_are_empty() {
        let fake = Fake::default();
        let mut gids = gids(&fake);
        gids.set(row(1, "10.0.0.1"));
        gids.set(row(2, "10.0.0.1"));
        gids.clear(1);
        assert_eq!(present(&fake), ["10.0.0.1"]);
        gids.set(row(2, "10.0.0.7"));
        assert!(present(&fake).is_empty());
    }

    #[test]
    fn addresses_are_renewed_before_they_expire() {
        let fake = Fake::default();
        let mut gids = gids(&fake);
        assert_eq!(gids.next_deadline(), None);
        gids.set(row(1, "10.0.0.1"));
        let mut now = Instant::from_nanos(7);
        assert_eq!(gids.next_deadline(), Some(Instant::ZERO));
        for _ in 0..3 {
            gids.advance(now);
            let next = gids.next_deadline().unwrap();
            assert!(next - now < LIFETIME / 2);
            now = next;
        }
        assert_eq!(fake.present.lock().unwrap()[&address("10.0.0.1")], 4);
        gids.clear(1);
        assert_eq!(gids.next_deadline(), None);
    }

    #[test]
    fn an_address_of_the_host_is_used_and_left_alone() {
        let fake = Fake { permanent: vec![address("10.0.0.1")], ..Fake::default() };
        let mut gids = gids(&fake);
        gids.set(row(1, "10.0.0.1"));
        assert!(gids.on_host(1).is_some());
        assert_eq!(gids.next_deadline(), None);
        gids.reset();
        assert!(present(&fake).is_empty());
    }
}
