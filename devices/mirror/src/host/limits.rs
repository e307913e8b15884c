//! Limits of the process that are too low for a guest's memory.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A region of scattered pages takes one mapping a page.
const PAGE: u64 = 4096;
/// Mappings the rest of the process may have.
const OTHER_MAPPINGS: u64 = 1024;

/// What the limits on locked memory and on mappings keep a guest with `ram` bytes from registering, each with its remedy.
/// Raises the first one as far as the process may.
pub fn warnings(ram: u64) -> Vec<String> {
    let mut found = Vec::new();
    let mut locked = getrlimit(Resource::Memlock);
    if locked.current < locked.maximum.or(Some(u64::MAX)) {
        let raised = Rlimit { current: locked.maximum, maximum: locked.maximum };
        if setrlimit(Resource::Memlock, raised).is_ok() {
            locked = raised;
        }
    }
    if let Some(limit) = locked.current.filter(|limit| *limit < ram) {
        found.push(format!(
            "This process may lock {} MiB of memory, but the guest could register {} MiB: raise the limit (ulimit -l \
             unlimited, or LimitMEMLOCK=infinity in a systemd unit), or registrations of the guest fail",
            limit >> 20,
            ram >> 20
        ));
    }
    let wanted = ram / PAGE + OTHER_MAPPINGS;
    let allowed = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    if let Some(limit) =
        allowed.and_then(|text| text.trim().parse().ok()).filter(|limit: &u64| *limit < wanted)
    {
        found.push(format!(
            "This process may have {limit} mappings, and a region of scattered guest pages takes one a page: with sysctl -w \
             vm.max_map_count={wanted} the guest could register all of its memory"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_too_large_for_any_limit_is_told_of_each_with_its_remedy() {
        let found = warnings(1 << 60).join("\n");
        assert!(found.contains("sysctl -w vm.max_map_count="), "{found}");
        if getrlimit(Resource::Memlock).current.is_some() {
            assert!(found.contains("ulimit -l"), "{found}");
        }
        assert!(warnings(0).is_empty());
    }
}
