//! What this machine must have, and what it can do.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use crate::cache::Cache;
use crate::command;
use crate::error::{Error, Result};

/// A program, and the Debian package it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// A path that exists once the package is installed; of several separated by `|`, one is enough.
    pub path: &'static str,
    /// Name of the package.
    pub package: &'static str,
}

const fn tool(path: &'static str, package: &'static str) -> Tool {
    Tool { path, package }
}

/// What the recipes need.
pub const BUILD: &[Tool] = &[
    tool("/usr/bin/gcc-12", "gcc-12"),
    tool("/usr/bin/make", "make"),
    tool("/usr/bin/bc", "bc"),
    tool("/usr/bin/xz", "xz-utils"),
    tool("/usr/bin/zstd", "zstd"),
    tool("/sbin/depmod|/usr/sbin/depmod", "kmod"),
    tool("/bin/busybox|/usr/bin/busybox", "busybox-static"),
];

/// What the lab needs.
pub const LAB: &[Tool] = &[tool("/usr/bin/qemu-system-x86_64", "qemu-system-x86")];

/// What the root disk needs.
pub const ROOT_DISK: &[Tool] = &[
    tool("/usr/bin/fakeroot", "fakeroot"),
    tool("/usr/bin/mmdebstrap", "mmdebstrap"),
    tool("/sbin/mke2fs|/usr/sbin/mke2fs", "e2fsprogs"),
];

/// Makes sure that tools are installed: installs what is missing when root, and otherwise fails with the line that
/// the user has to run.
pub fn require(cache: &Cache, tools: &[Tool]) -> Result<()> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::HostPackages { packages: missing });
    }
    cache.say(&format!("installing {}", missing.join(" ")));
    let install = || {
        command::run(
            Command::new("apt-get")
                .args(["-q", "install", "-y", "--no-install-recommends"])
                .args(&missing)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    install().or_else(|_| {
        // One broken source of the host's list must not stop us: what cannot be found is reported by name.
        let _ = command::run(Command::new("apt-get").args(["-q", "update"]));
        install()
    })
}

fn missing(tools: &[Tool]) -> Vec<String> {
    let absent = |tool: &&Tool| !tool.path.split('|').any(|path| Path::new(path).exists());
    tools.iter().filter(absent).map(|tool| tool.package.to_owned()).collect()
}

/// How guests can run on this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Host {
    /// The processor offers hardware virtualisation and `/dev/kvm` is ours to use: guests run directly.
    Direct,
    /// There is no hardware virtualisation: guests run inside the lab.
    Lab,
}

impl Host {
    /// Finds out which it is. Hardware virtualisation that cannot be used is an error that names its remedy: falling
    /// back to the lab would hide it behind a run that is a hundred times slower.
    pub fn detect() -> Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if !has_virtualisation(&cpu) {
            return Ok(Self::Lab);
        }
        match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
            Ok(_) => Ok(Self::Direct),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Kvm(
                "This processor has hardware virtualisation but /dev/kvm is missing; load the module (`sudo modprobe \
                 kvm_intel` or `sudo modprobe kvm_amd`), or in a container pass the device (`--device /dev/kvm`)"
                    .to_owned(),
            )),
            Err(error) => Err(Error::Kvm(format!(
                "This processor has hardware virtualisation but /dev/kvm cannot be opened ({error}); join the group that \
                 owns it (`sudo usermod -aG kvm $USER`, then log in again)"
            ))),
        }
    }

    /// The way guests run, in words for a person.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Direct => "directly, with hardware virtualisation",
            Self::Lab => {
                "inside the lab (QEMU emulates a machine with virtualisation; this processor has none)"
            }
        }
    }
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.flat_map(str::split_whitespace).any(|flag| flag == "svm" || flag == "vmx")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flags_line_tells_virtualisation() {
        assert!(has_virtualisation("model name\t: x\nflags\t\t: fpu svm pae\n"));
        assert!(has_virtualisation("flags\t\t: fpu vmx"));
        assert!(!has_virtualisation("model name\t: svm\nflags\t\t: fpu svm_lock\nvmx flags\t: vnmi\n"));
    }

    #[test]
    fn one_of_several_paths_is_enough() {
        let tools = [tool("/no/such/file|/proc/self", "present"), tool("/no/such/file", "absent")];
        assert_eq!(missing(&tools), ["absent"]);
    }
}
