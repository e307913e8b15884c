//! Guest memory from the host's pool of huge pages.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::boot::pingpong_in;
use crate::guests::{Guests, Options};
use crate::suite::{Case, Outcome, Stand};

/// Number of pages in the pool.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// Size of a page, in MiB.
const PAGE_MIB: u32 = 2;

pub fn cases() -> Vec<Case> {
    vec![Case::may_skip("memory/huge-pages-carry-a-guest-and-their-lack-is-named", huge_pages)]
}

fn huge_pages(stand: &mut Stand<'_>) -> Result<Outcome> {
    if !images::lab::is_inside() {
        return Ok(Outcome::Skipped(
            "It sizes the host's pool of huge pages, which it does in the lab only".into(),
        ));
    }
    let options = Options { count: 1, memory_mib: 384, huge_pages: true, ..stand.setup.options()? };
    fs::write(POOL, "0").context("Cannot empty the pool")?;
    let refusal = Guests::start(&options).err().context("A guest started without a huge page")?.to_string();
    ensure!(refusal.contains("raise /proc/sys/vm/nr_hugepages"), "It is refused without a remedy: {refusal}");

    let needed = options.memory_mib / PAGE_MIB;
    fs::write(POOL, needed.to_string()).context("Cannot fill the pool")?;
    let result = run_on(&options, needed);
    fs::write(POOL, "0").context("Cannot empty the pool")?;
    result.map(|()| Outcome::Passed)
}

fn run_on(options: &Options, needed: u32) -> Result<()> {
    ensure!(huge("HugePages_Free")? == needed, "The lab has no {needed} huge pages");
    let guests = Guests::start(options)?;
    // A page that nobody has touched yet is promised, not taken.
    let left = huge("HugePages_Free")? - huge("HugePages_Rsvd")?;
    ensure!(left == 0, "With the guest up, {left} huge pages of {needed} are left");
    pingpong_in(guests.a(), "-n 100 -c")
}

/// A number of pages out of the kernel's account.
fn huge(name: &str) -> Result<u32> {
    let account = fs::read_to_string("/proc/meminfo")?;
    let line = account.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|text| text.trim().parse().ok()).with_context(|| format!("The kernel does not tell {name}"))
}
