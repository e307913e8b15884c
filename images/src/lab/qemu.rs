//! Runs QEMU as the lab host and makes sure that neither it nor a changed terminal outlives us.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::job::{self, Job};
use super::{LabHost, LabOptions};
use crate::error::{Error, Named, Result};

/// Processor of the lab host. Emulated string instructions go byte by byte where the processor claims that this is
/// fast, and copying gets two to three times slower; so it must not claim it.
///
/// Without XSAVE and what needs it: this emulation does not let a hypervisor intercept XSETBV, so a guest and its host
/// share one XCR0, and either saves more registers than the other has room for. Memory is overwritten.
const CPU: &str = "max,-erms,-fsrm,-xsave,-xsaveopt,-xsavec,-xsaves,-avx,-avx2,-f16c,-fma,-mpx,-pku,-la57";

/// How often an ended QEMU and the time limit are looked for.
const POLL: Duration = Duration::from_millis(20);
/// How long the lab host may take to come as far as the command. It takes seconds, and a minute on a busy machine.
const BOOT_TIME: Duration = Duration::from_secs(240);
/// How often it is started. Now and then an emulated processor misses its timer while the kernel boots, and waits for it
/// for ever.
const BOOTS: u32 = 3;

/// How a lab host ended.
enum End {
    /// It never came as far as the command.
    NotBegun,
    /// For this reason.
    Over(String),
}

/// Runs one job and returns its exit status.
pub(super) fn run(lab: &LabHost, job: Job, options: &LabOptions) -> Result<u8> {
    let _terminal = options.interactive.then(Terminal::save);
    let mut errors = (!options.interactive).then(|| Errors::open(&job)).transpose()?;
    let deadline = options.timeout.map(|limit| Instant::now() + limit);
    for boots in 1..=BOOTS {
        match boot(lab, &job, options, errors.as_mut(), deadline)? {
            End::Over(why) => return job.result(&why),
            End::NotBegun => eprintln!("The lab has not come up ({boots} of {BOOTS} times)."),
        }
    }
    job.result("it does not come up")
}

/// Starts the lab host and waits for its end.
fn boot(
    lab: &LabHost,
    job: &Job,
    options: &LabOptions,
    mut errors: Option<&mut Errors>,
    deadline: Option<Instant>,
) -> Result<End> {
    let mut qemu = Qemu(start(lab, job, options)?);
    let late = Instant::now() + BOOT_TIME;
    let mut begun = false;
    let end = loop {
        if let Some(errors) = errors.as_mut() {
            errors.pass_on();
        }
        begun = begun || job.has_begun();
        let now = Instant::now();
        match qemu.0.try_wait().named("wait for", "QEMU")? {
            Some(status) => break End::Over(describe(status)),
            None if deadline.is_some_and(|deadline| now > deadline) => {
                break End::Over("its time limit passed".to_owned());
            }
            None if !begun && now > late => break End::NotBegun,
            None => thread::sleep(POLL),
        }
    };
    drop(qemu);
    errors.map(Errors::pass_on);
    Ok(end)
}

fn describe(status: ExitStatus) -> String {
    format!("it ended before the command did, with {status}")
}

fn start(lab: &LabHost, job: &Job, options: &LabOptions) -> Result<Child> {
    let log = File::create(job.qemu_log()).named("create", job.qemu_log())?;
    // setpriv(1) has the kernel end QEMU when this process ends, in whatever way.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    lab.emulator.add_to(&mut command);
    command.args(machine(options));
    command.arg("-kernel").arg(&lab.kernel.vmlinux).arg("-initrd").arg(&lab.initramfs);
    command.args(["-append", "console=ttyS0 quiet panic=-1"]);
    command.arg("-serial").arg(format!("file:{}", escaped(&job.kernel_log())));
    command.args(terminal(job, options));
    command.arg("-virtfs").arg(share(Path::new("/"), "hostroot") + ",readonly=on,multidevs=remap");
    command.arg("-virtfs").arg(share(job.dir(), "control"));
    for (index, path) in options.writable.iter().enumerate() {
        command.arg("-virtfs").arg(share(job::shared_directory(path), &job::share_tag(index)));
    }
    if !options.interactive {
        command.stdin(Stdio::null());
    }
    command.stderr(log).spawn().map_err(|source| Error::Start { program: "setpriv".to_owned(), source })
}

fn machine(options: &LabOptions) -> Vec<String> {
    // Commands are kept off the first processor: see the lab's init.
    let (cpus, memory) = ((options.cpus + 1).to_string(), options.memory_mib.to_string());
    [
        &["-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", &cpus, "-m", &memory][..],
        &["-nodefaults", "-display", "none", "-nic", "none", "-no-reboot", "-device", "virtio-rng-pci"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

/// The command's terminal. When it is the user's, the multiplexer gives them a way out of a lab that hangs: Ctrl-] x. When
/// it is not, standard error has a way out of its own.
fn terminal(job: &Job, options: &LabOptions) -> Vec<String> {
    let backend = if options.interactive { "stdio,id=tty,signal=off,mux=on" } else { "stdio,id=tty" };
    let mut arguments =
        ["-chardev", backend, "-echr", "0x1d", "-device", "virtio-serial-pci"].map(str::to_owned).to_vec();
    arguments.extend(["-device", "virtconsole,chardev=tty"].map(str::to_owned));
    if !options.interactive {
        let errors = format!("file,id=errors,path={}", escaped(&job.errors()));
        arguments.extend(["-chardev", &errors, "-device", "virtconsole,chardev=errors"].map(str::to_owned));
    }
    arguments
}

fn share(path: &Path, tag: &str) -> String {
    format!("local,path={},mount_tag={tag},security_model=none", escaped(path))
}

/// QEMU's option syntax doubles a comma that is part of a value.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The way of the command's standard error: a FIFO that QEMU writes to.
struct Errors(File);

impl Errors {
    /// Opened before QEMU does, which would wait for a reader.
    fn open(job: &Job) -> Result<Self> {
        let path = job.errors();
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).map_err(Into::into).named("create", &path)?;
        let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path);
        Ok(Self(file.named("open", &path)?))
    }

    /// Writes what has come to this process's standard error. Where that is closed, nobody wants it.
    fn pass_on(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.0.read(&mut buffer) {
            let _ = std::io::stderr().write_all(&buffer[..length]);
        }
    }
}

/// QEMU, ended with its owner.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The user's terminal settings, restored on drop.
struct Terminal(Option<Termios>);

impl Terminal {
    fn save() -> Self {
        Self(tcgetattr(std::io::stdin()).ok())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(settings) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, settings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(share(Path::new("/a,b"), "t"), "local,path=/a,,b,mount_tag=t,security_model=none");
    }
}
