//! Memory regions at the edge of what the guest's driver can describe: a directory of 512 tables of 512 pages.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::boot::pingpong_to_itself;
use crate::guests::Task;
use crate::suite::{Case, Stand};

/// Bytes of the largest region.
const LARGEST: u64 = 1 << 30;
/// How long the guest may take to make, pin and register that much memory.
const TIMEOUT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("regions/1-GiB-is-registered", largest),
        Case::new("regions/one-byte-more-is-refused-and-does-no-harm", one_byte_more),
    ]
}

fn register(bytes: u64) -> Task {
    Task::shell(format!("verbena-verify --register {bytes}")).timeout(TIMEOUT)
}

fn largest(stand: &mut Stand<'_>) -> Result<()> {
    // A second time, since the first region has to be gone without a trace.
    for _ in 0..2 {
        println!("{}", stand.a().must(register(LARGEST))?.trim_end());
    }
    Ok(())
}

fn one_byte_more(stand: &mut Stand<'_>) -> Result<()> {
    let output = stand.a().run(register(LARGEST + 1))?;
    ensure!(output.status() == 1, "It ended with status {}: {}", output.status(), output.out);
    ensure!(output.err.contains("Invalid argument"), "The reason is not the driver's: {}", output.err);
    pingpong_to_itself(stand)
}
