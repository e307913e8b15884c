//! The checked configuration of one machine.

use std::path::PathBuf;

use serde::Deserialize;

use super::values::ByteSize;
use super::{DiskConfig, FabricDiskConfig, MemoryConfig, NetConfig, RunOptions, SerialConfig};
use crate::error::{Error, Result};

/// Least memory a machine can have: what lies below 1 MiB and some room above it.
const MIN_MEMORY: ByteSize = ByteSize(4 << 20);
/// Smallest unit memory comes in.
const PAGE: u64 = 4096;
/// Size of the huge pages used.
const HUGE_PAGE: u64 = 2 << 20;
/// Local APIC ids have eight bits, and 255 is the broadcast address.
const MAX_CPUS: u8 = 254;

/// What a reboot of the guest does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReboot {
    /// The process ends with a status of its own.
    Exit,
    /// The machine starts again.
    #[default]
    Reset,
}

/// What the machine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootConfig {
    /// A Linux kernel.
    Linux {
        /// bzImage or ELF.
        kernel: PathBuf,
        /// Initial RAM file system.
        initramfs: Option<PathBuf>,
        /// Kernel command line.
        cmdline: String,
    },
    /// Nothing: the machine can only be restored.
    Nothing,
    /// A static ELF program, in ring 3.
    Bare {
        /// The program.
        program: PathBuf,
        /// Text the program finds in its boot information.
        cmdline: String,
    },
}

/// Everything a machine is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VmConfig {
    /// What is started.
    pub boot: BootConfig,
    /// Number of virtual CPUs, at least 1.
    pub cpus: u8,
    /// Memory; its size is a multiple of the page size in use.
    pub memory: MemoryConfig,
    /// Disks in the order the guest sees them.
    pub disks: Vec<DiskConfig>,
    /// Disks at targets, behind those.
    pub fabric_disks: Vec<FabricDiskConfig>,
    /// NIC slots.
    pub nets: Vec<NetConfig>,
    /// COM1 and COM2; `None` is a port connected to nothing.
    pub serial: [Option<SerialConfig>; 2],
    /// Whether there is an entropy device.
    pub rng: bool,
    /// Socket at which it can be looked into.
    pub api_socket: Option<PathBuf>,
    /// What a reboot does.
    pub on_reboot: OnReboot,
    /// Saved machine to begin with.
    pub restore: Option<RestoreConfig>,
}

/// A saved machine to begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreConfig {
    /// Directory of the snapshot.
    pub from: PathBuf,
    /// Whether it may go on with connections that another machine may be using.
    pub take_over: bool,
}

impl VmConfig {
    /// Whether the machine runs a bare-metal program.
    pub const fn is_bare(&self) -> bool {
        matches!(self.boot, BootConfig::Bare { .. })
    }
}

impl RunOptions {
    /// Checks the options and fills in defaults.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for options that contradict each other or are out of range.
    pub fn resolve(self) -> Result<VmConfig> {
        let begins_saved = self.restore.is_some();
        self.check(begins_saved)
    }

    /// The same for a machine that comes from elsewhere: a kernel is used only should the guest reboot.
    ///
    /// # Errors
    ///
    /// As [`RunOptions::resolve`], and for `restore`.
    pub fn resolve_received(self) -> Result<VmConfig> {
        if self.restore.is_some() {
            return usage("The machine is received or restored, not both: leave out --restore");
        }
        self.check(true)
    }

    fn check(self, begins_saved: bool) -> Result<VmConfig> {
        let serial = resolve_serial(&self.serial)?;
        let boot = match (self.kernel, self.bare) {
            (Some(kernel), None) => BootConfig::Linux {
                kernel,
                initramfs: self.initramfs,
                cmdline: self.cmdline.unwrap_or_else(|| "console=ttyS0".to_owned()),
            },
            (None, Some(program)) => BootConfig::Bare { program, cmdline: self.cmdline.unwrap_or_default() },
            (None, None) if begins_saved => BootConfig::Nothing,
            (None, None) => return usage("Nothing to boot: give --kernel FILE"),
            (Some(_), Some(_)) => return usage("Both kernel and bare are given: choose one"),
        };
        let cpus = self.cpus.unwrap_or(1);
        if !(1..=MAX_CPUS).contains(&cpus) {
            return usage(&format!("{cpus} CPUs are not possible: give 1 to {MAX_CPUS}"));
        }
        let memory = resolve_memory(self.memory.unwrap_or_default())?;
        for net in &self.net {
            if net.mirrored().map_err(Error::Usage)?.is_some() && memory.hugepages {
                return usage("provider=host cannot map pieces of huge pages: leave out hugepages=on");
            }
            if net.tunnelled().map_err(Error::Usage)?.is_some() && memory.hugepages {
                return usage("tunnel= cannot register huge pages: leave out hugepages=on");
            }
        }
        Ok(VmConfig {
            boot,
            cpus,
            memory,
            disks: self.disk,
            fabric_disks: self.fabric_disk,
            nets: self.net,
            serial,
            rng: self.rng.unwrap_or(true),
            api_socket: self.api_socket,
            on_reboot: self.on_reboot.unwrap_or_default(),
            restore: self
                .restore
                .map(|from| RestoreConfig { from, take_over: self.take_over.unwrap_or(false) }),
        })
    }
}

fn usage<T>(text: &str) -> Result<T> {
    Err(Error::Usage(text.to_owned()))
}

fn resolve_memory(memory: MemoryConfig) -> Result<MemoryConfig> {
    let unit = if memory.hugepages { HUGE_PAGE } else { PAGE };
    if memory.size < MIN_MEMORY {
        return usage(&format!("Memory of {} is too small: give at least {MIN_MEMORY}", memory.size));
    }
    if !memory.size.0.is_multiple_of(unit) {
        return usage(&format!("Memory size {} is not a multiple of {}", memory.size, ByteSize(unit)));
    }
    Ok(memory)
}

fn resolve_serial(configs: &[SerialConfig]) -> Result<[Option<SerialConfig>; 2]> {
    let mut ports = [None, None];
    let mut stdio_used = false;
    for config in configs {
        config.check().map_err(Error::Usage)?;
        let port = &mut ports[usize::from(config.num - 1)];
        if port.is_some() {
            return usage(&format!("Serial port {} is given twice", config.num));
        }
        let stdio = config.kind == super::SerialType::Stdio;
        if stdio && stdio_used {
            return usage("Two serial ports share stdio: connect one to a file or socket");
        }
        stdio_used |= stdio;
        *port = Some(config.clone());
    }
    if ports[0].is_none() && !stdio_used {
        ports[0] = Some(SerialConfig::stdio());
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::super::key_value::parse;
    use super::*;

    fn options() -> RunOptions {
        RunOptions { kernel: Some("k".into()), ..RunOptions::default() }
    }

    #[test]
    fn defaults_are_one_cpu_one_gigabyte_and_com1_on_stdio() {
        let config = options().resolve().unwrap();
        assert_eq!(config.cpus, 1);
        assert_eq!(config.memory, MemoryConfig { size: ByteSize(1 << 30), hugepages: false });
        assert_eq!(config.serial, [Some(SerialConfig::stdio()), None]);
        assert!(config.rng);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        let memory = |text: &str| RunOptions { memory: Some(parse(text).unwrap()), ..options() };
        let serial = |a: &str, b: &str| {
            let serial = [a, b].map(|text| SerialConfig::parse(text).unwrap()).to_vec();
            RunOptions { serial, ..options() }
        };
        for options in [
            RunOptions::default(),
            RunOptions { bare: Some("b".into()), ..options() },
            RunOptions { cpus: Some(0), ..options() },
            RunOptions { cpus: Some(255), ..options() },
            memory("1M"),
            memory("1000000001"),
            memory("size=4100K,hugepages"),
            serial("stdio", "num=1,type=null"),
            serial("stdio", "num=2,type=stdio"),
        ] {
            assert!(matches!(options.resolve(), Err(Error::Usage(_))));
        }
    }
}
