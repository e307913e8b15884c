//! Reports for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use vmm_api::{Calls, FailureReport, QueuePair, RdmaDevice, RdmaReport, Slot};

/// Stands where there is nothing.
const NONE: &str = "-";

/// RDMA devices.
pub(super) fn rdma(report: &RdmaReport) -> String {
    if report.devices.is_empty() {
        return "The machine has no RDMA device\n".to_owned();
    }
    report.devices.iter().map(device).collect::<Vec<_>>().join("\n")
}

fn device(device: &RdmaDevice) -> String {
    let port = &device.port;
    let mut out = String::new();
    let up = |up| if up { "up" } else { "down" };
    let state = if port.active { "ACTIVE" } else { "DOWN" };
    line(&mut out, &format!("{} (PCI {}): port {state}", device.slot, device.address));
    if let Some(problem) = &port.problem {
        line(&mut out, &format!("  ! {problem}"));
    }
    line(
        &mut out,
        &format!(
            "  link {} {}, MTU {}, path MTU {}; interface {}, MAC {}",
            port.link,
            up(port.link_up),
            port.link_mtu,
            port.active_mtu,
            up(port.interface_up),
            port.mac
        ),
    );
    section(&mut out, "GIDs", &gids(device));
    let objects: Vec<_> =
        device.objects.iter().map(|o| format!("{} {} of {}", o.kind, o.used, o.limit)).collect();
    section(&mut out, "Objects", &format!("{}\n", objects.join(", ")));
    section(&mut out, "Queue pairs", &queue_pairs(&device.queue_pairs));
    section(&mut out, "Failures", &failures(&device.failures));
    section(&mut out, "Transport", &counters(&device.transport));
    section(&mut out, "Device", &counters(&device.device));
    section(&mut out, "Completions", &counters(&device.completions));
    section(&mut out, "Commands", &commands(&device.commands));
    out
}

/// Network interfaces.
pub(super) fn net(slots: &[Slot]) -> String {
    if slots.is_empty() {
        return "The machine has no network interface\n".to_owned();
    }
    let up = |up: bool| if up { "up" } else { "down" }.to_owned();
    let mut rows = vec![words(
        "SLOT PCI MAC LINK MTU CABLE IFACE RDMA TX-FRAMES TX-BYTES TX-ERR TX-DROP RX-FRAMES RX-BYTES RX-ERR RX-DROP",
    )];
    for slot in slots {
        let nic = &slot.nic;
        let mut row = vec![
            slot.id.clone(),
            slot.address.clone(),
            nic.mac.clone(),
            slot.link.clone(),
            slot.mtu.to_string(),
            up(nic.link_up),
            up(nic.interface_up),
            if slot.rdma { "on" } else { "off" }.to_owned(),
        ];
        for traffic in [&nic.sent, &nic.received] {
            let counts = [traffic.frames, traffic.bytes, traffic.errors, traffic.dropped];
            row.extend(counts.map(|count| count.to_string()));
        }
        rows.push(row);
    }
    table(&rows)
}

fn gids(device: &RdmaDevice) -> String {
    table(
        &device
            .gids
            .iter()
            .map(|g| vec![g.index.to_string(), g.gid.clone(), g.kind.clone()])
            .collect::<Vec<_>>(),
    )
}

fn queue_pairs(qps: &[QueuePair]) -> String {
    let mut rows =
        vec![words("QPN TYPE OWNER STATE PEER-QPN PEER-GID MTU CARRIER SEND-PSN RECV-PSN LAST-FAILURE")];
    for qp in qps {
        rows.push(vec![
            hex(qp.qpn),
            qp.service.clone(),
            qp.owner.clone(),
            qp.state.clone(),
            qp.peer_qpn.map_or(NONE.to_owned(), hex),
            qp.peer_gid.clone().unwrap_or_else(|| NONE.to_owned()),
            qp.path_mtu.map_or(NONE.to_owned(), |mtu| mtu.to_string()),
            qp.carrier.clone().unwrap_or_else(|| NONE.to_owned()),
            hex(qp.send_psn),
            hex(qp.receive_psn),
            qp.failure.as_ref().map_or(NONE.to_owned(), |failure| failure.cause.clone()),
        ]);
    }
    if qps.is_empty() { String::new() } else { table(&rows) }
}

fn failures(reports: &[FailureReport]) -> String {
    let mut out = String::new();
    for report in reports {
        let peer = match (&report.peer_gid, report.peer_qpn) {
            (Some(gid), Some(qpn)) => format!(", peer {gid} {}", hex(qpn)),
            _ => String::new(),
        };
        let seconds = report.at_ms as f64 / 1000.0;
        let (qpn, failure) = (hex(report.qpn), &report.failure);
        line(&mut out, &format!("at {seconds:.3} s QP {qpn}{peer}: {}", failure.cause));
        line(&mut out, &format!("  {}", failure.advice));
    }
    out
}

fn counters(counters: &BTreeMap<String, u64>) -> String {
    let counted = counters.iter().filter(|(_, count)| **count > 0);
    table(&counted.map(|(name, count)| vec![name.clone(), count.to_string()]).collect::<Vec<_>>())
}

fn commands(commands: &BTreeMap<String, Calls>) -> String {
    let called = commands.iter().filter(|(_, calls)| calls.succeeded + calls.failed > 0);
    let row = |(name, calls): (&String, &Calls)| {
        vec![name.clone(), format!("{} succeeded", calls.succeeded), format!("{} failed", calls.failed)]
    };
    table(&called.map(row).collect::<Vec<_>>())
}

/// A heading and, indented, what belongs to it.
fn section(out: &mut String, heading: &str, body: &str) {
    if body.is_empty() {
        line(out, &format!("  {heading}: none"));
        return;
    }
    line(out, &format!("  {heading}"));
    body.lines().for_each(|text| line(out, &format!("    {text}")));
}

/// Columns as wide as their widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        line(&mut out, cells.join("  ").trim_end());
    }
    out
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn hex(number: u32) -> String {
    format!("{number:#08x}")
}

/// Writing to a string does not fail.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use vmm_api::{DriverState, Failure, GidRow, Nic, NicTraffic, Port};

    use super::*;

    fn example() -> RdmaDevice {
        let failure = Failure { cause: "completion RETRY_EXC_ERR".into(), advice: "Is the peer up?".into() };
        RdmaDevice {
            slot: "net0".into(),
            address: "00:01.1".into(),
            driver: DriverState::Active,
            port: Port {
                active: true,
                problem: None,
                link_up: true,
                interface_up: true,
                mac: "52:54:00:00:00:01".into(),
                link: "switch:/s".into(),
                link_mtu: 1500,
                active_mtu: 1024,
            },
            gids: vec![GidRow { index: 1, gid: "::ffff:10.0.0.1".into(), kind: "RoCE v2, IPv4".into() }],
            objects: Vec::new(),
            queue_pairs: vec![QueuePair {
                handle: 1,
                qpn: 0x12,
                service: "RC".into(),
                owner: "user".into(),
                state: "ERR".into(),
                source_gid: None,
                peer_gid: Some("::ffff:10.0.0.2".into()),
                peer_qpn: Some(0xabcdef),
                path_mtu: Some(1024),
                carrier: Some("direct".into()),
                send_psn: 0,
                receive_psn: 0xff_ffff,
                failure: Some(failure.clone()),
            }],
            more_from: None,
            failures: vec![FailureReport {
                at_ms: 1500,
                handle: 1,
                qpn: 0x12,
                peer_gid: Some("::ffff:10.0.0.2".into()),
                peer_qpn: Some(0xabcdef),
                failure,
            }],
            transport: [("tx_packets".to_owned(), 7), ("rx_packets".to_owned(), 0)].into(),
            device: BTreeMap::new(),
            completions: BTreeMap::new(),
            commands: [("CreateQp".to_owned(), Calls { succeeded: 1, failed: 2 })].into(),
        }
    }

    #[test]
    fn device_is_shown_as_a_person_reads_it() {
        let expected = "\
net0 (PCI 00:01.1): port ACTIVE
  link switch:/s up, MTU 1500, path MTU 1024; interface up, MAC 52:54:00:00:00:01
  GIDs
    1  ::ffff:10.0.0.1  RoCE v2, IPv4
  Objects
    queue pairs 1 of 65535
  Queue pairs
    QPN       TYPE  OWNER  STATE  PEER-QPN  PEER-GID         MTU   CARRIER  SEND-PSN  RECV-PSN  LAST-FAILURE
    0x000012  RC    user   ERR    0xabcdef  ::ffff:10.0.0.2  1024  direct   0x000000  0xffffff  completion RETRY_EXC_ERR
  Failures
    at 1.500 s QP 0x000012, peer ::ffff:10.0.0.2 0xabcdef: completion RETRY_EXC_ERR
      Is the peer up?
  Transport
    tx_packets  7
  Device: none
  Completions: none
  Commands
    CreateQp  1 succeeded  2 failed
";
        let mut device = example();
        device.objects = vec![vmm_api::ObjectUse { kind: "queue pairs".into(), used: 1, limit: 65535 }];
        assert_eq!(rdma(&RdmaReport { devices: vec![device] }), expected);
    }

    #[test]
    fn problem_of_a_port_stands_on_top() {
        let mut device = example();
        device.port.active = false;
        device.port.problem = Some("The link is down".into());
        let text = rdma(&RdmaReport { devices: vec![device] });
        let lines: Vec<_> = text.lines().take(2).collect();
        assert_eq!(lines, ["net0 (PCI 00:01.1): port DOWN", "  ! The link is down"]);
    }

    #[test]
    fn columns_of_interfaces_line_up() {
        let slot = |id: &str, frames| Slot {
            id: id.into(),
            address: "00:01.0".into(),
            link: "loopback".into(),
            mtu: 1500,
            rdma: true,
            nic: Nic {
                mac: "52:54:00:00:00:01".into(),
                link_up: true,
                interface_up: false,
                sent: NicTraffic { frames, ..NicTraffic::default() },
                received: NicTraffic::default(),
            },
        };
        let text = net(&[slot("net0", 123_456_789_012), slot("longname", 3)]);
        let lines: Vec<_> = text.lines().collect();
        let frames = lines[0].find("TX-FRAMES").unwrap();
        assert!(lines[1][frames..].starts_with("123456789012  0"), "{text}");
        assert!(lines[2][frames..].starts_with("3             0"), "{text}");
    }
}
