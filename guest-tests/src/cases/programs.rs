//! Stock verbs programs between two guests.

use std::time::Duration;

use anyhow::Result;

use crate::guests::Task;
use crate::rdma::{Listening, Pair, RdmaDevice};
use crate::suite::{Case, Stand};

/// How long one program may take.
const TIMEOUT: Duration = Duration::from_secs(300);
/// TCP port on which perftest and the ping-pong programs meet.
const PORT: u16 = 18515;

/// How a program is told of device and peer.
#[derive(Clone, Copy)]
enum Style {
    /// `-d DEVICE -g GID-INDEX` on both, the peer's address last: ibverbs-utils.
    PingPong,
    /// `-d DEVICE -x GID-INDEX` on both, the peer's address last: perftest.
    Perftest,
    /// As perftest, but over rdma_cm, which picks the device.
    PerftestCm,
    /// `-s` at the client with the server's address: rdmacm-utils.
    Cm,
    /// `-s` or `-c` and the server's address with `-a`: rping.
    Rping,
}

/// The programs, each under a name of its own.
const PROGRAMS: &[(&str, Style, &str)] = &[
    ("rc-pingpong", Style::PingPong, "ibv_rc_pingpong -n 100 -c"),
    ("rc-pingpong-events", Style::PingPong, "ibv_rc_pingpong -n 100 -c -e"),
    ("rc-pingpong-mtu-256", Style::PingPong, "ibv_rc_pingpong -n 50 -c -m 256"),
    ("rc-pingpong-1-MiB", Style::PingPong, "ibv_rc_pingpong -n 10 -c -s 1048576"),
    ("ud-pingpong", Style::PingPong, "ibv_ud_pingpong -n 100 -s 1024"),
    ("srq-pingpong", Style::PingPong, "ibv_srq_pingpong -n 100 -q 4"),
    ("send-bw", Style::Perftest, "ib_send_bw -n 100"),
    ("send-bw-events", Style::Perftest, "ib_send_bw -n 100 -e"),
    ("send-bw-ud", Style::Perftest, "ib_send_bw -n 100 -c UD -s 1024"),
    ("send-bw-srq", Style::Perftest, "ib_send_bw -n 100 --use-srq"),
    ("send-bw-cm", Style::PerftestCm, "ib_send_bw -n 100"),
    ("send-lat", Style::Perftest, "ib_send_lat -n 100"),
    ("write-bw", Style::Perftest, "ib_write_bw -n 100"),
    ("write-bw-4-queue-pairs", Style::Perftest, "ib_write_bw -n 100 -q 4 -s 4096"),
    ("write-bw-both-ways", Style::Perftest, "ib_write_bw -n 100 -b"),
    ("write-lat", Style::Perftest, "ib_write_lat -n 100"),
    ("read-bw", Style::Perftest, "ib_read_bw -n 100"),
    ("read-lat", Style::Perftest, "ib_read_lat -n 100"),
    ("atomic-bw-add", Style::Perftest, "ib_atomic_bw -n 100 -A FETCH_AND_ADD"),
    ("atomic-bw-swap", Style::Perftest, "ib_atomic_bw -n 100 -A CMP_AND_SWAP"),
    ("atomic-lat", Style::Perftest, "ib_atomic_lat -n 100"),
    ("rping", Style::Rping, "rping -C 20 -V -v"),
    ("rping-64-KiB", Style::Rping, "rping -C 10 -S 65536 -V"),
    ("ucmatose", Style::Cm, "ucmatose -C 16 -S 4096"),
    ("udaddy", Style::Cm, "udaddy -C 16 -S 1024"),
];

/// One case a program, under a topic of the stage's choice.
pub fn cases(topic: &'static str) -> Vec<Case> {
    PROGRAMS
        .iter()
        .map(|&(name, style, line)| {
            Case::new(format!("{topic}/{name}"), move |stand| run(stand, style, line))
        })
        .collect()
}

fn run(stand: &mut Stand<'_>, style: Style, line: &str) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let address = a.ip(0);
    let with_device = |device: &RdmaDevice, flag| format!("{line} -d {} {flag} {}", device.name, device.ipv4);
    let (server, client, listening) = match style {
        Style::PingPong => {
            let (server, client) =
                (with_device(&stand.device(a)?, "-g"), with_device(&stand.device(b)?, "-g"));
            (server, format!("{client} {address}"), Listening::Tcp(PORT))
        }
        Style::Perftest => {
            // perftest's own time-out of 67 ms is shorter than a round trip of a loaded nested guest.
            let flags = "-F -u 18 -x";
            let (server, client) =
                (with_device(&stand.device(a)?, flags), with_device(&stand.device(b)?, flags));
            (server, format!("{client} {address}"), Listening::Tcp(PORT))
        }
        Style::PerftestCm => (format!("{line} -F -R"), format!("{line} -F -R {address}"), Listening::Cm),
        Style::Cm => (line.to_string(), format!("{line} -s {address}"), Listening::Cm),
        Style::Rping => (format!("{line} -s -a {address}"), format!("{line} -c -a {address}"), Listening::Cm),
    };
    let task = |line: String| Task::shell(line).timeout(TIMEOUT);
    Pair { server: task(server), client: task(client), listening }.must(a, b)?;
    Ok(())
}
