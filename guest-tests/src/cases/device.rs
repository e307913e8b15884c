//! The RDMA device as the guest's tools see it, and its driver coming and going.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::message::Streams;

use crate::guests::{Guest, Task};
use crate::rdma::device_info;
use crate::suite::{Case, Stand};

/// Times the driver is unloaded and loaded.
const CYCLES: u32 = 20;
/// How long the events of a port may take altogether.
const EVENTS: Duration = Duration::from_secs(60);
/// Memory of the VMM's own that may come and go between two looks, in KiB.
const NOISE_KIB: u64 = 1024;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("device/devinfo-says-active-ethernet-and-a-guid", devinfo),
        Case::new("device/both-gid-kinds-are-roce-v2", gid_kinds),
        Case::new("device/kernel-log-has-no-complaint", kernel_log),
        Case::new("device/tools-list-it", tools),
        Case::new("device/port-events-are-told-to-programs", port_events),
        Case::new("device/driver-reloads-leak-nothing", driver_reloads),
    ]
}

fn devinfo(stand: &mut Stand<'_>) -> Result<()> {
    let mut guids = Vec::new();
    for guest in stand.guests.all() {
        let device = stand.device(guest)?;
        let output = guest.must(format!("ibv_devinfo -d {}", device.name))?;
        let info = device_info(&output).with_context(|| format!("ibv_devinfo printed\n{output}"))?;
        ensure!(info.state == "PORT_ACTIVE", "The port of guest {} is {}", guest.name(), info.state);
        ensure!(info.link_layer == "Ethernet", "The link layer is {}", info.link_layer);
        ensure!(info.active_mtu >= 1024, "The active MTU is {}", info.active_mtu);
        ensure!(info.node_guid != "0000:0000:0000:0000", "The GUID is zero");
        guids.push(info.node_guid);
    }
    guids.dedup();
    ensure!(guids.len() == stand.guests.all().len(), "Guests share the GUID {}", guids[0]);
    Ok(())
}

fn gid_kinds(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        let device = stand.device(guest)?;
        for index in [device.link_local, device.ipv4] {
            let path = format!("/sys/class/infiniband/{}/ports/1/gid_attrs/types/{index}", device.name);
            let kind = guest.must(format!("cat {path}"))?;
            ensure!(kind.trim() == "RoCE v2", "GID {index} is of type {kind}");
        }
    }
    Ok(())
}

fn kernel_log(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        // A module that Debian has not signed taints the kernel, which is said once and no complaint of the device.
        let complaints = guest.must(format!(
            "dmesg | grep -iE 'vmw_pvrdma|vmxnet3|infiniband' | grep -v 'module verification failed' | \
             grep -iE 'fail|error|warn|invalid|timed? ?out'; {}; true",
            super::boot::ALARM
        ))?;
        ensure!(complaints.is_empty(), "The kernel log of guest {} has\n{complaints}", guest.name());
    }
    Ok(())
}

fn tools(stand: &mut Stand<'_>) -> Result<()> {
    let guest = stand.a();
    let name = stand.device(guest)?.name;
    let listings = [
        ("ibv_devices".to_owned(), name.clone()),
        (format!("ibv_devinfo -v -d {name}"), "GID[".to_owned()),
        (format!("rdma link show {name}/1"), "state ACTIVE physical_state LINK_UP netdev eth0".to_owned()),
        (format!("rdma dev show {name}"), "node_guid".to_owned()),
        (format!("rdma resource show {name}"), "pd".to_owned()),
    ];
    for (line, text) in listings {
        let output = guest.must(&line[..])?;
        ensure!(output.contains(&text), "`{line}` does not say {text:?}:\n{output}");
    }
    Ok(())
}

fn port_events(stand: &mut Stand<'_>) -> Result<()> {
    let guest = stand.b();
    let device = stand.device(guest)?;
    // It keeps what it prints to itself unless a person may be looking.
    let terminal = Streams::Terminal { rows: 24, columns: 80 };
    let line = format!("ibv_asyncwatch -d {}", device.name);
    let mut watch = guest.start(Task::shell(line).streams(terminal).timeout(EVENTS));
    // It says so once it has the device open.
    let mut says = |text: &str| match watch.wait_for(text)? {
        None => Ok(()),
        Some(output) => bail!("ibv_asyncwatch ended before {text}:\n{}", output.out),
    };
    says("async event FD")?;
    for (way, event) in [("down", "IBV_EVENT_PORT_ERR"), ("up", "IBV_EVENT_PORT_ACTIVE")] {
        guest.must(format!("ip link set eth0 {way}"))?;
        says(event)?;
    }
    watch.kill()?;
    stand.device(guest).context("The GIDs did not come back")?;
    Ok(())
}

fn driver_reloads(stand: &mut Stand<'_>) -> Result<()> {
    let reload = |guest: &Guest, times: u32| {
        let line =
            format!("for i in $(seq {times}); do rmmod vmw_pvrdma && modprobe vmw_pvrdma || exit 1; done");
        guest.must(Task::shell(line).timeout(Duration::from_secs(300)))
    };
    // The first ones fill caches of the VMM's allocator.
    reload(stand.a(), 2)?;
    let before = Held::by(stand.a())?;
    reload(stand.a(), CYCLES)?;
    let after = Held::by(stand.a())?;
    ensure!(!after.is_more_than(&before), "{before:?} became {after:?}");
    stand.device(stand.a()).context("The device did not come back")?;
    kernel_log(stand)
}

/// What a guest's VMM holds, beside the guest's memory.
#[derive(Debug)]
pub struct Held {
    descriptors: usize,
    memory_kib: u64,
}

impl Held {
    fn by(guest: &Guest) -> Result<Self> {
        let process = format!("/proc/{}", guest.vm_id());
        let descriptors = fs::read_dir(format!("{process}/fd")).context("The VMM is gone")?.count();
        let status = fs::read_to_string(format!("{process}/status"))?;
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let memory_kib = anonymous
            .and_then(|text| text.split_whitespace().next()?.parse().ok())
            .context("The kernel does not say how much memory the VMM has")?;
        Ok(Self { descriptors, memory_kib })
    }

    /// What the VMM of every guest holds.
    pub fn by_all(stand: &Stand<'_>) -> Result<Vec<Self>> {
        stand.guests.all().iter().map(Self::by).collect()
    }

    /// Whether there are other descriptors, or more memory, than before.
    pub fn is_more_than(&self, before: &Self) -> bool {
        self.descriptors != before.descriptors || self.memory_kib > before.memory_kib + NOISE_KIB
    }
}
