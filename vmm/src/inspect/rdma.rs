//! RDMA devices in words.

use std::collections::BTreeMap;

use pci::Bdf;
use pvrdma::{Counters, DriverPhase, Failure, Pvrdma, Snapshot};
use pvrdma_spec::command::Opcode;
use verbs::{Carrier, Gid, Owner, QpState, QpType, Qpn};
use vmm_api::{Calls, DriverState, FailureReport, GidRow, ObjectUse, Port, QueuePair, RdmaDevice};

use super::SlotView;
use super::advice::{STATUSES, explain, port_problem, status_name};

/// Queue pairs in one reply: bounds its length, and for how long a device is stopped to make it.
const MAX_QPS: usize = 128;

/// Copies what a device is.
pub(super) fn look(device: &Pvrdma, first_qp: u32) -> Snapshot {
    device.snapshot(first_qp, MAX_QPS)
}

/// Puts it into words.
pub(super) fn describe(slot: &SlotView, seen: &Snapshot) -> RdmaDevice {
    let address = Bdf::new(slot.address.slot(), 1).unwrap_or(slot.address);
    RdmaDevice {
        slot: slot.name.clone(),
        address: address.to_string(),
        driver: match seen.phase {
            DriverPhase::None => DriverState::None,
            DriverPhase::Loaded => DriverState::Loaded,
            DriverPhase::Active => DriverState::Active,
        },
        port: port(slot, seen),
        gids: seen.gids.iter().map(|row| gid_row(row.index, row.gid)).collect(),
        objects: objects(seen),
        queue_pairs: seen.queue_pairs.iter().map(|qp| queue_pair(seen, qp)).collect(),
        more_from: seen.next_queue_pair,
        failures: seen.failures.iter().map(failure).collect(),
        transport: seen.provider.iter().map(|&(name, count)| (name.to_owned(), count)).collect(),
        device: device_counters(&seen.counters),
        completions: completions(&seen.counters),
        commands: commands(&seen.counters),
    }
}

fn port(slot: &SlotView, seen: &Snapshot) -> Port {
    Port {
        active: seen.phase == DriverPhase::Active && seen.link_up && seen.interface_up,
        problem: port_problem(seen).map(str::to_owned),
        link_up: seen.link_up,
        interface_up: seen.interface_up,
        mac: seen.mac.to_string(),
        link: slot.link.clone(),
        link_mtu: slot.mtu,
        active_mtu: seen.active_mtu.bytes(),
    }
}

fn gid_row(index: u16, gid: Gid) -> GidRow {
    let address = gid.ipv6();
    let kind = if gid.ipv4().is_some() {
        "RoCE v2, IPv4"
    } else if address.is_unicast_link_local() {
        "RoCE v2, IPv6 link-local"
    } else {
        "RoCE v2, IPv6"
    };
    GidRow { index, gid: gid.to_string(), kind: kind.to_owned() }
}

fn objects(seen: &Snapshot) -> Vec<ObjectUse> {
    let (used, limit) = (&seen.objects, &seen.limits);
    let row = |kind: &str, used: u64, limit: u64| ObjectUse { kind: kind.to_owned(), used, limit };
    let count = |kind, used: u32, limit: u32| row(kind, used.into(), limit.into());
    vec![
        count("contexts", used.contexts, limit.contexts),
        count("protection domains", used.protection_domains, limit.protection_domains),
        count("memory regions", used.memory_regions, limit.memory_regions),
        count("completion queues", used.completion_queues, limit.completion_queues),
        count("shared receive queues", used.shared_receive_queues, limit.shared_receive_queues),
        count("queue pairs", used.queue_pairs, limit.queue_pairs),
        row("page list bytes", used.page_list_bytes as u64, limit.page_list_bytes as u64),
    ]
}

fn queue_pair(seen: &Snapshot, qp: &pvrdma::QueuePair) -> QueuePair {
    let attr = &qp.attr;
    let connected = is_connected(qp.qp_type, attr.av.dgid);
    let source = seen.gids.iter().find(|row| row.index == u16::from(attr.av.sgid_index));
    QueuePair {
        handle: qp.handle,
        qpn: qp.qpn.0,
        service: service(qp.qp_type).to_owned(),
        owner: match qp.owner {
            Owner::Kernel => "kernel",
            Owner::User => "user",
        }
        .to_owned(),
        state: state(attr.state).to_owned(),
        source_gid: source.filter(|_| connected).map(|row| row.gid.to_string()),
        peer_gid: connected.then(|| attr.av.dgid.to_string()),
        peer_qpn: connected.then_some(attr.dest_qpn.0),
        path_mtu: connected.then(|| attr.path_mtu.bytes()),
        carrier: qp.carrier.map(|carrier| self::carrier(carrier).to_owned()),
        send_psn: attr.sq_psn,
        receive_psn: attr.rq_psn,
        failure: qp.failure.map(explain),
    }
}

fn failure(seen: &Failure) -> FailureReport {
    let connected = is_connected(seen.qp_type, seen.peer_gid);
    let Qpn(peer) = seen.peer_qpn;
    FailureReport {
        at_ms: seen.at.as_nanos() / 1_000_000,
        handle: seen.handle,
        qpn: seen.qpn.0,
        peer_gid: connected.then(|| seen.peer_gid.to_string()),
        peer_qpn: connected.then_some(peer),
        failure: explain(seen.cause),
    }
}

fn is_connected(service: QpType, peer: Gid) -> bool {
    service == QpType::Rc && !peer.is_zero()
}

const fn service(service: QpType) -> &'static str {
    match service {
        QpType::Gsi => "GSI",
        QpType::Rc => "RC",
        QpType::Ud => "UD",
    }
}

const fn carrier(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Wire => "wire",
        Carrier::Direct => "direct",
        Carrier::Tunnel => "tunnel",
        Carrier::Itself => "itself",
    }
}

const fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

fn device_counters(counters: &Counters) -> BTreeMap<String, u64> {
    // Named one by one, so that a new counter cannot be forgotten.
    let Counters {
        commands: _,
        bad_requests,
        doorbells,
        bad_doorbells,
        polling_started,
        polling_ended,
        polling_unanswered,
        polling_woken,
        work_requests,
        bad_work_requests,
        broken_rings,
        completions: _,
        dropped_completions,
        notifications,
        events,
        interrupts,
    } = counters;
    let named = [
        ("bad_requests", *bad_requests),
        ("trapped_doorbells", *doorbells),
        ("bad_doorbells", *bad_doorbells),
        ("polling_started", *polling_started),
        ("polling_ended", *polling_ended),
        ("polling_unanswered", *polling_unanswered),
        ("polling_woken", *polling_woken),
        ("work_requests", *work_requests),
        ("bad_work_requests", *bad_work_requests),
        ("broken_rings", *broken_rings),
        ("dropped_completions", *dropped_completions),
        ("completion_notifications", *notifications),
        ("async_events", *events),
        ("interrupts", interrupts.iter().sum()),
    ];
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

fn completions(counters: &Counters) -> BTreeMap<String, u64> {
    let count = |status| counters.completions.get(status as usize).copied().unwrap_or(0);
    STATUSES.into_iter().map(|status| (status_name(status).to_owned(), count(status))).collect()
}

fn commands(counters: &Counters) -> BTreeMap<String, Calls> {
    let calls = counters.commands.iter().map(|c| Calls { succeeded: c.succeeded, failed: c.failed });
    Opcode::ALL.into_iter().zip(calls).map(|(opcode, calls)| (format!("{opcode:?}"), calls)).collect()
}
