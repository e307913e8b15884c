//! The cases, a file a topic.

mod acceptance;
mod addresses;
mod boot;
mod capture;
mod connections;
mod debian;
mod device;
mod direct;
mod disk;
mod fabric;
mod host_port;
mod inspect;
mod interrupts;
mod lifecycle;
mod memory;
mod migrate;
mod mirror;
mod network;
mod nvme;
mod objects;
mod own;
mod perftest;
mod programs;
mod pyverbs;
mod refused;
mod regions;
mod rxe;
mod verifier;

use std::path::Path;

use anyhow::{Context, Result};

use crate::guests::{Disk, Options};
use crate::provider::Provider;
use crate::setup::Setup;
use crate::suite::{Case, Soak, Stage};

/// All stages, in the order they run.
pub fn stages() -> Vec<Stage> {
    let pair = [
        boot::cases(),
        network::cases(),
        acceptance::cases(),
        capture::cases(),
        host_port::cases(),
        acceptance::lifecycle_cases(),
        boot::last_cases(),
    ];
    let mirrored_pair = [
        mirror::cases(),
        mirror::on_host(acceptance::cases()),
        mirror::on_host(acceptance::lifecycle_cases()),
        mirror::last_cases(),
    ];
    vec![
        stage("two guests", two_guests, pair.into()),
        stage("Debian's programs", debian_programs, vec![acceptance::debian_cases()]),
        stage(
            "two CPUs, bzImage, disks",
            one_guest,
            vec![boot::smp_cases(), interrupts::cases(), disk::cases()],
        ),
        stage("two guests that share memory", sharing_guests, vec![direct::cases(), migrate::cases()]),
        mirrored("mirror", two_guests, mirrored_pair.into()),
        mirrored(
            "Debian's programs on the mirror",
            debian_programs,
            vec![mirror::on_host(acceptance::debian_cases())],
        ),
        Stage {
            why_not: mirror::why_not,
            ..stage("tunnel", tunnelled_guests, vec![direct::tunnel_cases(), migrate::tunnel_cases()])
        },
        stage("peer is rdma_rxe", |setup, _| rxe::guests(setup, rxe::EVERYTHING), vec![rxe::cases()]),
        stage(
            "a router between",
            |setup, _| addresses::routed_guests(setup),
            vec![addresses::router_cases()],
        ),
        stage("none", no_guest, vec![own::cases(), fabric::cases()]),
        stage("2 GiB of memory", large_guest, vec![regions::cases()]),
        stage("full Debian", full_debian, vec![debian::cases()]),
        stage("newer kernel", newer_kernel, vec![boot::newer_cases()]),
        stage("huge pages", no_guest, vec![memory::cases()]),
    ]
}

/// Stages that take too long for every day.
pub fn soak_stages(what: Soak) -> Vec<Stage> {
    match what {
        Soak::Cm => on_both("two guests", two_guests, connections::soak_cases),
        Soak::Programs => [
            on_both("two guests", two_guests, perftest::cases),
            on_both("Debian's programs", debian_programs, nvme::soak_cases),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Soak::Wire => wire_stages(),
    }
}

/// Debian's rdma_rxe as the peer, on a good network and on networks that are bad each in its way.
fn wire_stages() -> Vec<Stage> {
    let on =
        |bad, cases| stage("peer is rdma_rxe", move |setup: &Setup, _: &Path| rxe::guests(setup, bad), cases);
    let first = on(rxe::EVERYTHING, vec![rxe::soak_cases(), rxe::bad_soak_cases(rxe::EVERYTHING)]);
    [first].into_iter().chain(rxe::ONE_THING.map(|bad| on(bad, vec![rxe::bad_soak_cases(bad)]))).collect()
}

fn stage(
    name: &'static str,
    options: impl Fn(&Setup, &Path) -> Result<Options> + 'static,
    cases: Vec<Vec<Case>>,
) -> Stage {
    let cases = cases.into_iter().flatten().collect();
    Stage { name, provider: Provider::Engine, options: Box::new(options), why_not: |_| None, cases }
}

/// A stage whose guests' programs have their objects on a device of the host.
fn mirrored(
    name: &'static str,
    options: impl Fn(&Setup, &Path) -> Result<Options> + 'static,
    cases: Vec<Vec<Case>>,
) -> Stage {
    let options = move |setup: &Setup, scratch: &Path| {
        Ok(Options { mirrored: Some(mirror::host_device()?), ..options(setup, scratch)? })
    };
    Stage { provider: Provider::Host(None), why_not: mirror::why_not, ..stage(name, options, cases) }
}

/// The same cases on the engine and on a device of the host.
fn on_both(
    name: &'static str,
    options: fn(&Setup, &Path) -> Result<Options>,
    cases: fn() -> Vec<Case>,
) -> Vec<Stage> {
    vec![stage(name, options, vec![cases()]), mirrored(name, options, vec![mirror::on_host(cases())])]
}

fn two_guests(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.initramfs.push(setup.stock.extra.clone());
    options.may_reboot = true;
    options.own_images = true;
    options.capture = true;
    Ok(options)
}

/// Two guests whose frames nobody captures: they may do without.
fn sharing_guests(setup: &Setup, _: &Path) -> Result<Options> {
    setup.options()
}

/// Two guests whose monitors have tunnels to each other by one device of the host.
fn tunnelled_guests(setup: &Setup, _: &Path) -> Result<Options> {
    let mut options = setup.options()?;
    options.tunnelled = Some(mirror::host_device()?);
    Ok(options)
}

/// Programs that need more of Debian than the small guest has; without systemd, which nothing here wants.
fn debian_programs(setup: &Setup, _: &Path) -> Result<Options> {
    let path = setup.debian.clone().context("The full system was not made")?;
    let mut options = setup.options()?;
    options.memory_mib = 768;
    options.may_reboot = true;
    options.disks = vec![Disk { path, guest: None }];
    options.command_line += " verbena.root=/dev/vda";
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
    options.nics.clear();
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
