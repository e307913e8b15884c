//! The options of `verbena run`: flags and configuration file in one definition.

use std::path::PathBuf;

use serde::Deserialize;

use super::key_value::parse;
use super::values::{optional_on_off, parse_on_off};
use super::{DiskConfig, FabricDiskConfig, MemoryConfig, NetConfig, OnReboot, SerialConfig};

/// Options of `verbena run`. A flag wins over the file; a list given by flags replaces the file's list of that name.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RunOptions {
    /// Kernel to boot: a bzImage or an ELF vmlinux for x86-64
    #[arg(long, value_name = "FILE", conflicts_with = "bare")]
    pub kernel: Option<PathBuf>,

    /// Initial RAM file system of the kernel
    #[arg(long, value_name = "FILE", conflicts_with = "bare")]
    pub initramfs: Option<PathBuf>,

    /// Kernel command line [default: console=ttyS0]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub cmdline: Option<String>,

    /// Static ELF program to start in ring 3 in place of a kernel (for device tests)
    #[arg(long, value_name = "FILE")]
    pub bare: Option<PathBuf>,

    /// Number of virtual CPUs [default: 1]
    #[arg(long, value_name = "N")]
    pub cpus: Option<u8>,

    /// Guest memory: size=SIZE,hugepages=on|off [default: size=1G]
    ///
    /// SIZE takes the suffixes K, M, G and T. With hugepages=on memory comes from the host's huge page pool
    /// (/proc/sys/vm/nr_hugepages). `--memory 2G` is short for `--memory size=2G`.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<MemoryConfig>)]
    pub memory: Option<MemoryConfig>,

    /// Disk (virtio-blk): path=FILE,readonly=on|off; repeat for more disks
    ///
    /// FILE is a raw image or a block device; the guest sees /dev/vda, /dev/vdb and so on in the order given.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<DiskConfig>)]
    pub disk: Vec<DiskConfig>,

    /// Disk at a target (virtio over fabrics): target=tcp://HOST[:PORT]/NAME,queues=N,timeout=SECONDS; repeat for more
    ///
    /// By RDMA it is target=rdma://ADDRESS[:PORT]/NAME,link=switch:PATH,ip=ADDRESS,mac=MAC: this process has a port of its own
    /// then, with that address.
    /// What the guest asks of the disk is carried to a `verbena target`. The guest sees an ordinary virtio-blk disk, behind
    /// those of --disk, with up to N queues (one a CPU by default). If the target is lost, requests wait until it is back,
    /// for SECONDS (600 by default) before they fail.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<FabricDiskConfig>)]
    pub fabric_disk: Vec<FabricDiskConfig>,

    /// NIC: link=LINK,mac=MAC,mtu=N,rdma=on|off,direct=on|off,polling=auto|on|off,id=NAME,capture=FILE,ip=ADDR,
    /// impair=HOW,provider=engine|host,device=NAME,tunnel=DEVICE,tunnel-key=FILE; repeat for more NICs
    ///
    /// Each NIC is a vmxnet3 at function 0 of its own PCI slot, with a pvrdma RDMA device at function 1 unless rdma=off.
    /// LINK is `switch:PATH` (a `verbena switch`), `udp:ADDR:PORT/ADDR:PORT` (local/peer), `tap:NAME`, `loopback` (up,
    /// with nobody there) or `none` (unplugged). capture= writes every frame to a pcapng file; ip= is the only address the
    /// guest may send from.
    ///
    /// RDMA between machines on one switch goes without frames, as a copy from memory to memory; their processes can then
    /// read each other's guest memory. direct=off keeps this one out of it, as capture= and impair= do.
    ///
    /// A program that posts a lot need not leave the guest for it while the NIC's thread polls, which takes a processor.
    /// polling=auto lets it do so as long as nobody else wants the processor, polling=on in any case; it is off by default.
    ///
    /// provider=host mirrors what the guest's programs create onto the RDMA device NAME of this host, which moves their
    /// data (docs/providers.md). The device's interface gets the guest's address, named by ip=, as long as the guest has
    /// it; that takes CAP_NET_ADMIN, unless the interface has the address for good.
    ///
    /// tunnel=DEVICE lets the RDMA device of this host carry RDMA with machines of other hosts (docs/carriers.md): it fetches
    /// what they send straight out of their memory, if their monitors have such a device too, a port on the same network and
    /// the same key, the contents of FILE, of 16 bytes or more. Who has the key may read this guest's memory. All of that
    /// memory gets locked.
    ///
    /// impair= makes the network bad in both directions. HOW is any of `loss:1%`, `duplicate:1%`, `reorder:1%`,
    /// `corrupt:0.1%`, `mark:1%` (as a congested router marks, ECN), `delay:10ms`, `jitter:2ms` and `seed:42`, with slashes
    /// between them. The same seed gives the same frames the same fate.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse::<NetConfig>)]
    pub net: Vec<NetConfig>,

    /// Serial port: num=1|2,type=stdio|file|socket|null,path=PATH [default: COM1 on stdio, COM2 null]
    ///
    /// A file takes the port's output. A socket is a UNIX stream socket that verbena listens on; clients may leave and
    /// come back, and a new one takes the place of the one before. On a terminal, Ctrl-A x ends the machine and Ctrl-A h
    /// lists the keys.
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = SerialConfig::parse)]
    pub serial: Vec<SerialConfig>,

    /// Entropy device (virtio-rng) [default: on]
    #[arg(long, value_name = "on|off", value_parser = parse_on_off, num_args = 1)]
    #[serde(deserialize_with = "optional_on_off")]
    pub rng: Option<bool>,

    /// UNIX socket at which the machine can be looked into (`verbena rdma show`, `verbena net show`)
    ///
    /// Only the user who started the machine can use it. The protocol is one JSON object a line, see docs/api.md.
    #[arg(long, value_name = "PATH")]
    pub api_socket: Option<PathBuf>,

    /// Begin with a machine that `verbena snapshot` has saved in this directory, not with a boot
    ///
    /// All other options must be as they were; --kernel may be left out, and is used should the guest reboot. Disk images
    /// are not in the snapshot: they must be as they were when it was taken.
    #[arg(long, value_name = "DIR")]
    pub restore: Option<PathBuf>,

    /// With --restore: go on with RDMA connections although the original, or another copy, may be using them too
    #[arg(long, value_name = "on|off", value_parser = parse_on_off, num_args = 0..=1, default_missing_value = "on")]
    #[serde(deserialize_with = "optional_on_off")]
    pub take_over: Option<bool>,

    /// What a reboot of the guest does: start the machine again, or end with status 7 [default: reset]
    #[arg(long, value_name = "exit|reset", value_enum)]
    pub on_reboot: Option<OnReboot>,
}

impl RunOptions {
    /// These options, completed by those of `file` that are not given here.
    #[must_use]
    pub fn over(self, file: Self) -> Self {
        fn list<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
            if flags.is_empty() { file } else { flags }
        }
        Self {
            kernel: self.kernel.or(file.kernel),
            initramfs: self.initramfs.or(file.initramfs),
            cmdline: self.cmdline.or(file.cmdline),
            bare: self.bare.or(file.bare),
            cpus: self.cpus.or(file.cpus),
            memory: self.memory.or(file.memory),
            disk: list(self.disk, file.disk),
            fabric_disk: list(self.fabric_disk, file.fabric_disk),
            net: list(self.net, file.net),
            serial: list(self.serial, file.serial),
            rng: self.rng.or(file.rng),
            api_socket: self.api_socket.or(file.api_socket),
            restore: self.restore.or(file.restore),
            take_over: self.take_over.or(file.take_over),
            on_reboot: self.on_reboot.or(file.on_reboot),
        }
    }
}
