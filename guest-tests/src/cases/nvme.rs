//! NVMe over RDMA: one guest's kernel exports a RAM disk, the other's uses it.
//!
//! This is what the device's part for kernels is there for: regions for DMA, fast registration, local invalidation,
//! and sends that invalidate.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::boot::no_alarm;
use super::objects::Objects;
use crate::guests::{Guest, Task};
use crate::suite::{Case, Stand};

/// Exports /dev/ram0 at the guest's own address.
const EXPORT: &str = "modprobe brd rd_nr=1 rd_size=65536 && modprobe nvmet-rdma && \
    { mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; } && \
    cd /sys/kernel/config/nvmet && mkdir subsystems/t && echo 1 > subsystems/t/attr_allow_any_host && \
    mkdir subsystems/t/namespaces/1 && echo -n /dev/ram0 > subsystems/t/namespaces/1/device_path && \
    echo 1 > subsystems/t/namespaces/1/enable && mkdir ports/1 && echo -n ipv4 > ports/1/addr_adrfam && \
    echo -n rdma > ports/1/addr_trtype && echo -n ADDRESS > ports/1/addr_traddr && \
    echo -n 4420 > ports/1/addr_trsvcid && ln -s $PWD/subsystems/t ports/1/subsystems/t";
/// Connects, quick to notice that the target is gone and patient while it is.
const CONNECT: &str = "nvme connect -t rdma -a ADDRESS -s 4420 -n t -i 1 -Q 32 -k 5 -c 2 -l 600 && \
    until test -b /dev/nvme0n1; do sleep 0.2; done";
const DISCONNECT: &str = "nvme disconnect -n t";
/// Writes blocks of many sizes at random places and reads them again, comparing checksums.
const VERIFY: &str = "fio --name=v --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=4 --rw=randrw \
    --bsrange=4k-1m --size=SIZE --verify=crc32c --verify_fatal=1 --minimal";
/// Times that a target is connected to in a row.
const CYCLES: u32 = 5;
/// How long fio may take.
const IO_TIMEOUT: Duration = Duration::from_secs(400);
/// How long a guest may take to start again.
const REBOOT: Duration = Duration::from_secs(600);
/// How long the initiator may take to find its target again.
const RECONNECT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    first_cases().into()
}

fn first_cases() -> [Case; 2] {
    [
        Case::new("nvme/verified-io-over-fabrics", verified_io),
        Case::new("nvme/connect-and-disconnect-leave-nothing", cycles),
    ]
}

/// What takes too long for every day.
pub fn soak_cases() -> Vec<Case> {
    let [io, _] = first_cases();
    vec![io, Case::new("nvme/initiator-finds-a-target-that-was-reset", target_loss)]
}

/// A line with the target's address and the amount of data filled in.
fn filled(line: &str, target: &Guest, size: &str) -> Task {
    Task::shell(line.replace("ADDRESS", &target.ip(0)).replace("SIZE", size)).timeout(IO_TIMEOUT)
}

fn verified_io(stand: &mut Stand<'_>) -> Result<()> {
    let (target, initiator) = (stand.a(), stand.b());
    target.must(filled(EXPORT, target, "")).context("The target cannot be set up")?;
    initiator.must("modprobe nvme-rdma")?;
    initiator.must(filled(CONNECT, target, ""))?;
    initiator.must(filled(VERIFY, target, "16m"))?;
    initiator.must(DISCONNECT)?;
    no_alarm(stand)
}

fn cycles(stand: &mut Stand<'_>) -> Result<()> {
    let (target, initiator) = (stand.a(), stand.b());
    let before = Objects::of_all(stand)?;
    for _ in 0..CYCLES {
        initiator.must(filled(CONNECT, target, ""))?;
        initiator.must("dd if=/dev/nvme0n1 of=/dev/null bs=64k count=4 iflag=direct")?;
        initiator.must(DISCONNECT)?;
    }
    before.are_all(stand)?;
    no_alarm(stand)
}

fn target_loss(stand: &mut Stand<'_>) -> Result<()> {
    let (target, initiator) = (stand.a(), stand.b());
    initiator.must(filled(CONNECT, target, ""))?;
    let load = "while dd if=/dev/nvme0n1 of=/dev/null bs=64k count=64 iflag=direct; do :; done";
    let load = initiator.start(Task::shell(load).timeout(REBOOT + RECONNECT));
    std::thread::sleep(Duration::from_secs(2));
    let lives = target.lives();
    // At once: no driver is told, nothing says goodbye on the wire.
    let reset = target.start("echo b > /proc/sysrq-trigger");
    target.wait_ready(lives + 1, REBOOT)?;
    drop(reset);
    target.must(filled(EXPORT, target, "")).context("The target cannot be set up again")?;
    let deadline = Instant::now() + RECONNECT;
    while initiator.must("cat /sys/class/nvme/nvme0/state")?.trim() != "live" {
        ensure!(
            Instant::now() < deadline,
            "The initiator did not come back:\n{}",
            initiator.must("dmesg | tail -20")?
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    load.kill()?;
    initiator.must(filled(VERIFY, target, "4m"))?;
    initiator.must(DISCONNECT)?;
    no_alarm(stand)
}
