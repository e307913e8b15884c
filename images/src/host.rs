//! What this machine must have, and what it can do.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use crate::cache::Cache;
use crate::command;
use crate::error::{Error, Result};

/// What is needed, one package a line.
const PACKAGES: &str = include_str!("../host-packages");

/// What packages are needed for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// The recipes for kernels and guests.
    Images,
    /// The root disk.
    RootDisk,
    /// Building the programs that run in guests.
    Programs,
    /// Tests, beside all of that.
    Tests,
}

impl Purpose {
    /// Its word in the list.
    fn word(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::RootDisk => "root-disk",
            Self::Programs => "programs",
            Self::Tests => "tests",
        }
    }
}

/// Makes sure that the packages for some purposes are installed: installs what is missing when root, and otherwise fails
/// with the line that an administrator has to run. Asking for everything a run needs at once makes it one line.
pub fn require(cache: &Cache, purposes: &[Purpose]) -> Result<()> {
    let missing = missing(PACKAGES, purposes);
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

/// Those packages of a list that are needed and not there.
fn missing(list: &str, purposes: &[Purpose]) -> Vec<String> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let mut packages = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let (Some(word), Some(paths), Some(package)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let wanted = purposes.iter().any(|purpose| purpose.word() == word);
        if wanted && !paths.split('|').any(|path| Path::new(path).exists()) {
            packages.push(package.to_owned());
        }
    }
    packages
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
        let list = "# root-disk /no/such/file comment\nroot-disk /no/such/file|/proc/self present\n\
                    root-disk /no/such/file absent\n\
                    tests /no/such/file unasked\n";
        assert_eq!(missing(list, &[Purpose::RootDisk, Purpose::Images]), ["absent"]);
    }

    #[test]
    fn every_line_has_three_words_and_every_purpose_a_line() {
        use Purpose::{Images, Programs, RootDisk, Tests};
        let lines: Vec<Vec<&str>> = PACKAGES
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let words = [Images, RootDisk, Programs, Tests].map(Purpose::word);
        assert!(lines.iter().all(|line| line.len() == 3 && words.contains(&line[0])), "{lines:?}");
        assert!(words.iter().all(|word| lines.iter().any(|line| line[0] == *word)), "{lines:?}");
    }
}
