//! The command line of one VM.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::address::{Address, Nic};
use super::set::{NicOptions, Options};

/// Name of the kernel's copy in the directory of a set, for guests that have it as a disk.
pub const KERNEL_DISK: &str = "kernel.disk";

/// Files of one VM in the directory of its set.
pub struct Files<'a> {
    /// The set's directory.
    pub directory: &'a Path,
    /// Initramfs with the overlay appended.
    pub initramfs: &'a Path,
    /// Which guest.
    pub guest: Address,
    /// How often it has moved to another VMM.
    pub moves: u32,
}

impl Files<'_> {
    fn path(&self, suffix: &str) -> String {
        let moves = if self.moves > 0 { format!(".{}", self.moves) } else { String::new() };
        self.directory.join(format!("{}{moves}{suffix}", self.guest)).display().to_string()
    }

    /// Socket at which a VMM waits for the guest of another.
    pub fn arrival(&self) -> String {
        self.path(".arrival")
    }

    /// Where its console goes.
    pub fn console(&self) -> String {
        self.path(".console")
    }

    /// Socket of its control line.
    pub fn control(&self) -> String {
        self.path(".control")
    }

    /// Socket at which its VMM can be asked.
    pub fn api(&self) -> String {
        self.path(".api")
    }

    /// What the VMM itself says.
    pub fn log(&self) -> String {
        self.path(".log")
    }

    /// Capture of a NIC's port.
    pub fn capture(&self, nic: Nic) -> String {
        self.path(&format!(".eth{nic}.pcapng"))
    }
}

/// Socket of the switch that a NIC of every VM is plugged into.
pub fn switch(directory: &Path, nic: Nic) -> PathBuf {
    directory.join(format!("switch{nic}"))
}

/// File with the key of all tunnels of a set.
pub fn tunnel_key(directory: &Path) -> PathBuf {
    directory.join("tunnel.key")
}

/// `verbena run …` for one guest, or `verbena receive …` for one that moves.
pub fn command(options: &Options, files: &Files<'_>) -> Command {
    let mut command = Command::new(&options.verbena);
    if files.moves > 0 {
        command.args(["receive", "--listen"]).arg(format!("unix:{}", files.arrival()));
    } else {
        command.arg("run");
    }
    let mut flag = |name: &str, value: String| {
        command.arg(name).arg(value);
    };
    flag("--kernel", options.kernel.display().to_string());
    flag("--initramfs", files.initramfs.display().to_string());
    flag("--cmdline", kernel_command_line(options, files.guest));
    flag("--cpus", options.cpus.to_string());
    let huge_pages = if options.huge_pages { ",hugepages=on" } else { "" };
    flag("--memory", format!("size={}M{huge_pages}", options.memory_mib));
    flag("--serial", format!("num=1,type=file,path={}", files.console()));
    flag("--serial", format!("num=2,type=socket,path={}", files.control()));
    flag("--api-socket", files.api());
    flag("--on-reboot", if options.may_reboot { "reset" } else { "exit" }.into());
    for (nic, what) in (0..).zip(&options.nics) {
        flag("--net", net(options, files, nic, what));
    }
    for disk in options.disks.iter().filter(|disk| disk.guest.is_none_or(|guest| guest == files.guest.name()))
    {
        let readonly = if disk.guest.is_none() { "on" } else { "off" };
        flag("--disk", format!("path={},readonly={readonly}", disk.path.display()));
    }
    if options.own_images {
        for image in [&files.directory.join(KERNEL_DISK), files.initramfs] {
            flag("--disk", format!("path={},readonly=on", image.display()));
        }
    }
    command.args(&options.extra_arguments);
    command
}

fn kernel_command_line(options: &Options, guest: Address) -> String {
    let nics = (0..).zip(&options.nics).map(|(nic, _)| nic);
    let own = guest.command_line(nics);
    format!("console=ttyS0 panic=-1 {own} {}", options.command_line).trim_end().to_string()
}

fn net(options: &Options, files: &Files<'_>, nic: Nic, what: &NicOptions) -> String {
    let (mac, link) = (files.guest.mac(nic), switch(files.directory, nic));
    let mut text = format!("id=eth{nic},mac={mac},link=switch:{}", link.display());
    if let Some(mtu) = options.mtu {
        text += &format!(",mtu={mtu}");
    }
    if !what.rdma.contains(files.guest.name()) {
        text += ",rdma=off";
    } else if let (0, Some(device)) = (nic, &options.mirrored) {
        text += &format!(",provider=host,device={device},ip={}", files.guest.ipv4(nic));
    } else if let (0, Some(device)) = (nic, &options.tunnelled) {
        let key = tunnel_key(files.directory);
        text += &format!(",tunnel={device},tunnel-key={},ip={}", key.display(), files.guest.ipv4(nic));
    }
    if let Some(impair) = &what.impair {
        text += &format!(",impair={impair}");
    }
    if options.capture {
        text += &format!(",capture={}", files.capture(nic));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::set::{Disk, RdmaIn};
    use super::*;

    fn disk(path: &str, guest: Option<char>) -> Disk {
        Disk { path: path.into(), guest }
    }

    #[test]
    fn command_line_names_everything_a_guest_needs() {
        let options = Options {
            verbena: "/bin/verbena".into(),
            kernel: "/k".into(),
            nics: vec![
                NicOptions::default(),
                NicOptions { rdma: RdmaIn::Only(&['b']), impair: Some("loss:1%".into()) },
            ],
            mtu: Some(9000),
            capture: true,
            disks: vec![disk("/d.img", None), disk("/own.img", Some('a')), disk("/other.img", Some('b'))],
            ..Options::default()
        };
        let guest = Address::first(1).next().unwrap();
        let files =
            Files { directory: Path::new("/t"), initramfs: Path::new("/t/initramfs"), guest, moves: 0 };
        let command = command(&options, &files);
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let text = arguments.join(" ");
        assert!(text.starts_with("run --kernel /k --initramfs /t/initramfs "));
        assert!(text.contains("--serial num=2,type=socket,path=/t/a.control"));
        assert!(text.contains("--api-socket /t/a.api"));
        assert!(text.contains("verbena.host=a verbena.ip=eth0=10.0.0.1/24,eth1=10.0.1.1/24"));
        assert!(text.contains(
            "--net id=eth0,mac=02:00:00:00:00:01,link=switch:/t/switch0,mtu=9000,capture=/t/a.eth0.pcapng"
        ));
        assert!(
            text.contains("link=switch:/t/switch1,mtu=9000,rdma=off,impair=loss:1%,capture=/t/a.eth1.pcapng")
        );
        assert!(text.contains("--disk path=/d.img,readonly=on --disk path=/own.img,readonly=off"));
        assert!(!text.contains("/other.img"));
        assert!(text.contains("--on-reboot exit"));
    }
}
