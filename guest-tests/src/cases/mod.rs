//! The cases, a file a topic.

mod boot;
mod capture;
mod debian;
mod device;
mod disk;
mod inspect;
mod interrupts;
mod lifecycle;
mod memory;
mod network;
mod own;
mod programs;
mod regions;
mod verifier;

use std::path::Path;

use anyhow::{Context, Result};

use crate::guests::{Disk, Options};
use crate::setup::Setup;
use crate::suite::{Case, Stage};

/// All stages, in the order they run.
pub fn stages() -> Vec<Stage> {
    let pair = [
        boot::cases(),
        network::cases(),
        device::cases(),
        inspect::cases(),
        programs::cases(),
        verifier::cases(),
        capture::cases(),
        lifecycle::cases(),
        boot::last_cases(),
    ];
    vec![
        Stage {
            name: "two guests",
            options: Box::new(two_guests),
            cases: pair.into_iter().flatten().collect(),
        },
        Stage {
            name: "two CPUs, bzImage, disks",
            options: Box::new(one_guest),
            cases: [boot::smp_cases(), interrupts::cases(), disk::cases()].into_iter().flatten().collect(),
        },
        Stage {
            name: "none",
            options: Box::new(no_guest),
            cases: own::cases().into_iter().chain(unless_in_lab(memory::cases())).collect(),
        },
        Stage {
            name: "2 GiB of memory",
            options: Box::new(large_guest),
            cases: unless_in_lab(regions::cases()),
        },
        Stage { name: "full Debian", options: Box::new(full_debian), cases: unless_in_lab(debian::cases()) },
        Stage { name: "newer kernel", options: Box::new(newer_kernel), cases: boot::newer_cases() },
    ]
}

/// Leaves out, and says so, what has been seen to hang or fail in the lab (docs/testing.md).
fn unless_in_lab(cases: Vec<Case>) -> Vec<Case> {
    if !images::lab::is_inside() {
        return cases;
    }
    cases.iter().for_each(|case| {
        println!("TEST {} SKIP it hangs or fails in the lab; run it with hardware virtualisation", case.name)
    });
    Vec::new()
}

fn two_guests(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.initramfs.push(setup.stock.extra.clone());
    options.may_reboot = true;
    options.own_images = true;
    options.capture = true;
    Ok(options)
}

fn one_guest(setup: &Setup, scratch: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.count = 1;
    options.cpus = 2;
    options.kernel.clone_from(&setup.stock.bzimage);
    options.disks = disk::make(scratch)?
        .into_iter()
        .zip([Some('a'), None])
        .map(|(path, guest)| Disk { path, guest })
        .collect();
    Ok(options)
}

/// For cases that start guests themselves.
fn no_guest(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.count = 0;
    options.nics = 0;
    Ok(options)
}

fn large_guest(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.count = 1;
    options.memory_mib = 2048;
    Ok(options)
}

fn full_debian(setup: &Setup, _: &Path) -> Result<Options> {
    let path = setup.debian.clone().context("The full system was not made")?;
    let mut options = setup.options()?;
    options.count = 1;
    options.memory_mib = 1024;
    options.disks = vec![Disk { path, guest: None }];
    options.command_line += " verbena.root=/dev/vda verbena.init=/sbin/init";
    Ok(options)
}

fn newer_kernel(setup: &Setup, _: &Path) -> Result<Options> {
    let image = setup.newer.as_ref().context("The newer kernel was not made")?;
    let mut options = setup.options_with(image)?;
    options.count = 1;
    Ok(options)
}
