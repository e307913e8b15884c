//! What it costs to register memory, and to look an address up in what was registered.
//!
//! A guest's driver names the pages of a region in a page directory, 8 bytes a page; reading that is the least that anybody
//! has to do. So the reference, taken in the same run, is a copy of as many bytes. Medians of several runs, and the worst. Words on
//! the command line choose the rows whose names contain one of them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_model::net::MacAddr;
use pvrdma::Config;
use pvrdma::test_utils::{Guest, Machine, MachineConfig};
use pvrdma_driver::{Driver, PageDir, Pd};
use pvrdma_spec::{PAGE_SIZE, version};
use roce::{RoceConfig, RoceProvider};

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
/// Guest memory. Regions are longer: their pages repeat, which costs no less.
const RAM: u64 = 64 << 20;
/// Virtual address of the regions.
const VA: u64 = 0x7f00_0000_0000;
/// Local write, remote write, remote read.
const ACCESS: u32 = 7;
const RUNS: usize = 15;

fn main() {
    println!("{:44} {:>13} {:>13}", "", "median", "worst");
    for mib in [1, 64, 1024] {
        let pages = mib * (1 << 20) / PAGE_SIZE;
        let (from, mut to) = (vec![1u8; (pages * 8) as usize], vec![0u8; (pages * 8) as usize]);
        row(&format!("reference: copy of {pages} page addresses"), || {
            let start = Instant::now();
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            start.elapsed()
        });
        // Page 0 is nobody's.
        let address = |number: u64| (1 + number % (RAM / PAGE_SIZE - 1)) * PAGE_SIZE;
        let scattered = |page: u64| address(page * 7919);
        let in_a_row = |page: u64| address(page);
        region(&format!("{mib} MiB of scattered pages"), &(0..pages).map(scattered).collect::<Vec<_>>());
        region(&format!("{mib} MiB of pages in a row"), &(0..pages).map(in_a_row).collect::<Vec<_>>());
    }
}

/// Registers a region of these pages, again and again.
fn region(name: &str, pages: &[u64]) {
    let (driver, pd) = device();
    let dir = PageDir::new(driver.platform(), pages);
    let bytes = pages.len() as u64 * PAGE_SIZE;
    row(&format!("register {name}"), || {
        let start = Instant::now();
        let region = driver.register(pd, ACCESS, VA, bytes, &dir).expect("region registers");
        let took = start.elapsed();
        driver.deregister(region).expect("region goes");
        took
    });
    row(&format!("deregister {name}"), || {
        let region = driver.register(pd, ACCESS, VA, bytes, &dir).expect("region registers");
        let start = Instant::now();
        driver.deregister(region).expect("region goes");
        start.elapsed()
    });
}

fn device() -> (Driver<Guest>, Pd) {
    let config = MachineConfig { device: Config::new(MAC), ram: RAM, ..MachineConfig::default() };
    let guest = Machine::boot(config, |ram| {
        let link = Arc::new(host_io::loopback::Unplugged::new(1500));
        Box::new(RoceProvider::new(RoceConfig::new(MAC), ram, link).expect("engine starts"))
    });
    let driver = Driver::probe(guest, version::QP_HANDLE).expect("driver binds");
    let context = driver.open(1).expect("context opens");
    let pd = driver.create_pd(context).expect("protection domain comes");
    (driver, pd)
}

/// Prints the median and the worst of what `call` says it took, if the row is chosen.
fn row(name: &str, mut call: impl FnMut() -> Duration) {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !chosen.is_empty() && !chosen.iter().any(|word| name.contains(word)) {
        return;
    }
    let mut runs: Vec<_> = (0..RUNS).map(|_| call()).collect();
    runs.sort();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{name:44} {:10.1} µs {:10.1} µs", micros(runs[RUNS / 2]), micros(runs[RUNS - 1]));
}
