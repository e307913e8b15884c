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
mod mirror;
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
        programs::cases("programs"),
        verifier::cases(),
        capture::cases(),
        lifecycle::cases(),
        boot::last_cases(),
    ];
    let stage = |name, options, cases: Vec<Vec<Case>>| Stage {
        name,
        options,
        why_not: |_| None,
        cases: cases.into_iter().flatten().collect(),
    };
    vec![
        stage("two guests", Box::new(two_guests), pair.into()),
        stage(
            "two CPUs, bzImage, disks",
            Box::new(one_guest),
            vec![boot::smp_cases(), interrupts::cases(), disk::cases()],
        ),
        Stage {
            why_not: mirror::why_not,
            ..stage("mirror", Box::new(mirrored_guests), vec![mirror::cases(), mirror::programs()])
        },
        stage("none", Box::new(no_guest), vec![own::cases()]),
        stage("2 GiB of memory", Box::new(large_guest), vec![regions::cases()]),
        stage("full Debian", Box::new(full_debian), vec![debian::cases()]),
        stage("newer kernel", Box::new(newer_kernel), vec![boot::newer_cases()]),
        stage("huge pages", Box::new(no_guest), vec![memory::cases()]),
    ]
}

fn two_guests(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.initramfs.push(setup.stock.extra.clone());
    options.may_reboot = true;
    options.own_images = true;
    options.capture = true;
    Ok(options)
}

/// Two guests whose programs' objects are mirrored onto one device of the host.
fn mirrored_guests(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.initramfs.push(setup.stock.extra.clone());
    options.mirrored = Some(mirror::host_device()?);
    options.may_reboot = true;
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
