//! The kernel modules of a guest.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::Finding;
use super::kernel_config::{KernelConfig, Setting};

/// Files looked at in a module tree at most; distributions have some ten thousand.
const MAX_FILES: usize = 200_000;

/// Where modprobe(8) has its configuration.
pub(super) const MODPROBE_DIRECTORIES: [&str; 3] = ["etc/modprobe.d", "lib/modprobe.d", "usr/lib/modprobe.d"];

/// A module that RDMA in the guest needs.
struct Needed {
    name: &'static str,
    option: &'static str,
    /// What does not work without it.
    consequence: &'static str,
}

const NEEDED: [Needed; 5] = [
    Needed {
        name: "vmxnet3",
        option: "CONFIG_VMXNET3",
        consequence: "there is no network interface, and vmw_pvrdma does not bind without one",
    },
    Needed {
        name: "vmw_pvrdma",
        option: "CONFIG_INFINIBAND_VMWARE_PVRDMA",
        consequence: "there is no RDMA device",
    },
    Needed { name: "ib_core", option: "CONFIG_INFINIBAND", consequence: "there is no RDMA at all" },
    Needed {
        name: "ib_uverbs",
        option: "CONFIG_INFINIBAND_USER_ACCESS",
        consequence: "programs see no RDMA device: /dev/infiniband/uverbs0 is missing",
    },
    Needed {
        name: "rdma_ucm",
        // CONFIG_INFINIBAND_ADDR_TRANS adds it, but only says whether; this one says as what.
        option: "CONFIG_INFINIBAND_USER_ACCESS",
        consequence: "programs cannot use rdma_cm: /dev/infiniband/rdma_cm is missing",
    },
];

/// Checks a module tree, `…/lib/modules/RELEASE`.
pub fn check_modules(tree: &Path) -> Vec<Finding> {
    let modules = match Modules::read(tree) {
        Ok(modules) => modules,
        Err(error) => {
            let state = format!("{} cannot be read: {error}", tree.display());
            let remedy = "Give the directory of one kernel, DIR/lib/modules/RELEASE.";
            return vec![Finding::problem("Guest modules", state, remedy)];
        }
    };
    if modules.files.is_empty() && modules.built_in.is_empty() {
        let state = format!("{} holds no kernel modules", tree.display());
        let remedy = "Give the directory of one kernel, DIR/lib/modules/RELEASE.";
        return vec![Finding::problem("Guest modules", state, remedy)];
    }
    let config = KernelConfig::beside(tree);
    let mut findings: Vec<_> = NEEDED.iter().map(|needed| judge(needed, &modules, config.as_ref())).collect();
    findings.extend(order(&modules));
    findings
}

/// What a module tree has.
struct Modules {
    files: BTreeSet<String>,
    built_in: BTreeSet<String>,
    soft_dependencies: String,
}

impl Modules {
    fn read(tree: &Path) -> std::io::Result<Self> {
        let mut files = BTreeSet::new();
        let mut directories = vec![tree.to_owned()];
        let mut left = MAX_FILES;
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                left = left.checked_sub(1).ok_or_else(|| std::io::Error::other("it has too many files"))?;
                // Links, like the one to the kernel's headers, are not followed.
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else {
                    files.extend(module_name(&entry.file_name().to_string_lossy()));
                }
            }
        }
        let text = |name: &str| fs::read_to_string(tree.join(name)).unwrap_or_default();
        let built_in = text("modules.builtin").lines().filter_map(module_name).collect();
        let configuration = modprobe_configuration(tree);
        Ok(Self { files, built_in, soft_dependencies: text("modules.softdep") + "\n" + &configuration })
    }
}

/// Root directories that a module tree `…/lib/modules/RELEASE` may belong to: with `/usr` merged it is one directory deeper.
pub(super) fn roots(tree: &Path) -> impl Iterator<Item = &Path> {
    tree.ancestors().skip(3).take(2)
}

/// What modprobe(8) would read, of any name.
fn modprobe_configuration(tree: &Path) -> String {
    roots(tree)
        .flat_map(|root| MODPROBE_DIRECTORIES.map(|directory| root.join(directory)))
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "conf"))
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .map(|text| text + "\n")
        .collect()
}

/// The module in a file `…/some-name.ko`, compressed or not.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let plain = [".xz", ".gz", ".zst"].iter().find_map(|end| file.strip_suffix(end)).unwrap_or(file);
    Some(plain.strip_suffix(".ko")?.replace('-', "_"))
}

fn judge(needed: &Needed, modules: &Modules, config: Option<&KernelConfig>) -> Finding {
    let Needed { name, option, consequence } = needed;
    let subject = format!("Guest module {name}");
    if modules.files.contains(*name) {
        return Finding::good(&subject, "is there");
    }
    if modules.built_in.contains(*name) {
        return Finding::good(&subject, "is built into the kernel");
    }
    match config.map(|config| config.get(option)) {
        Some(Setting::BuiltIn) => Finding::good(&subject, format!("is built into the kernel ({option}=y)")),
        Some(Setting::Module) => Finding::problem(
            &subject,
            format!("is missing although the kernel has {option}=m: {consequence}"),
            "Install the package with the rest of this kernel's modules (linux-modules-extra-RELEASE on Ubuntu, \
             kernel-modules-extra or kernel-modules-internal on Fedora and RHEL), or put it into the initramfs.",
        ),
        Some(Setting::Unset) => Finding::problem(
            &subject,
            format!("is missing, {option} is not set: {consequence}"),
            build_it(name),
        ),
        None => Finding::problem(&subject, format!("is missing: {consequence}"), build_it(name)),
    }
}

fn build_it(name: &str) -> &'static str {
    if name == "vmw_pvrdma" {
        "Debian's kernels leave it out. Build it from linux-source of the same version: `make -C \
         /lib/modules/RELEASE/build M=…/drivers/infiniband/hw/vmw_pvrdma CONFIG_INFINIBAND_VMWARE_PVRDMA=m modules`; \
         elsewhere install the kernel's extra modules."
    } else {
        "Take the distribution's full kernel: cloud and minimal flavours leave out what virtual hardware does not \
         usually have."
    }
}

/// The RDMA driver gives up for good when its network interface has no driver yet.
fn order(modules: &Modules) -> Option<Finding> {
    let both = ["vmw_pvrdma", "vmxnet3"].iter().all(|name| modules.files.contains(*name));
    let told = modules
        .soft_dependencies
        .lines()
        .any(|line| line.starts_with("softdep vmw_pvrdma") && line.contains("vmxnet3"));
    (both && !told).then(|| {
        Finding::note(
            "Guest module order",
            "nothing makes vmxnet3 load before vmw_pvrdma, which does not bind otherwise",
            "Put `softdep vmw_pvrdma pre: vmxnet3` into a file of the guest's /etc/modprobe.d.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    /// A root directory with a kernel that has these files in its tree.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn check(root: &tempfile::TempDir) -> Vec<Finding> {
        check_modules(&root.path().join("lib/modules/6.1"))
    }

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    const REST: [(&str, &str); 2] = [
        ("lib/modules/6.1/kernel/infiniband/core/ib_core.ko.zst", ""),
        (
            "lib/modules/6.1/modules.builtin",
            "kernel/infiniband/ib_uverbs.ko\nkernel/infiniband/rdma_ucm.ko\n",
        ),
    ];

    #[test]
    fn complete_tree_is_good_whatever_the_compression() {
        let files = [
            ("lib/modules/6.1/kernel/net/vmxnet3/vmxnet3.ko.xz", ""),
            ("lib/modules/6.1/updates/vmw-pvrdma.ko", ""),
            ("lib/modules/6.1/modules.softdep", "softdep vmw_pvrdma pre: vmxnet3\n"),
        ];
        let findings = check(&root(&[&files[..], &REST[..]].concat()));
        assert_eq!(levels(&findings), [Level::Good; 5], "{findings:?}");
        let findings = check(&root(&[&files[..2], &REST[..]].concat()));
        assert_eq!(findings[5].level, Level::Note);
        let remedied = ("etc/modprobe.d/rdma.conf", "softdep vmw_pvrdma pre: vmxnet3");
        let findings = check(&root(&[&files[..2], &[remedied], &REST[..]].concat()));
        assert_eq!(levels(&findings), [Level::Good; 5], "{findings:?}");
    }

    #[test]
    fn missing_driver_names_the_option_and_the_way_to_get_it() {
        let vmxnet3 = ("lib/modules/6.1/vmxnet3.ko", "");
        let with = |config: &str| {
            let files = [&[vmxnet3, ("boot/config-6.1", config)][..], &REST[..]].concat();
            check(&root(&files)).swap_remove(1)
        };
        let debian = with("# CONFIG_INFINIBAND_VMWARE_PVRDMA is not set\n");
        assert_eq!(debian.level, Level::Problem);
        assert!(debian.state.contains("CONFIG_INFINIBAND_VMWARE_PVRDMA is not set"), "{debian}");
        assert!(debian.remedy.contains("linux-source"), "{debian}");
        let ubuntu = with("CONFIG_INFINIBAND_VMWARE_PVRDMA=m\n");
        assert_eq!(ubuntu.level, Level::Problem);
        assert!(ubuntu.remedy.contains("linux-modules-extra"), "{ubuntu}");
        assert_eq!(with("CONFIG_INFINIBAND_VMWARE_PVRDMA=y\n").level, Level::Good);
    }

    #[test]
    fn module_is_not_taken_for_built_in_because_of_an_option_that_is_yes_or_no() {
        let config = "CONFIG_INFINIBAND_USER_ACCESS=m\nCONFIG_INFINIBAND_ADDR_TRANS=y\n";
        let findings = check(&root(&[("lib/modules/6.1/vmxnet3.ko", ""), ("boot/config-6.1", config)]));
        let rdma_ucm = &findings[4];
        assert_eq!((rdma_ucm.subject.as_str(), rdma_ucm.level), ("Guest module rdma_ucm", Level::Problem));
    }

    #[test]
    fn directory_that_is_no_module_tree_is_a_problem() {
        let empty = root(&[("lib/modules/6.1/readme", "")]);
        assert_eq!(levels(&check(&empty)), [Level::Problem]);
        assert_eq!(levels(&check_modules(Path::new("/does/not/exist"))), [Level::Problem]);
    }
}
