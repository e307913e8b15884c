//! A set of guests, and the switches between them.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::address::{Address, Nic, hosts_file};
use super::control::Control;
use super::error::GuestError;
use super::guest::Guest;
use super::overlay::Overlay;
use super::process::Process;
use super::vm::{Files, KERNEL_DISK, command, switch, tunnel_key};

/// How long a VMM may take to open its sockets.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);
/// What the monitors of a set know and nobody else.
const TUNNEL_SECRET: [u8; 32] = [0x5a; 32];

/// Words of every guest's kernel command line. A verbose console costs an emulated guest tens of seconds, and so does
/// the search for an AGP bridge that `pci=noearly` leaves out.
pub const STOCK_WORDS: &str = "quiet pci=noearly";

/// A raw disk of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Image or block device.
    pub path: PathBuf,
    /// The one guest that gets it, and may write to it; all guests get it to read when absent.
    pub guest: Option<char>,
}

/// A NIC that every guest of a set has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicOptions {
    /// In which guests an RDMA device belongs to it.
    pub rdma: RdmaIn,
    /// How bad its network is, as `verbena run --net` is told; good when absent.
    pub impair: Option<String>,
}

/// Guests in which a NIC has an RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaIn {
    /// All of them.
    #[default]
    All,
    /// Those of these names.
    Only(&'static [char]),
}

impl RdmaIn {
    /// Whether the guest of that name is one of them.
    pub fn contains(self, guest: char) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&guest),
        }
    }
}

/// What the size of a disk is a multiple of.
const SECTOR: u64 = 512;

/// Largest file that is kept after a failure. A way out of the lab takes seconds a megabyte.
const KEPT_BYTES: u64 = 32 << 20;

/// What guests to start and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `verbena` program.
    pub verbena: PathBuf,
    /// The agent's program.
    pub agent: PathBuf,
    /// Guest kernel.
    pub kernel: PathBuf,
    /// Archives that make up the guest's initramfs; its init must end by starting `/sbin/verbena-agent`.
    pub initramfs: Vec<PathBuf>,
    /// Files to add to it.
    pub overlay: Overlay,
    /// Number of guests, at most [`Address::MAX`].
    pub count: usize,
    /// Virtual CPUs of each.
    pub cpus: u8,
    /// Memory of each, in MiB.
    pub memory_mib: u32,
    /// Whether that comes from the host's pool of huge pages.
    pub huge_pages: bool,
    /// NICs of each; each of them has a switch of its own.
    pub nics: Vec<NicOptions>,
    /// RDMA device of the host that the objects of the first NIC's RDMA device are mirrored onto; none uses the engine.
    pub mirrored: Option<String>,
    /// RDMA device of the host that tunnels between the guests go by, on the first NIC.
    pub tunnelled: Option<String>,
    /// MTU of every port; the link's own when absent.
    pub mtu: Option<u16>,
    /// Raw disks, in the order the guests see them.
    pub disks: Vec<Disk>,
    /// Whether guests have their kernel and their initramfs as disks behind the others, to start themselves again.
    pub own_images: bool,
    /// Words to add to the kernel command line.
    pub command_line: String,
    /// Arguments to add to `verbena run`.
    pub extra_arguments: Vec<String>,
    /// Whether a reboot starts a guest again; else it ends its VM.
    pub may_reboot: bool,
    /// Whether every port is captured to a file.
    pub capture: bool,
    /// How long a guest may take to come up.
    pub boot_timeout: Duration,
    /// Where consoles and captures are left when [`Guests::keep`] was called.
    pub results: PathBuf,
}

impl Default for Options {
    /// Two guests of one CPU and 512 MiB; programs and images are not filled in.
    fn default() -> Self {
        Self {
            verbena: PathBuf::new(),
            agent: PathBuf::new(),
            kernel: PathBuf::new(),
            initramfs: Vec::new(),
            overlay: Overlay::default(),
            count: 2,
            cpus: 1,
            memory_mib: 512,
            huge_pages: false,
            nics: vec![NicOptions::default()],
            mirrored: None,
            tunnelled: None,
            mtu: None,
            disks: Vec::new(),
            own_images: false,
            command_line: STOCK_WORDS.into(),
            extra_arguments: Vec::new(),
            may_reboot: false,
            capture: false,
            boot_timeout: Duration::from_secs(600),
            results: std::env::temp_dir(),
        }
    }
}

/// Guests that are up. Dropping it ends them.
pub struct Guests {
    // Guests end before the switches they are plugged into, and both before their files go.
    guests: Vec<Guest>,
    switches: Vec<Process>,
    directory: TempDir,
    options: Options,
    keep: AtomicBool,
}

impl Guests {
    /// Starts a switch and guests, and waits until all are up.
    ///
    /// # Errors
    ///
    /// When something cannot be started or a guest does not come up; the reason holds the end of its console.
    /// Consoles are kept then.
    pub fn start(options: &Options) -> Result<Self, GuestError> {
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |source| GuestError::File { path, source }
        };
        fs::create_dir_all(&options.results).map_err(file(&options.results))?;
        let directory = tempfile::Builder::new()
            .prefix("verbena-guests-")
            .tempdir()
            .map_err(file(&std::env::temp_dir()))?;
        let mut set = Self {
            guests: Vec::new(),
            switches: Vec::new(),
            directory,
            options: options.clone(),
            keep: AtomicBool::new(true),
        };
        set.boot(options)?;
        set.keep.store(false, Ordering::Relaxed);
        Ok(set)
    }

    /// Socket of the switch that a NIC of every guest is plugged into.
    pub fn switch(&self, nic: Nic) -> PathBuf {
        switch(self.directory.path(), nic)
    }

    fn boot(&mut self, options: &Options) -> Result<(), GuestError> {
        let directory = self.directory.path().to_path_buf();
        let initramfs = directory.join("initramfs");
        write_initramfs(options, &initramfs)?;
        if options.own_images {
            copy_kernel(options, &initramfs)?;
        }
        for (nic, _) in (0..).zip(&options.nics) {
            self.switches.push(start_switch(options, &self.switch(nic))?);
        }
        if options.tunnelled.is_some() {
            let key = tunnel_key(&directory);
            fs::write(&key, TUNNEL_SECRET).map_err(|source| GuestError::File { path: key, source })?;
        }
        for guest in Address::first(options.count) {
            let files = Files { directory: &directory, initramfs: &initramfs, guest, moves: 0 };
            self.guests.push(start_guest(options, &files)?);
        }
        let deadline = Instant::now() + options.boot_timeout;
        for guest in &self.guests {
            guest.wait_ready(1, deadline.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    }

    /// The guest in the given place; they are in the order of their names.
    ///
    /// # Panics
    ///
    /// When the set has fewer guests.
    pub fn guest(&self, place: usize) -> &Guest {
        &self.guests[place]
    }

    /// The first guest.
    ///
    /// # Panics
    ///
    /// When the set is empty.
    pub fn a(&self) -> &Guest {
        self.guest(0)
    }

    /// The second guest.
    ///
    /// # Panics
    ///
    /// When the set has fewer guests.
    pub fn b(&self) -> &Guest {
        self.guest(1)
    }

    /// All guests.
    pub fn all(&self) -> &[Guest] {
        &self.guests
    }

    /// All guests, to end them one by one.
    pub fn all_mut(&mut self) -> &mut [Guest] {
        &mut self.guests
    }

    /// The directory with everything these guests write on the host.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Whether what their programs create is mirrored onto a device of the host.
    pub fn are_mirrored(&self) -> bool {
        self.options.mirrored.is_some()
    }

    /// Capture of a guest's NIC, when captures were asked for.
    pub fn capture(&self, guest: &Guest, nic: Nic) -> PathBuf {
        self.directory.path().join(format!("{}.eth{nic}.pcapng", guest.address()))
    }

    /// Moves the guest in the given place to another VMM of this host, while whatever runs in it goes on. Its memory is
    /// handed over, or copied with `copy`.
    ///
    /// # Errors
    ///
    /// When it does not get there; it may have stayed where it was.
    ///
    /// # Panics
    ///
    /// When the set has fewer guests.
    pub fn migrate(&mut self, place: usize, copy: bool) -> Result<(), GuestError> {
        let directory = self.directory.path();
        let guest = &mut self.guests[place];
        let files = Files {
            directory,
            initramfs: &directory.join("initramfs"),
            guest: guest.address(),
            moves: guest.moves() + 1,
        };
        let failed = |reason: String| GuestError::Gone { guest: files.guest.name(), reason };
        let log = PathBuf::from(files.log());
        let mut target = Process::start(command(&self.options, &files), &log, Some(directory))?;
        let line = connect(files.guest, Path::new(&files.control()), &mut target)?;
        wait_for(Path::new(&files.arrival()), &mut target)?;
        guest.control().move_to(line);
        let mut migrate = Command::new(&self.options.verbena);
        migrate.arg("migrate").arg("--api-socket").arg(guest.api_socket());
        migrate.arg("--to").arg(format!("unix:{}", files.arrival()));
        if copy {
            migrate.arg("--copy");
        }
        let output = migrate
            .stdin(Stdio::null())
            .output()
            .map_err(|source| GuestError::Spawn { program: self.options.verbena.clone(), source })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(failed(format!("`verbena migrate` failed: {said}{}", target.printed())));
        }
        let mut source = guest.move_to(&files, target);
        match source.wait(SOCKET_TIMEOUT) {
            Some(status) if status.success() => Ok(()),
            status => Err(failed(format!("the VMM it left ended with {status:?}: {}", source.printed()))),
        }
    }

    /// Keeps consoles, logs and captures when the guests end, because something failed.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Copies what a person wants to see after a failure to the results, and says where.
    fn save(&self) -> io::Result<PathBuf> {
        let name = self.directory.path().file_name().unwrap_or_default();
        let kept = self.options.results.join(name);
        fs::create_dir_all(&kept)?;
        for entry in fs::read_dir(self.directory.path())?.flatten() {
            let path = entry.path();
            let wanted = ["console", "log", "pcapng"].map(Some);
            if !wanted.contains(&path.extension().and_then(|e| e.to_str())) {
                continue;
            }
            if entry.metadata()?.len() > KEPT_BYTES {
                eprintln!("{} is too large to be kept", entry.file_name().display());
                continue;
            }
            fs::copy(&path, kept.join(entry.file_name()))?;
        }
        Ok(kept)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.guests.clear();
        self.switches.clear();
        if self.keep.load(Ordering::Relaxed) {
            match self.save() {
                Ok(kept) => eprintln!("Consoles, logs and captures are in {}", kept.display()),
                Err(error) => eprintln!("Consoles and logs could not be kept: {error}"),
            }
        }
    }
}

/// The image's archives with the agent, the host names and the caller's files appended. Linux unpacks archives that
/// follow each other one after the other; uncompressed ones have to start at a multiple of four.
fn write_initramfs(options: &Options, to: &Path) -> Result<(), GuestError> {
    let mut overlay = options.overlay.clone();
    overlay.file(&options.agent, "/sbin/verbena-agent")?;
    overlay.text("/etc/hosts", 0o644, hosts_file(options.count));
    let file = |path: &Path| {
        let path = path.to_path_buf();
        move |source| GuestError::File { path, source }
    };
    let mut whole = File::create(to).map_err(file(to))?;
    for archive in &options.initramfs {
        let mut part = File::open(archive).map_err(file(archive))?;
        io::copy(&mut part, &mut whole).map_err(file(archive))?;
        pad(&mut whole, 4).map_err(file(to))?;
    }
    overlay.archive(&mut whole).map_err(file(to))?;
    pad(&mut whole, SECTOR).map_err(file(to))
}

/// Copies the kernel beside the initramfs, as a disk.
fn copy_kernel(options: &Options, initramfs: &Path) -> Result<(), GuestError> {
    let copy = || {
        let mut disk = File::create(initramfs.with_file_name(KERNEL_DISK))?;
        io::copy(&mut File::open(&options.kernel)?, &mut disk)?;
        pad(&mut disk, SECTOR)
    };
    copy().map_err(|source| GuestError::File { path: options.kernel.clone(), source })
}

/// Fills a file up with zeros to a multiple of `unit` bytes.
fn pad(file: &mut File, unit: u64) -> io::Result<()> {
    let length = file.metadata()?.len();
    file.set_len(length.next_multiple_of(unit))?;
    file.seek(SeekFrom::End(0)).map(drop)
}

fn start_switch(options: &Options, socket: &Path) -> Result<Process, GuestError> {
    let mut command = Command::new(&options.verbena);
    command.arg("switch").arg("--socket").arg(socket);
    let log = socket.with_extension("log");
    let mut switch = Process::start(command, &log, socket.parent())?;
    wait_for(socket, &mut switch)?;
    Ok(switch)
}

/// Waits until a process has opened its socket.
fn wait_for(socket: &Path, process: &mut Process) -> Result<(), GuestError> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    while !socket.exists() {
        if process.ended().is_some() || Instant::now() >= deadline {
            let source = io::Error::other(format!("nobody opens it: {}", process.printed()));
            return Err(GuestError::File { path: socket.into(), source });
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn start_guest(options: &Options, files: &Files<'_>) -> Result<Guest, GuestError> {
    let log = PathBuf::from(files.log());
    let mut vm = Process::start(command(options, files), &log, Some(files.directory))?;
    let socket = connect(files.guest, Path::new(&files.control()), &mut vm)?;
    let control =
        Control::start(socket).map_err(|source| GuestError::File { path: files.control().into(), source })?;
    Ok(Guest::new(files, control, vm))
}

/// Connects to a VM's control line as soon as the VMM has opened it.
fn connect(guest: Address, socket: &Path, vm: &mut Process) -> Result<UnixStream, GuestError> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    loop {
        match UnixStream::connect(socket) {
            Ok(line) => return Ok(line),
            Err(error) => {
                let ended = vm.ended();
                if ended.is_some() || Instant::now() >= deadline {
                    let what =
                        ended.map_or_else(|| error.to_string(), |status| format!("the VMM ended, {status}"));
                    let reason = format!("{what}: {}", vm.printed().trim_end());
                    return Err(GuestError::Gone { guest: guest.name(), reason });
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
