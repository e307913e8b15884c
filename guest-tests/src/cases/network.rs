//! The NIC carries ordinary traffic.

use anyhow::{Context, Result, ensure};

use guest_protocol::message::Streams;

use crate::guests::{Guest, Task};
use crate::rdma::{Listening, Pair, RdmaDevice, device_info};
use crate::suite::{Case, Stand};

/// Bytes of the bulk transfer.
const BULK: u32 = 4 << 20;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("network/ping", ping),
        Case::new("network/tcp-bulk-arrives-unchanged", tcp_bulk),
        Case::new("network/frames-of-9000-bytes", jumbo_frames),
        Case::new("network/link-goes-down-and-up", link_down_and_up),
    ]
}

fn ping(stand: &mut Stand<'_>) -> Result<()> {
    stand.b().must("ping -c 3 -W 10 a")?;
    stand.a().must("ping -c 3 -W 10 b")?;
    Ok(())
}

fn tcp_bulk(stand: &mut Stand<'_>) -> Result<()> {
    let sent = stand.b().must(format!("head -c {BULK} /dev/urandom > /tmp/bulk && sha256sum < /tmp/bulk"))?;
    // With an input that has ended the server would hang up at once; a pipe stays open.
    let server = Task::shell("nc -l -p 7000 | sha256sum").streams(Streams::Piped);
    let client = Task::shell("nc a 7000 < /tmp/bulk; rm /tmp/bulk").streams(Streams::Piped);
    let received =
        Pair { server, client, listening: Listening::Tcp(7000) }.must(stand.a(), stand.b())?.server.out;
    ensure!(received == sent, "{BULK} bytes with hash {sent} arrived with hash {received}");
    Ok(())
}

fn jumbo_frames(stand: &mut Stand<'_>) -> Result<()> {
    let set = |mtu| -> Result<()> {
        for guest in stand.guests.all() {
            guest.must(format!("ip link set eth0 mtu {mtu}"))?;
        }
        Ok(())
    };
    set(9000)?;
    // By its path, since the shell prefers its own ping, which cannot forbid fragments. 8972 bytes and the headers of ICMP and IPv4 make a packet of 9000.
    let ping = stand.b().must("/usr/bin/ping -c 3 -W 10 -s 8972 -M do a");
    set(1500)?;
    ping?;
    Ok(())
}

fn link_down_and_up(stand: &mut Stand<'_>) -> Result<()> {
    let guest = stand.b();
    let device = stand.device(guest)?;
    guest.must("ip link set eth0 down && sleep 1")?;
    let reached = stand.a().run("ping -c 2 -W 2 b")?.succeeded();
    let down = port_state(guest, &device);
    guest.must("ip link set eth0 up && sleep 1")?;
    ensure!(!reached, "The guest answers although its link is down");
    let down = down?;
    ensure!(down == "PORT_DOWN", "With the link down the port is {down}");
    stand.device(guest).context("The GIDs did not come back")?;
    guest.must(Task::shell("ping -c 3 -W 10 a"))?;
    let up = port_state(guest, &device)?;
    ensure!(up == "PORT_ACTIVE", "With the link up again the port is {up}");
    Ok(())
}

/// State of the RDMA device's port, as `ibv_devinfo` names it.
fn port_state(guest: &Guest, device: &RdmaDevice) -> Result<String> {
    let output = guest.must(format!("ibv_devinfo -d {}", device.name))?;
    let info = device_info(&output).with_context(|| format!("ibv_devinfo printed\n{output}"))?;
    Ok(info.state)
}
