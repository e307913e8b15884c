//! The capture of a port that carried everything before.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::capture::{count, sample};
use crate::guests::{Guest, Nic};
use crate::suite::{Case, Outcome, Stand};

/// What tshark guesses of payloads; it calls those malformed that do not hold what it guessed.
const GUESSES: [&str; 9] = [
    "eth_over_ib",
    "fc_infiniband",
    "iser_infiniband",
    "lnet_ib",
    "mellanox_eoib",
    "rpcrdma_infiniband",
    "sdp_infiniband",
    "smb_direct_infiniband",
    "smcr_infiniband",
];
/// Frames of each kind that tshark is shown.
const OF_EACH_KIND: u32 = 10;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("capture/invariant-crc-of-every-frame-is-right", |stand| {
            stand.guests.all().iter().try_for_each(|guest| crc_is_right(stand, guest, 0))
        }),
        Case::may_skip("capture/tshark-decodes-roce-without-malformed-frame", |stand| {
            tshark_decodes(stand, stand.a(), 0)
        }),
    ]
}

/// Makes sure that all RoCE frames of a NIC had the right checksum.
pub fn crc_is_right(stand: &Stand<'_>, guest: &Guest, nic: Nic) -> Result<()> {
    let counts = count(&stand.guests.capture(guest, nic))?;
    ensure!(counts.roce > 0, "The capture of guest {} has no RoCE among {counts:?}", guest.name());
    ensure!(counts.wrong_crc == 0, "The capture of guest {} has {counts:?}", guest.name());
    Ok(())
}

/// Makes sure that tshark understands the RoCE frames of a NIC.
pub fn tshark_decodes(stand: &Stand<'_>, guest: &Guest, nic: Nic) -> Result<Outcome> {
    if Command::new("tshark").arg("--version").output().is_err() {
        return Ok(Outcome::Skipped("tshark is not installed on the host".into()));
    }
    let capture = stand.guests.capture(guest, nic);
    // Some of every kind are enough and bound the time: the dissector is slow where the processor is emulated.
    let slice = stand.scratch.join("sample.pcapng");
    let kinds = sample(&capture, OF_EACH_KIND, &slice)?;
    let wanted = kinds.values().sum::<u32>() as usize;
    ensure!(wanted > 0, "There is no RoCE in {}", capture.display());
    let decoded = tshark(&slice, "infiniband.bth", &[])?.lines().count();
    ensure!(decoded == wanted, "tshark decodes {decoded} of {wanted} frames of these kinds: {kinds:?}");
    let malformed = tshark(&slice, "_ws.malformed", &["-V"])?;
    ensure!(malformed.is_empty(), "tshark finds malformed frames, of which the first are: {malformed:.4000}");
    Ok(Outcome::Passed)
}

/// What tshark prints of the frames that match a display filter.
fn tshark(capture: &Path, filter: &str, more: &[&str]) -> Result<String> {
    let output = Command::new("tshark")
        .args(["-n", "-Y", filter, "-r"])
        .arg(capture)
        .args(GUESSES.iter().flat_map(|guess| ["--disable-heuristic", guess]))
        .args(more)
        .output()
        .context("Cannot start tshark")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tshark ended with {}: {complaint}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
