//! A guest with our device and one with Debian's rdma_rxe, an implementation of RoCE v2 that shares no code with the engine.
//!
//! Guest b has rdma_rxe on every NIC, guest a where it has no device of ours. What fails between the two kinds of device
//! is tried between the two of rdma_rxe, on a network just as bad: a row fails if it passes there, and is skipped if
//! not, since rdma_rxe has faults of its own.

mod death;

use anyhow::{Context, Result, ensure};

use super::capture;
use super::verifier::{self, Plan};
use crate::guests::{Nic, NicOptions, Options, RdmaIn};
use crate::rdma::{Program, Style};
use crate::setup::Setup;
use crate::suite::{Case, Outcome, Stand};

/// A network that is bad in a way.
#[derive(Clone, Copy, Debug)]
pub struct Bad {
    /// What names of rows on it end with.
    suffix: &'static str,
    /// As `verbena run --net` is told.
    impair: &'static str,
}

const fn bad(suffix: &'static str, impair: &'static str) -> Bad {
    Bad { suffix, impair }
}

/// A little of everything.
pub const EVERYTHING: Bad =
    bad("-on-a-bad-network", "loss:1%/duplicate:1%/reorder:2%/corrupt:1%/delay:1ms/jitter:1ms/seed:7");
/// One thing at a time, and more of it.
pub const ONE_THING: [Bad; 5] = [
    bad("-with-loss", "loss:3%/seed:1"),
    bad("-with-duplicates", "duplicate:10%/seed:2"),
    bad("-with-reordering", "reorder:10%/seed:3"),
    bad("-with-corruption", "corrupt:3%/seed:4"),
    bad("-with-delay", "delay:20ms/jitter:10ms/seed:5"),
];

/// Every path MTU there is.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// MTU of the interfaces, so that the largest path MTU fits.
const INTERFACE_MTU: u32 = 9000;

/// Two networks that are alike but for the device in guest a.
#[derive(Clone, Copy, Debug)]
struct Networks {
    /// Ours in guest a.
    ours: Nic,
    /// rdma_rxe in both guests.
    control: Nic,
    /// What names of rows on them end with.
    suffix: &'static str,
}

const GOOD: Networks = Networks { ours: 0, control: 1, suffix: "" };

impl Bad {
    const fn networks(self) -> Networks {
        Networks { ours: 2, control: 3, suffix: self.suffix }
    }
}

/// Whether the control runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// When the row has failed.
    OnFailure,
    /// Always, to see what the control is worth.
    Always,
}

/// Guests with a good network of each kind, and a bad one.
pub fn guests(setup: &Setup, bad: Bad) -> Result<Options> {
    let mut options = setup.options()?;
    let nic = |rdma, impair: Option<&str>| NicOptions { rdma, impair: impair.map(str::to_owned) };
    options.nics = [None, Some(bad.impair)]
        .into_iter()
        .flat_map(|impair| [nic(RdmaIn::Only(&['a']), impair), nic(RdmaIn::Only(&[]), impair)])
        .collect();
    options.may_reboot = true;
    options.capture = true;
    Ok(options)
}

/// For every day, on guests with [`EVERYTHING`].
pub fn cases() -> Vec<Case> {
    let of = |networks, plans: Vec<Plan>| {
        plans.into_iter().map(move |plan| verified(networks, plan, Control::OnFailure))
    };
    let programs = PROGRAMS
        .iter()
        .flat_map(|program| Server::BOTH.map(|server| stock(GOOD, program, server, Control::OnFailure)));
    let frames = [
        Case::new("rxe/rdma_rxe-rejects-no-frame", no_frame_is_rejected),
        Case::new("rxe/invariant-crc-of-every-frame-is-right", |stand| {
            capture::crc_is_right(stand, stand.a(), GOOD.ours)
        }),
        Case::may_skip("rxe/tshark-decodes-both-without-malformed-frame", |stand| {
            capture::tshark_decodes(stand, stand.a(), GOOD.ours)
        }),
    ];
    of(GOOD, all_plans())
        .chain(programs)
        .chain(frames)
        .chain(of(EVERYTHING.networks(), some_plans()))
        .chain(death::cases())
        .collect()
}

/// Everything on a good network, each row beside its control, for a soak.
pub fn soak_cases() -> Vec<Case> {
    let verified = all_plans().into_iter().map(|plan| verified(GOOD, plan, Control::Always));
    let programs = PROGRAMS.iter().chain(PERFTEST);
    let programs =
        programs.flat_map(|program| Server::BOTH.map(|server| stock(GOOD, program, server, Control::Always)));
    verified.chain(programs).collect()
}

/// The same on a bad network, but for programs that do not stand that by themselves.
pub fn bad_soak_cases(bad: Bad) -> Vec<Case> {
    let networks = bad.networks();
    let verified = all_plans().into_iter().map(|plan| verified(networks, plan, Control::Always));
    let programs = RELIABLE.iter().chain(PERFTEST);
    let programs = programs
        .flat_map(|program| Server::BOTH.map(|server| stock(networks, program, server, Control::Always)));
    verified.chain(programs).collect()
}

/// Messages of several packets, the last one with padding. There are enough of them for packet sequence numbers to wrap:
/// the verifier begins 256 below the end.
fn all_plans() -> Vec<Plan> {
    let moves = ["send", "write", "read"].into_iter();
    let plans = moves.flat_map(|op| MTUS.map(|mtu| Plan { op, size: 2 * mtu + 17, count: 100, mtu }));
    plans.chain([Plan { op: "atomic", size: 8, count: 150, mtu: 1024 }]).collect()
}

fn some_plans() -> Vec<Plan> {
    vec![
        Plan { op: "send", size: 4097, count: 100, mtu: 1024 },
        Plan { op: "write", size: 1001, count: 100, mtu: 256 },
        Plan { op: "read", size: 12_289, count: 100, mtu: 4096 },
        Plan { op: "atomic", size: 8, count: 100, mtu: 1024 },
    ]
}

/// A name, how the program is told of device and peer, and its line.
type Row = (&'static str, Style, &'static str);

/// Stock programs that check what they get, and those of rdma_cm.
const PROGRAMS: &[Row] = &[
    RELIABLE[0],
    RELIABLE[1],
    ("ud-pingpong", Style::PingPong, "ibv_ud_pingpong -n 50 -s 1024 -c"),
    ("udaddy", Style::Cm, "udaddy -C 8 -S 1024"),
    ("send-bw-ud", Style::Perftest, "ib_send_bw -n 50 -c UD -s 1024"),
];

/// Those of them that repeat what is lost.
const RELIABLE: &[Row] =
    &[("rping", Style::Rping, "rping -C 10 -V -v"), ("ucmatose", Style::Cm, "ucmatose -C 8 -S 1024")];

/// Programs that check nothing, and do all the device can.
const PERFTEST: &[Row] = &[
    ("send-bw", Style::Perftest, "ib_send_bw -n 100"),
    ("send-bw-events", Style::Perftest, "ib_send_bw -n 100 -e"),
    ("send-bw-cm", Style::PerftestCm, "ib_send_bw -n 100"),
    ("send-lat", Style::Perftest, "ib_send_lat -n 100"),
    ("write-bw-both-ways", Style::Perftest, "ib_write_bw -n 100 -b"),
    ("write-bw-4-queue-pairs", Style::Perftest, "ib_write_bw -n 100 -q 4 -s 4096"),
    ("write-lat", Style::Perftest, "ib_write_lat -n 100"),
    ("read-bw", Style::Perftest, "ib_read_bw -n 100"),
    ("read-lat", Style::Perftest, "ib_read_lat -n 100"),
    ("atomic-bw-add", Style::Perftest, "ib_atomic_bw -n 100 -A FETCH_AND_ADD"),
    ("atomic-bw-swap", Style::Perftest, "ib_atomic_bw -n 100 -A CMP_AND_SWAP"),
];

/// Which guest has the server of a program.
#[derive(Clone, Copy, Debug)]
enum Server {
    /// Guest a, the one with our device.
    Ours,
    /// Guest b.
    Rxe,
}

impl Server {
    const BOTH: [Self; 2] = [Self::Ours, Self::Rxe];
}

fn verified(networks: Networks, plan: Plan, control: Control) -> Case {
    let name = format!("rxe/{}-of-{}-bytes-mtu-{}{}", plan.op, plan.size, plan.mtu, networks.suffix);
    row(name, networks, control, move |stand, nic| {
        verifier::verify(stand.a(), stand.b(), &stand.a().ip(nic), plan)
    })
}

fn stock(networks: Networks, &(name, style, line): &Row, server: Server, control: Control) -> Case {
    let program = Program::new(style, line);
    let role = match server {
        Server::Ours => "calls-us",
        Server::Rxe => "is-called",
    };
    let name = format!("rxe/{name}-rdma_rxe-{role}{}", networks.suffix);
    row(name, networks, control, move |stand, nic| {
        let (server, client) = match server {
            Server::Ours => (stand.a(), stand.b()),
            Server::Rxe => (stand.b(), stand.a()),
        };
        program.pair(&stand.end(server, nic)?, &stand.end(client, nic)?).must(server, client)?;
        Ok(())
    })
}

/// A case that runs on one of two networks and, to know what a failure is worth, on the other.
fn row(
    name: String,
    networks: Networks,
    control: Control,
    run: impl Fn(&Stand<'_>, Nic) -> Result<()> + 'static,
) -> Case {
    Case::may_skip(name, move |stand| {
        make_devices(stand)?;
        let ours = run(stand, networks.ours);
        let theirs = (ours.is_err() || control == Control::Always).then(|| run(stand, networks.control));
        match (ours, theirs) {
            (Ok(()), None | Some(Ok(()))) => Ok(Outcome::Passed),
            (Ok(()), Some(Err(error))) => {
                println!("rdma_rxe does not do this to itself: {error:#}");
                Ok(Outcome::Passed)
            }
            (Err(error), Some(Err(control))) => Ok(Outcome::Skipped(format!(
                "rdma_rxe does not do it to itself either ({control:#}); with us: {error:#}"
            ))),
            (Err(error), _) => again(error, run(stand, networks.ours)),
        }
    })
}

/// What a row's failure is worth that its control does not share. rdma_rxe hangs by itself now and then, so one of two is
/// no failure of ours for certain; it is counted and told.
fn again(first: anyhow::Error, second: Result<()>) -> Result<Outcome> {
    match second {
        Ok(()) => Ok(Outcome::Skipped(format!("it failed once of two times: {first:#}"))),
        Err(error) => Err(error.context("It fails twice with us and passes between two rdma_rxe")),
    }
}

/// Makes the devices of rdma_rxe that are not there, in guests that may have started anew.
fn make_devices(stand: &Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        let nics = [GOOD, EVERYTHING.networks()].into_iter().flat_map(|networks| {
            let ours = (guest.name() != 'a').then_some(networks.ours);
            ours.into_iter().chain([networks.control])
        });
        let names: Vec<String> = nics.map(|nic| nic.to_string()).collect();
        guest
            .must(format!(
                "for n in {}; do test -e /sys/class/infiniband/rxe$n || {{ \
                     modprobe -a crc32_generic rdma_rxe && rdma link add rxe$n type rxe netdev eth$n || exit 1; }}; done; \
                 for link in /sys/class/net/eth*; do ip link set ${{link##*/}} mtu {INTERFACE_MTU} || exit 1; done",
                names.join(" ")
            ))
            .context("The devices of rdma_rxe cannot be made")?;
    }
    Ok(())
}

/// rdma_rxe says so when it drops a frame for its checksum.
fn no_frame_is_rejected(stand: &mut Stand<'_>) -> Result<()> {
    let complaints = stand.b().must("dmesg | grep -iE 'bad ICRC|rdma_rxe.*(fail|error|invalid)'; true")?;
    ensure!(complaints.is_empty(), "rdma_rxe says\n{complaints}");
    Ok(())
}
