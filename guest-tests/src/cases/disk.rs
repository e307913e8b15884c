//! Raw disks of the host in the guest.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::suite::{Case, Stand};

/// Size of each disk, in MiB.
const SIZE_MIB: usize = 8;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("disk/content-of-the-host-is-read", content_is_read),
        Case::new("disk/read-only-disk-refuses-writes", read_only),
        Case::new("disk/writes-are-on-the-host-after-power-off", writes_arrive),
    ]
}

/// Makes a disk to write to and one to read, each with its own content.
pub fn make(scratch: &Path) -> Result<[PathBuf; 2]> {
    let paths = ["writable.img", "readonly.img"].map(|name| scratch.join(name));
    for (path, seed) in paths.iter().zip(1u64..) {
        let mut file = File::create(path).with_context(|| format!("Cannot make {}", path.display()))?;
        for block in 0..(SIZE_MIB as u64) << 8 {
            let word = (block << 8 | seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            file.write_all(&word.repeat(512))?;
        }
    }
    Ok(paths)
}

fn hash_on_host(path: &Path) -> Result<String> {
    let output =
        Command::new("sha256sum").stdin(File::open(path)?).output().context("Cannot start sha256sum")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn content_is_read(stand: &mut Stand<'_>) -> Result<()> {
    for (device, name) in [("/dev/vda", "writable.img"), ("/dev/vdb", "readonly.img")] {
        let seen = stand.a().must(format!("sha256sum < {device}"))?;
        let real = hash_on_host(&stand.scratch.join(name))?;
        ensure!(seen == real, "{device} reads as {seen}, not as {real}");
    }
    Ok(())
}

fn read_only(stand: &mut Stand<'_>) -> Result<()> {
    let before = hash_on_host(&stand.scratch.join("readonly.img"))?;
    let flag = stand.a().must("cat /sys/block/vdb/ro")?;
    ensure!(flag.trim() == "1", "The kernel takes /dev/vdb for writable");
    let write = stand.a().run("dd if=/dev/zero of=/dev/vdb bs=4096 count=1 oflag=sync")?;
    ensure!(!write.succeeded(), "A write to the read-only disk succeeded");
    ensure!(hash_on_host(&stand.scratch.join("readonly.img"))? == before, "The read-only disk has changed");
    Ok(())
}

fn writes_arrive(stand: &mut Stand<'_>) -> Result<()> {
    let written = stand.a().must(format!(
        "dd if=/dev/urandom of=/tmp/new bs=1M count={SIZE_MIB} 2> /dev/null && dd if=/tmp/new of=/dev/vda bs=64k && sync && sha256sum < /tmp/new"
    ))?;
    let again = stand.a().must("echo 3 > /proc/sys/vm/drop_caches; sha256sum < /dev/vda")?;
    ensure!(again == written, "The disk reads as {again}, not as {written}");
    let status =
        stand.guests.all_mut()[0].power_off(Duration::from_secs(180)).context("The VMM did not end")?;
    ensure!(status.code() == Some(0), "The VMM ended with {status}");
    let path = stand.scratch.join("writable.img");
    ensure!(fs::metadata(&path)?.len() == (SIZE_MIB as u64) << 20, "The disk has changed its size");
    let real = hash_on_host(&path)?;
    ensure!(real == written, "The host's file is {real}, not {written}");
    Ok(())
}
