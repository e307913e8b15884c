//! GIDs of IPv6 addresses that are not link-local, and peers in another network, behind a router.

use anyhow::{Context, Result};

use super::capture;
use super::verifier::{self, Plan};
use crate::guests::{Guest, Nic, NicOptions, Options, RdmaIn};
use crate::rdma::{End, Program, Style};
use crate::setup::Setup;
use crate::suite::{Case, Stand};

/// IPv6 networks that the first NIC gets for a case.
const PREFIXES: [(&str, &str); 2] = [("unique-local", "fd00:7"), ("global", "2001:db8:7")];
/// IPv6 networks on the two sides of the router.
const SIDES: [&str; 2] = ["fd00:8", "fd00:9"];

/// A packet of this path MTU and its headers fit an interface of 1500 bytes, which routers insist on.
const MTU: u32 = 1024;
const PLANS: [Plan; 3] = [
    Plan { op: "write", size: 10_001, count: 60, mtu: MTU },
    Plan { op: "read", size: 10_001, count: 60, mtu: MTU },
    Plan { op: "atomic", size: 8, count: 60, mtu: MTU },
];

/// For two guests on one network.
pub fn cases() -> Vec<Case> {
    let case = |(name, prefix)| {
        Case::new(format!("addresses/{name}-ipv6-gids-carry-rc"), move |stand| {
            let guests = stand.guests.all();
            guests.iter().try_for_each(|guest| add(guest, prefix, 0))?;
            End::at(stand.b(), address(prefix, stand.b()).parse()?)?;
            let result = moves_data(stand.a(), stand.b(), &address(prefix, stand.a()), &PLANS[..1]);
            for guest in guests {
                guest.must(format!("ip address del {}/64 dev eth0", address(prefix, guest)))?;
            }
            result
        })
    };
    PREFIXES.map(case).into()
}

/// Guests for [`router_cases`]: a and b, and c that forwards between the networks of their NICs.
pub fn routed_guests(setup: &Setup) -> Result<Options> {
    let mut options = setup.options()?;
    options.count = 3;
    // An interface beside an RDMA device sends no RoCE, so the router has none.
    let nic = NicOptions { rdma: RdmaIn::Only(&['a', 'b']), ..NicOptions::default() };
    options.nics = vec![nic; SIDES.len()];
    options.memory_mib = 384;
    options.capture = true;
    Ok(options)
}

pub fn router_cases() -> Vec<Case> {
    vec![
        Case::new("addresses/ipv4-peer-behind-a-router", |stand| {
            set_routes(stand)?;
            moves_data(stand.a(), stand.b(), &stand.a().ip(0), &PLANS)
        }),
        Case::new("addresses/ipv6-peer-behind-a-router", |stand| {
            set_ipv6_routes(stand)?;
            moves_data(stand.a(), stand.b(), &address(SIDES[0], stand.a()), &PLANS)
        }),
        // The router has counted down their hops, which the checksum must not cover.
        Case::new("addresses/invariant-crc-of-routed-frames-is-right", |stand| {
            capture::crc_is_right(stand, stand.b(), 1)
        }),
    ]
}

/// A guest's address in an IPv6 network.
fn address(prefix: &str, guest: &Guest) -> String {
    let host = guest.ip(0).rsplit('.').next().map(str::to_owned).unwrap_or_default();
    format!("{prefix}::{host}")
}

/// Gives a NIC its address in an IPv6 network.
fn add(guest: &Guest, prefix: &str, nic: Nic) -> Result<()> {
    guest.must(format!("ip address add {}/64 dev eth{nic}", address(prefix, guest)))?;
    Ok(())
}

/// Verifies data between two guests, of which the one listens at the address, and connects them through rdma_cm.
fn moves_data(listening: &Guest, calling: &Guest, at: &str, plans: &[Plan]) -> Result<()> {
    let end = End::at(listening, at.parse()?)?;
    for &plan in plans {
        verifier::verify(listening, calling, at, plan).with_context(|| format!("{plan:?} to {at}"))?;
    }
    let program = Program::new(Style::Rping, "rping -C 10 -V -v");
    program.pair(&end, &end).must(listening, calling)?;
    Ok(())
}

/// Guest a keeps its first NIC and b its second, so that what they send each other takes the way over c.
fn set_routes(stand: &Stand<'_>) -> Result<()> {
    let [a, b, c] = [0, 1, 2].map(|place| stand.guests.guest(place));
    c.must("sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    a.must(format!("ip link set eth1 down && ip route replace 10.0.1.0/24 via {}", c.ip(0)))?;
    b.must(format!("ip link set eth0 down && ip route replace 10.0.0.0/24 via {}", c.ip(1)))?;
    Ok(())
}

fn set_ipv6_routes(stand: &Stand<'_>) -> Result<()> {
    set_routes(stand)?;
    let [a, b, c] = [0, 1, 2].map(|place| stand.guests.guest(place));
    add(c, SIDES[0], 0)?;
    add(c, SIDES[1], 1)?;
    for (guest, own, other, nic) in [(a, SIDES[0], SIDES[1], 0), (b, SIDES[1], SIDES[0], 1)] {
        add(guest, own, nic)?;
        guest.must(format!("ip route add {other}::/64 via {}", address(own, c)))?;
        End::at(guest, address(own, guest).parse()?)?;
    }
    Ok(())
}
