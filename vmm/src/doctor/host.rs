//! What the host has.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::kvm::{KvmAbsence, open_kvm};

/// What the judgement needs to know of a host.
struct Facts {
    kvm: Result<(), KvmAbsence>,
    /// Whether the processor says that it can virtualise; `None` when it cannot be told.
    virtualisation: Option<bool>,
    /// Bytes that may be locked; `None` without limit.
    memlock: Option<u64>,
    /// Huge pages, and how many of them are free.
    huge_pages: (u64, u64),
    tun: io::Result<()>,
    rdma_devices: Vec<String>,
}

/// Checks this host.
pub fn check_host() -> Vec<Finding> {
    judge(&Facts {
        kvm: open_kvm().map(drop),
        virtualisation: fs::read_to_string("/proc/cpuinfo").ok().map(|text| can_virtualise(&text)),
        memlock: getrlimit(Resource::Memlock).current,
        huge_pages: fs::read_to_string("/proc/meminfo").map(|text| huge_pages(&text)).unwrap_or_default(),
        tun: OpenOptions::new().read(true).write(true).open("/dev/net/tun").map(drop),
        rdma_devices: names_in(Path::new("/sys/class/infiniband")),
    })
}

fn judge(facts: &Facts) -> Vec<Finding> {
    vec![kvm(facts), memlock(facts), huge_page_pool(facts), tun(facts), rdma(facts)]
}

fn kvm(facts: &Facts) -> Finding {
    const SUBJECT: &str = "KVM";
    match (&facts.kvm, facts.virtualisation) {
        (Ok(()), _) => Finding::good(SUBJECT, "/dev/kvm can be used"),
        (Err(KvmAbsence::Missing), Some(false)) => Finding::problem(
            SUBJECT,
            "/dev/kvm does not exist, and the processor shows neither svm nor vmx",
            "Enable virtualisation in the firmware, or nested virtualisation if this is a virtual machine; without \
             it, guests run in the lab (`./dev lab`).",
        ),
        (Err(absence), _) => Finding::problem(SUBJECT, absence.state(), absence.remedy()),
    }
}

fn memlock(facts: &Facts) -> Finding {
    let limit = match facts.memlock {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    // Said because it is what people know to be wrong with RDMA; it is the guest's limit that counts.
    Finding::good(
        "Locked memory",
        format!(
            "limit {limit}; enough, since the RDMA engine pins nothing (what counts is the guest's own `ulimit -l`)"
        ),
    )
}

fn huge_page_pool(facts: &Facts) -> Finding {
    const SUBJECT: &str = "Huge pages";
    match facts.huge_pages {
        (0, _) => Finding::note(
            SUBJECT,
            "none reserved",
            "Only --memory hugepages=on needs them: `sysctl vm.nr_hugepages=N` reserves N of 2 MiB.",
        ),
        (total, free) => Finding::good(SUBJECT, format!("{free} of {total} free")),
    }
}

fn tun(facts: &Facts) -> Finding {
    const SUBJECT: &str = "TUN/TAP";
    match &facts.tun {
        Ok(()) => Finding::good(SUBJECT, "/dev/net/tun can be used"),
        Err(error) => Finding::note(
            SUBJECT,
            format!("/dev/net/tun: {error}"),
            "Only link=tap: needs it (`modprobe tun`, and a tap interface made for your user); link=switch: works \
             without.",
        ),
    }
}

fn rdma(facts: &Facts) -> Finding {
    const SUBJECT: &str = "Host RDMA devices";
    let state = match &facts.rdma_devices[..] {
        [] => "none; none needed".to_owned(),
        devices => format!("{}; used with provider=host only (--device checks one)", devices.join(", ")),
    };
    Finding::good(SUBJECT, state)
}

fn can_virtualise(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.flat_map(str::split_whitespace).any(|flag| flag == "svm" || flag == "vmx")
}

fn huge_pages(meminfo: &str) -> (u64, u64) {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    (value("HugePages_Total:"), value("HugePages_Free:"))
}

pub(super) fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn facts() -> Facts {
        Facts {
            kvm: Ok(()),
            virtualisation: Some(true),
            memlock: Some(8 << 20),
            huge_pages: (10, 4),
            tun: Ok(()),
            rdma_devices: Vec::new(),
        }
    }

    #[test]
    fn host_with_everything_is_good() {
        assert!(judge(&facts()).iter().all(|finding| finding.level == Level::Good));
    }

    #[test]
    fn each_way_kvm_is_missing_has_its_own_remedy() {
        let with = |absence, virtualisation| kvm(&Facts { kvm: Err(absence), virtualisation, ..facts() });
        let findings = [
            with(KvmAbsence::Missing, Some(false)),
            with(KvmAbsence::Missing, Some(true)),
            with(KvmAbsence::Forbidden, Some(true)),
        ];
        for (finding, remedy) in findings.iter().zip(["lab", "kvm_intel", "usermod -aG kvm"]) {
            assert_eq!(finding.level, Level::Problem);
            assert!(finding.remedy.contains(remedy), "{finding}");
        }
    }

    #[test]
    fn what_only_some_uses_need_is_no_problem() {
        let tun = Err(io::ErrorKind::NotFound.into());
        let findings = judge(&Facts { tun, huge_pages: (0, 0), ..facts() });
        assert_eq!(findings.iter().filter(|finding| finding.level == Level::Note).count(), 2);
        assert!(findings.iter().all(|finding| finding.level != Level::Problem));
    }

    #[test]
    fn kernel_files_are_read_as_they_are() {
        assert!(can_virtualise("processor\t: 0\nflags\t\t: fpu vme svm sse\n"));
        assert!(!can_virtualise("flags\t\t: fpu vmext\nbugs\t\t: vmx svm\n"));
        assert_eq!(
            huge_pages("MemTotal: 1 kB\nHugePages_Total:      12\nHugePages_Free:        3\n"),
            (12, 3)
        );
        assert_eq!(huge_pages(""), (0, 0));
    }
}
