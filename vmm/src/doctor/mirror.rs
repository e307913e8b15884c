//! What `provider=host` and `tunnel=` need of an RDMA device, of its network interface and of this process.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::Finding;
use super::host::names_in;

/// A region of scattered pages takes one mapping a page.
const PAGE: u64 = 4096;
/// Mappings the rest of the process may have.
const OTHER_MAPPINGS: u64 = 1024;
/// Numbers of `CAP_NET_ADMIN` and `CAP_IPC_LOCK`.
const NET_ADMIN: u32 = 12;
const IPC_LOCK: u32 = 14;

/// What the judgement needs to know.
struct Facts {
    name: String,
    /// Names of all devices.
    known: Vec<String>,
    port: Option<Port>,
    /// The device file and whether it can be opened; `None` when there is none.
    file: Option<(String, io::Result<()>)>,
    /// What libibverbs makes of it; `None` when this program is built without.
    library: Option<Result<(), String>>,
    may_add_addresses: bool,
    limits: Limits,
}

/// The port of a device.
struct Port {
    link_layer: String,
    state: String,
    /// Network interface, and its addresses, of the rows for RoCE v2.
    interface: Option<String>,
    addresses: Vec<Ipv6Addr>,
}

/// Limits of this process, beside what a guest needs.
struct Limits {
    ram: u64,
    /// Bytes that may be locked; `None` without limit.
    locked: Option<u64>,
    /// Mappings allowed; `None` when it cannot be told.
    mappings: Option<u64>,
}

/// Checks whether a guest with `ram` bytes could be mirrored onto the device of that name.
pub fn check_device(name: &str, ram: u64) -> Vec<Finding> {
    let file = device_file(Path::new("/sys/class/infiniband_verbs"), name);
    judge(&Facts {
        name: name.to_owned(),
        known: names_in(Path::new("/sys/class/infiniband")),
        port: Port::read(&Path::new("/sys/class/infiniband").join(name).join("ports/1")),
        file: file.map(|file| {
            let path = format!("/dev/infiniband/{file}");
            let opened = OpenOptions::new().read(true).write(true).open(&path).map(drop);
            (path, opened)
        }),
        library: library(name),
        may_add_addresses: may(&own_status(), NET_ADMIN),
        limits: Limits::of_this_process(ram),
    })
}

/// What of this process's limits keeps a guest with `ram` bytes from registering all of them.
pub fn check_limits(ram: u64) -> Vec<Finding> {
    let limits = Limits::of_this_process(ram);
    vec![locked(&limits), mappings(&limits)]
}

/// Whether this process may lock `ram` bytes, all memory of a guest.
pub fn check_locked(ram: u64) -> Finding {
    locked(&Limits::of_this_process(ram))
}

impl Limits {
    fn of_this_process(ram: u64) -> Self {
        let mappings = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        Self {
            ram,
            // Who may lock without limit may register without limit.
            locked: getrlimit(Resource::Memlock).current.filter(|_| !may(&own_status(), IPC_LOCK)),
            mappings: mappings.and_then(|text| text.trim().parse().ok()),
        }
    }
}

impl Port {
    /// Reads the directory of a port; `None` when there is none.
    fn read(port: &Path) -> Option<Self> {
        let text = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let mut this = Self {
            link_layer: text(port.join("link_layer")).ok()?,
            state: text(port.join("state")).unwrap_or_default(),
            interface: None,
            addresses: Vec::new(),
        };
        for row in names_in(&port.join("gids")) {
            // Rows that are empty have no type.
            if text(port.join("gid_attrs/types").join(&row)).is_ok_and(|kind| kind == "RoCE v2") {
                this.interface = text(port.join("gid_attrs/ndevs").join(&row)).ok().or(this.interface);
                let gid = text(port.join("gids").join(&row)).ok();
                this.addresses.extend(gid.and_then(|gid| gid.parse::<Ipv6Addr>().ok()));
            }
        }
        Some(this)
    }
}

/// Name of the file by which a device is opened, `uverbs0` or the like.
fn device_file(class: &Path, device: &str) -> Option<String> {
    let is_its = |file: &String| {
        fs::read_to_string(class.join(file).join("ibdev")).is_ok_and(|name| name.trim() == device)
    };
    names_in(class).into_iter().find(is_its)
}

#[cfg(feature = "mirror")]
fn library(name: &str) -> Option<Result<(), String>> {
    Some(mirror::host::probe(name).map_err(|error| error.to_string()))
}

#[cfg(not(feature = "mirror"))]
fn library(_: &str) -> Option<Result<(), String>> {
    None
}

fn own_status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Whether the process with that `/proc/…/status` has a capability.
fn may(status: &str, capability: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << capability != 0)
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![device(facts), file(facts), library_finding(facts)];
    if let Some(Port { interface: Some(interface), addresses, .. }) = &facts.port {
        findings.push(guest_addresses(facts, interface));
        findings.push(routes(facts, interface, addresses));
    }
    findings.extend([locked(&facts.limits), mappings(&facts.limits)]);
    findings
}

fn device(facts: &Facts) -> Finding {
    let subject = format!("RDMA device {}", facts.name);
    let Some(port) = &facts.port else {
        let known = if facts.known.is_empty() { "none".to_owned() } else { facts.known.join(", ") };
        return Finding::problem(
            &subject,
            format!("is not there; this host has: {known}"),
            "Load the driver of the hardware, or make one in software: `rdma link add rxe0 type rxe netdev eth0`.",
        );
    };
    match &port.interface {
        Some(interface) if port.state.ends_with("ACTIVE") => {
            Finding::good(&subject, format!("speaks RoCE v2 over {interface}, its port is active"))
        }
        Some(interface) => Finding::problem(
            &subject,
            format!("its port is not active ({})", port.state),
            format!("Bring its network interface up: `ip link set {interface} up`."),
        ),
        None => Finding::problem(
            &subject,
            format!("has no address for RoCE v2 (its link layer is {})", port.link_layer),
            "Choose a RoCE v2 device (`rdma link` shows them), and bring its network interface up.",
        ),
    }
}

fn file(facts: &Facts) -> Finding {
    let subject = format!("Device file of {}", facts.name);
    match &facts.file {
        Some((path, Ok(()))) => Finding::good(&subject, format!("{path} can be used")),
        Some((path, Err(error))) => Finding::problem(
            &subject,
            format!("{path}: {error}"),
            format!("Give this user the right to read and write {path}; a udev rule makes that last."),
        ),
        None => Finding::problem(&subject, "is missing", "Load its kernel module: `modprobe ib_uverbs`."),
    }
}

fn library_finding(facts: &Facts) -> Finding {
    const SUBJECT: &str = "libibverbs";
    match &facts.library {
        Some(Ok(())) => Finding::good(SUBJECT, format!("opens {}", facts.name)),
        Some(Err(error)) => Finding::problem(
            SUBJECT,
            error.as_str(),
            "Install its provider for the device: package ibverbs-providers on Debian and Ubuntu.",
        ),
        None => Finding::problem(
            SUBJECT,
            "this verbena is built without: provider=host and tunnel= are refused",
            "`cargo build --release --package vmm --features mirror` builds it in.",
        ),
    }
}

fn guest_addresses(facts: &Facts, interface: &str) -> Finding {
    let subject = format!("Guest addresses on {interface}");
    if facts.may_add_addresses {
        return Finding::good(&subject, "are added and taken away as the guest needs them");
    }
    Finding::note(
        &subject,
        "cannot be added by this user: programs in guests have no address on the device",
        format!(
            "Give the interface the address in ip= for good (`ip address add ADDRESS/32 dev {interface}`), or run with \
             CAP_NET_ADMIN."
        ),
    )
}

/// The host resolves a peer's address by its own routes.
fn routes(facts: &Facts, interface: &str, addresses: &[Ipv6Addr]) -> Finding {
    let subject = format!("Routes of {}", facts.name);
    if addresses.iter().any(|address| !address.is_unicast_link_local()) {
        return Finding::good(
            &subject,
            format!("{interface} has an address; guests' peers have to be in its subnet or routed"),
        );
    }
    Finding::note(
        &subject,
        format!("{interface} has no address but its link-local one: guests' peers are not found"),
        format!("Give it one of the guests' subnet: `ip address add ADDRESS/24 dev {interface}`."),
    )
}

fn locked(limits: &Limits) -> Finding {
    const SUBJECT: &str = "Memory that may be locked";
    match limits.locked {
        Some(limit) if limit < limits.ram => Finding::problem(
            SUBJECT,
            format!(
                "{} MiB, but a guest could register {} MiB: registrations in it fail with ENOMEM",
                limit >> 20,
                limits.ram >> 20
            ),
            "`ulimit -l unlimited` before verbena starts, or LimitMEMLOCK=infinity in its systemd unit.",
        ),
        _ => Finding::good(SUBJECT, format!("is enough for {} MiB of guest memory", limits.ram >> 20)),
    }
}

fn mappings(limits: &Limits) -> Finding {
    const SUBJECT: &str = "Mappings of a process (vm.max_map_count)";
    let wanted = limits.ram / PAGE + OTHER_MAPPINGS;
    match limits.mappings {
        Some(limit) if limit < wanted => Finding::note(
            SUBJECT,
            format!(
                "{limit}: scattered guest pages take one each, so that is {} MiB at worst",
                (limit.saturating_sub(OTHER_MAPPINGS) * PAGE) >> 20
            ),
            format!("`sysctl -w vm.max_map_count={wanted}` lets the guest register all of its memory."),
        ),
        _ => Finding::good(SUBJECT, format!("is enough for {} MiB of guest memory", limits.ram >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn facts() -> Facts {
        Facts {
            name: "rxe0".to_owned(),
            known: vec!["rxe0".to_owned()],
            port: Some(Port {
                link_layer: "Ethernet".to_owned(),
                state: "4: ACTIVE".to_owned(),
                interface: Some("eth1".to_owned()),
                addresses: vec!["fe80::1".parse().unwrap(), "::ffff:10.0.0.1".parse().unwrap()],
            }),
            file: Some(("/dev/infiniband/uverbs0".to_owned(), Ok(()))),
            library: Some(Ok(())),
            may_add_addresses: true,
            limits: Limits { ram: 1 << 30, locked: None, mappings: Some(1 << 20) },
        }
    }

    /// What is not good among the findings.
    fn complaints(facts: &Facts) -> Vec<(Level, String)> {
        let bad = judge(facts).into_iter().filter(|finding| finding.level != Level::Good);
        bad.map(|finding| (finding.level, finding.to_string())).collect()
    }

    #[test]
    fn each_thing_that_is_missing_is_named_with_its_remedy() {
        assert!(complaints(&facts()).is_empty());
        let port = || facts().port.unwrap();
        let denied = io::ErrorKind::PermissionDenied.into();
        let cases = [
            (Facts { port: None, ..facts() }, Level::Problem, "rdma link add"),
            (
                Facts { port: Some(Port { state: "1: DOWN".to_owned(), ..port() }), ..facts() },
                Level::Problem,
                "ip link set eth1 up",
            ),
            (
                Facts { port: Some(Port { interface: None, ..port() }), ..facts() },
                Level::Problem,
                "Choose a RoCE v2 device",
            ),
            (Facts { file: None, ..facts() }, Level::Problem, "modprobe ib_uverbs"),
            (Facts { file: Some(("/dev/x".to_owned(), Err(denied))), ..facts() }, Level::Problem, "udev"),
            (Facts { library: None, ..facts() }, Level::Problem, "--features mirror"),
            (Facts { library: Some(Err("no".to_owned())), ..facts() }, Level::Problem, "ibverbs-providers"),
            (
                Facts { may_add_addresses: false, ..facts() },
                Level::Note,
                "ip address add ADDRESS/32 dev eth1",
            ),
            (
                Facts { port: Some(Port { addresses: vec![], ..port() }), ..facts() },
                Level::Note,
                "ip address add ADDRESS/24 dev eth1",
            ),
            (
                Facts { limits: Limits { locked: Some(8 << 20), ..facts().limits }, ..facts() },
                Level::Problem,
                "ulimit -l",
            ),
            (
                Facts { limits: Limits { mappings: Some(65_530), ..facts().limits }, ..facts() },
                Level::Note,
                "vm.max_map_count=263168",
            ),
        ];
        for (facts, level, remedy) in cases {
            let found = complaints(&facts);
            assert!(
                found.len() == 1 && found[0].0 == level && found[0].1.contains(remedy),
                "{remedy}: {found:?}"
            );
        }
    }

    #[test]
    fn a_device_is_read_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, text) in [
            ("ports/1/link_layer", "Ethernet\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
            ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("ports/1/gid_attrs/ndevs/1", "eth1\n"),
            ("verbs/uverbs1/ibdev", "mlx5_1\n"),
            ("verbs/uverbs0/ibdev", "mlx5_0\n"),
        ] {
            write(name, text);
        }
        let port = Port::read(&root.path().join("ports/1")).unwrap();
        assert_eq!((port.link_layer.as_str(), port.state.as_str()), ("Ethernet", "4: ACTIVE"));
        assert_eq!(port.interface.as_deref(), Some("eth1"));
        assert_eq!(port.addresses, ["::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap()]);
        assert!(Port::read(&root.path().join("ports/2")).is_none());
        assert_eq!(device_file(&root.path().join("verbs"), "mlx5_0").as_deref(), Some("uverbs0"));
        assert_eq!(device_file(&root.path().join("verbs"), "mlx5_2"), None);
    }

    #[test]
    fn effective_capabilities_are_read_and_no_others() {
        assert!(may("Name:\tx\nCapEff:\t0000000000004000\n", IPC_LOCK));
        assert!(!may("CapEff:\t0000000000004000\n", NET_ADMIN));
        assert!(!may("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", NET_ADMIN));
        assert!(!may("", IPC_LOCK));
    }
}
