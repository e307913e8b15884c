//! A running machine.

use vmm_api::RdmaReport;

use super::Finding;

/// Judges what a machine reports of its RDMA devices.
pub fn check_machine(report: &RdmaReport) -> Vec<Finding> {
    if report.devices.is_empty() {
        let remedy = "Start it with a --net that has no rdma=off.";
        return vec![Finding::problem("Machine", "it has no RDMA device", remedy)];
    }
    let mut findings = Vec::new();
    for device in &report.devices {
        let subject = format!("RDMA device of {}", device.slot);
        match &device.port.problem {
            Some(problem) => findings.push(Finding::problem(&subject, "cannot be used", problem)),
            None => findings.push(Finding::good(&subject, "port is active and has addresses")),
        }
        // Programs that silently fall back to TCP make none.
        if device.queue_pairs.iter().all(|qp| qp.service == "GSI") {
            findings.push(Finding::note(
                &subject,
                "no program in the guest has a queue pair",
                "If one runs, it does not use RDMA: look at its choice of device and at its ulimit -l.",
            ));
        }
        for qp in &device.queue_pairs {
            if let Some(failure) = &qp.failure {
                let state = format!("queue pair {:#08x} failed: {}", qp.qpn, failure.cause);
                findings.push(Finding::problem(&subject, state, failure.advice.as_str()));
            }
        }
    }
    findings
}
