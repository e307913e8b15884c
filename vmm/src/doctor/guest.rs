//! The files of a guest: its root directory, mounted or unpacked.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Finding, check_modules};

/// Where distributions keep libraries.
pub(super) const LIBRARY_DIRECTORIES: [&str; 5] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64"];
/// Bytes of locked memory below which programs fail to register buffers.
const LITTLE_MEMLOCK_KIB: u64 = 8192;

/// Checks a guest's root directory: modules of each kernel, and what programs need.
pub fn check_root(root: &Path) -> Vec<Finding> {
    let mut findings: Vec<_> = kernels(root).iter().flat_map(|tree| check_modules(tree)).collect();
    if findings.is_empty() {
        findings.push(Finding::problem(
            "Guest kernel",
            format!("{} has no lib/modules", root.display()),
            "Give the guest's root directory: a mounted image, or an unpacked initramfs (unmkinitramfs).",
        ));
    }
    findings.push(provider(root));
    findings.push(memlock(root));
    findings
}

/// Module trees, by release.
fn kernels(root: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(root.join("lib/modules")).or_else(|_| fs::read_dir(root.join("usr/lib/modules")));
    let mut trees: Vec<_> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    trees.retain(|tree| tree.is_dir());
    trees.sort();
    trees
}

/// User space finds a device by a file that names its library, and loads that library by name and private version.
fn provider(root: &Path) -> Finding {
    const SUBJECT: &str = "Guest user space";
    const REMEDY: &str = "Install the guest's rdma-core packages: ibverbs-providers on Debian and Ubuntu, libibverbs elsewhere.";
    let names = library_names(root);
    let has = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    if !has("libibverbs.so") {
        return Finding::note(SUBJECT, "no libibverbs: verbs programs must bring their own", REMEDY);
    }
    if !has("libvmw_pvrdma-rdmav") {
        return Finding::problem(
            SUBJECT,
            "libibverbs has no provider for vmw_pvrdma: \"No IB devices found\"",
            REMEDY,
        );
    }
    if !root.join("etc/libibverbs.d/vmw_pvrdma.driver").exists() {
        let state =
            "/etc/libibverbs.d/vmw_pvrdma.driver is missing: libibverbs does not look for the provider";
        return Finding::problem(SUBJECT, state, REMEDY);
    }
    Finding::good(SUBJECT, "libibverbs and its provider for vmw_pvrdma are there")
}

fn library_names(root: &Path) -> Vec<String> {
    LIBRARY_DIRECTORIES
        .iter()
        .flat_map(|directory| [root.join(directory), root.join(directory).join("libibverbs")])
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Users other than root may register only as much memory as they may lock.
fn memlock(root: &Path) -> Finding {
    const SUBJECT: &str = "Guest memory lock limit";
    let dropped_in = fs::read_dir(root.join("etc/security/limits.d")).into_iter().flatten().flatten();
    let files = dropped_in.map(|entry| entry.path()).chain([root.join("etc/security/limits.conf")]);
    let texts = files.filter_map(|path| fs::read_to_string(path).ok());
    if texts.into_iter().any(|text| text.lines().any(raises_memlock)) {
        return Finding::good(SUBJECT, "is raised in /etc/security");
    }
    Finding::note(
        SUBJECT,
        "is the distribution's, often too low for users other than root: ibv_reg_mr then fails with ENOMEM",
        "Put `* - memlock unlimited` into a file of the guest's /etc/security/limits.d; for services, \
         LimitMEMLOCK=infinity into the unit.",
    )
}

/// Whether a line of limits.conf gives somebody more than little.
fn raises_memlock(line: &str) -> bool {
    let words: Vec<_> = line.split('#').next().unwrap_or("").split_whitespace().collect();
    match words[..] {
        [_, "soft" | "-", "memlock", "unlimited" | "infinity" | "-1"] => true,
        [_, "soft" | "-", "memlock", kib] => kib.parse::<u64>().is_ok_and(|kib| kib > LITTLE_MEMLOCK_KIB),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    const PROVIDER: &str = "usr/lib/x86_64-linux-gnu/libibverbs/libvmw_pvrdma-rdmav34.so";
    const DRIVER: &str = "etc/libibverbs.d/vmw_pvrdma.driver";

    #[test]
    fn provider_needs_library_and_driver_file() {
        let level = |files: &[&str]| provider(root(files).path()).level;
        assert_eq!(level(&[]), Level::Note);
        assert_eq!(level(&[LIBRARY, DRIVER]), Level::Problem);
        assert_eq!(level(&[LIBRARY, PROVIDER]), Level::Problem);
        assert_eq!(level(&[LIBRARY, PROVIDER, DRIVER]), Level::Good);
    }

    #[test]
    fn limits_are_read_as_pam_does() {
        for line in ["* - memlock unlimited", "  @rdma soft memlock 65536 # for MPI"] {
            assert!(raises_memlock(line), "{line}");
        }
        for line in
            ["#* - memlock unlimited", "* - memlock 64", "* hard memlock unlimited", "* - nofile 99999", ""]
        {
            assert!(!raises_memlock(line), "{line}");
        }
    }

    #[test]
    fn root_without_kernel_is_a_problem() {
        let findings = check_root(root(&[LIBRARY]).path());
        assert_eq!((findings[0].level, findings.len()), (Level::Problem, 3));
    }
}
