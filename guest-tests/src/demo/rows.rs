//! The rows of the demonstration. The server of each is guest a, the client guest b.
//!
//! perftest does not look at the data it moves, so each of its rows has our verifier beside it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guests::{Guest, Guests, Task};
use crate::rdma::{
    GidKind, Listening, Pair, RdmaDevice, bandwidth, device_info, ping_lines, pingpong, verifier,
};

/// How long one program may take.
const TIMEOUT: Duration = Duration::from_secs(480);
/// TCP port on which perftest and the ping-pong programs meet.
const PORT: u16 = 18515;
/// TCP port on which the verifier meets itself.
const VERIFIER_PORT: u16 = 18600;
/// Message size of the bandwidth rows, in bytes.
const SIZE: u32 = 65_536;
/// Messages of a bandwidth row. Nested emulation moves some MB a second at worst.
const MESSAGES: u32 = 100;
/// Messages of a verifier's row, each way.
const VERIFIED: u32 = 60;
/// Round trips of a ping-pong row.
const ROUND_TRIPS: u64 = 200;
/// Pings of the rping row.
const PINGS: usize = 20;

/// Two guests and their devices.
pub struct Bench<'a> {
    a: &'a Guest,
    b: &'a Guest,
    device_a: RdmaDevice,
    device_b: RdmaDevice,
}

impl<'a> Bench<'a> {
    /// Finds the devices.
    pub fn new(guests: &'a Guests) -> Result<Self> {
        let (a, b) = (guests.a(), guests.b());
        Ok(Self { a, b, device_a: RdmaDevice::of(a)?, device_b: RdmaDevice::of(b)? })
    }

    /// Runs a program in a and its client in b, with what each must be told of its device.
    fn pair(&self, listening: Listening, line: impl Fn(&RdmaDevice) -> String) -> Result<String> {
        let server = Task::shell(line(&self.device_a)).timeout(TIMEOUT);
        let client = Task::shell(format!("{} {}", line(&self.device_b), self.a.ip(0))).timeout(TIMEOUT);
        Ok(Pair { server, client, listening }.must(self.a, self.b)?.client.out)
    }
}

/// One row.
pub struct Row {
    /// What the table calls it.
    pub title: &'static str,
    /// Runs it and gives its figure.
    pub run: fn(&Bench<'_>) -> Result<String>,
}

/// All rows, in order.
pub const ROWS: &[Row] = &[
    Row { title: "ibv_devinfo", run: devinfo },
    Row { title: "ibv_rc_pingpong -c, link-local GID", run: |bench| rc_pingpong(bench, GidKind::LinkLocal) },
    Row { title: "ibv_rc_pingpong -c, IPv4 GID", run: |bench| rc_pingpong(bench, GidKind::Ipv4) },
    Row { title: "ib_send_bw", run: |bench| perftest(bench, "ib_send_bw") },
    Row { title: "verbena-verify send", run: |bench| verify(bench, "send") },
    Row { title: "ib_write_bw", run: |bench| perftest(bench, "ib_write_bw") },
    Row { title: "verbena-verify write", run: |bench| verify(bench, "write") },
    Row { title: "ib_read_bw", run: |bench| perftest(bench, "ib_read_bw") },
    Row { title: "verbena-verify read", run: |bench| verify(bench, "read") },
    Row { title: "ib_atomic_bw", run: |bench| perftest(bench, "ib_atomic_bw") },
    Row { title: "verbena-verify atomic", run: |bench| verify(bench, "atomic") },
    Row { title: "rping -V", run: rping },
];

fn devinfo(bench: &Bench<'_>) -> Result<String> {
    let mut guids = Vec::new();
    for (guest, device) in [(bench.a, &bench.device_a), (bench.b, &bench.device_b)] {
        let output = guest.must(Task::program(["ibv_devinfo", "-d", &device.name]))?;
        let info = device_info(&output).with_context(|| format!("ibv_devinfo printed\n{output}"))?;
        ensure!(info.state == "PORT_ACTIVE", "The port of guest {} is {}", guest.name(), info.state);
        ensure!(
            info.link_layer == "Ethernet",
            "The link layer of guest {} is {}",
            guest.name(),
            info.link_layer
        );
        ensure!(info.node_guid != "0000:0000:0000:0000", "The GUID of guest {} is zero", guest.name());
        guids.push(info.node_guid);
    }
    ensure!(guids[0] != guids[1], "Both guests have the GUID {}", guids[0]);
    Ok(format!("ACTIVE, Ethernet, GUIDs {} and {}", guids[0], guids[1]))
}

fn rc_pingpong(bench: &Bench<'_>, kind: GidKind) -> Result<String> {
    let output = bench.pair(Listening::Tcp(PORT), |device| {
        format!("ibv_rc_pingpong -d {} -g {} -n {ROUND_TRIPS} -c", device.name, device.gid(kind))
    })?;
    let latency = pingpong(&output).with_context(|| format!("ibv_rc_pingpong printed\n{output}"))?;
    ensure!(latency.iterations == ROUND_TRIPS, "Only {} round trips were made", latency.iterations);
    Ok(format!("{:.1} µs a round trip", latency.microseconds))
}

fn perftest(bench: &Bench<'_>, program: &str) -> Result<String> {
    // An atomic has eight bytes and takes no size.
    let size = if program == "ib_atomic_bw" { String::new() } else { format!("-s {SIZE}") };
    let output = bench.pair(Listening::Tcp(PORT), |device| {
        // perftest's own time-out of 67 ms is shorter than a round trip of a loaded nested guest.
        format!("{program} -d {} -x {} -F -u 18 -n {MESSAGES} {size}", device.name, device.ipv4)
    })?;
    let row = bandwidth(&output).with_context(|| format!("{program} printed\n{output}"))?;
    ensure!(row.iterations == u64::from(MESSAGES), "Only {} messages were moved", row.iterations);
    // perftest shows the bandwidth of eight-byte messages as zero.
    Ok(if row.bytes <= 8 {
        format!("{:.0} operations/s", row.rate)
    } else {
        format!("{:.2} MiB/s", row.average)
    })
}

fn verify(bench: &Bench<'_>, operation: &str) -> Result<String> {
    let server = Task::shell("verbena-verify").timeout(TIMEOUT);
    let line = format!("verbena-verify {} --op {operation} --size {SIZE} --count {VERIFIED}", bench.a.ip(0));
    let client = Task::shell(line).timeout(TIMEOUT);
    let both = Pair { server, client, listening: Listening::Tcp(VERIFIER_PORT) }.must(bench.a, bench.b)?;
    let mut bytes = 0;
    for output in [&both.server.out, &both.client.out] {
        let report = verifier(output).with_context(|| format!("verbena-verify printed\n{output}"))?;
        ensure!(report.errors == 0 && report.operation == operation, "It found {} errors", report.errors);
        bytes += report.bytes;
    }
    Ok(format!("{bytes} bytes compared, none wrong"))
}

fn rping(bench: &Bench<'_>) -> Result<String> {
    let address = bench.a.ip(0);
    let task = |side| Task::shell(format!("rping {side} -a {address} -C {PINGS} -V -v")).timeout(TIMEOUT);
    let both =
        Pair { server: task("-s"), client: task("-c"), listening: Listening::Cm }.must(bench.a, bench.b)?;
    let pings = ping_lines(&both.client.out);
    ensure!(pings == PINGS, "{pings} pings of {PINGS} came back:\n{}", both.client.out);
    Ok(format!("{pings} pings, data checked"))
}
