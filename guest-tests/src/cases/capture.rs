//! The capture of a port that carried everything before.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::capture::count;
use crate::suite::{Case, Outcome, Stand};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("capture/invariant-crc-of-every-frame-is-right", crc_is_right),
        Case::may_skip("capture/tshark-decodes-roce-without-malformed-frame", tshark_decodes),
    ]
}

fn crc_is_right(stand: &mut Stand<'_>) -> Result<()> {
    for guest in stand.guests.all() {
        let path = stand.guests.capture(guest, 0);
        let counts = count(&path)?;
        ensure!(counts.roce > 0, "The capture of guest {} has no RoCE among {counts:?}", guest.name());
        ensure!(counts.wrong_crc == 0, "The capture of guest {} has {counts:?}", guest.name());
    }
    Ok(())
}

fn tshark_decodes(stand: &mut Stand<'_>) -> Result<Outcome> {
    if Command::new("tshark").arg("--version").output().is_err() {
        return Ok(Outcome::Skipped("tshark is not installed on the host".into()));
    }
    let capture = stand.guests.capture(stand.a(), 0);
    // A slice is enough and bounds the time: the dissector is slow where the processor is emulated.
    let roce = frames(&capture, "infiniband")?;
    ensure!(roce > 0, "tshark finds no RoCE in {}", capture.display());
    let malformed = frames(&capture, "_ws.malformed")?;
    ensure!(malformed == 0, "tshark finds {malformed} malformed frames of {roce}");
    Ok(Outcome::Passed)
}

/// How many of the first frames of a capture match a display filter.
fn frames(capture: &Path, filter: &str) -> Result<usize> {
    const SLICE: &str = "1000";
    let output = Command::new("tshark")
        .args(["-n", "-c", SLICE, "-Y", filter, "-T", "fields", "-e", "frame.number", "-r"])
        .arg(capture)
        .output()
        .context("Cannot start tshark")?;
    // Its status is of no use here: a capture that is still being written ends in the middle of a block.
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}
