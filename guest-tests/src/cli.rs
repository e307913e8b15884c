//! The command line of what people run, and the way into the lab.
//!
//! A run is prepared on this machine. Where guests cannot run here, the same program is started again inside the lab
//! with a file that tells it what to do ([`inside`]): one code path from there on.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use images::{Cache, LabOptions};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::own::{Commands, Machine};
use crate::programs::Programs;
use crate::provider::Provider;
use crate::setup::{Setup, Way};
use crate::suite::Soak;
use crate::{bare, demo, guests, own, suite};

/// Memory of the lab host beside what its guests take, in MiB. Half of it holds what runs write.
const LAB_MEMORY_MIB: u32 = 4096;
/// The suite is stuck after this time. It takes a fraction of it unless the machine is busy with other things.
const SUITE_TIMEOUT: Duration = Duration::from_secs(75 * 60);

/// Arguments of the demonstration.
#[derive(Args, Clone, Debug)]
pub struct DemoArguments {
    /// What carries RDMA out
    #[command(flatten)]
    provider: ProviderArgument,
}

/// The choice of provider.
#[derive(Args, Clone, Debug)]
struct ProviderArgument {
    /// What carries RDMA out: engine (inside the monitor), host (a device of the host; the lab makes one, rdma_rxe) or
    /// host:DEVICE (where guests run without the lab)
    #[arg(long, value_name = "PROVIDER", default_value = "engine")]
    provider: Provider,
}

/// What a command finds in its guest.
const COMMANDS_HELP: &str = "\
Commands find the guests' addresses in A_ADDR and B_ADDR, the other guest's in PEER_ADDR, and their own guest's RDMA \
device and the index of its IPv4 GID in RDMA_DEVICE and RDMA_GID_INDEX.

The exit status is that of the first command that failed. Once b has ended, or a command has failed, the others are \
given --grace and stopped, which is no failure.

  ./dev guests --copy ./app --a './app server' --b './app client ADDR'";

/// Arguments of the guests command.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = COMMANDS_HELP)]
pub struct GuestsArguments {
    /// A shell in place of commands
    #[command(subcommand)]
    shell: Option<ShellCommand>,

    /// Command for guest a (shell syntax; runs in /root). The word ADDR becomes the other guest's address
    #[arg(long, value_name = "COMMAND", required_unless_present = "b")]
    a: Option<String>,

    /// Command for guest b, started once something in a listens
    #[arg(long, value_name = "COMMAND", requires = "a")]
    b: Option<String>,

    /// How long the commands may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,

    /// How long a may take to end by itself once b has ended, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,

    /// What the guests are made of
    #[command(flatten)]
    machine: MachineArguments,
}

/// What the guests command does in place of running commands.
#[derive(Subcommand, Clone, Debug)]
pub enum ShellCommand {
    /// A shell in guest a or b, with the other one beside it
    Shell {
        /// a or b
        #[arg(value_parser = parse_guest)]
        guest: char,

        /// What the guests are made of
        #[command(flatten)]
        machine: MachineArguments,
    },
}

/// What guests are made of.
#[derive(Args, Clone, Debug)]
pub struct MachineArguments {
    /// File or directory to copy to /root of every guest, with the shared libraries of its programs; repeatable
    #[arg(long, value_name = "PATH")]
    copy: Vec<PathBuf>,

    /// Kernel to boot in place of Debian's: a bzImage or ELF vmlinux (its modules come with your initramfs)
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,

    /// Initramfs in place of the small guest; its init has to end by running /sbin/verbena-agent
    #[arg(long, value_name = "FILE")]
    initramfs: Option<PathBuf>,

    /// Raw disk: FILE for all guests, read-only; a:FILE or b:FILE for one guest, writable; repeatable
    #[arg(long, value_name = "[GUEST:]FILE", value_parser = parse_disk)]
    disk: Vec<(Option<char>, PathBuf)>,

    /// Words to add to the kernel command line
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    cmdline: String,

    /// Memory of each guest in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..))]
    memory: u32,

    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=254))]
    cpus: u8,

    /// What carries RDMA out
    #[command(flatten)]
    provider: ProviderArgument,
}

impl MachineArguments {
    /// The same with paths that hold from anywhere, the lab included.
    fn machine(self) -> Result<(Machine, Vec<PathBuf>)> {
        let machine = Machine {
            kernel: self.kernel.map(absolute).transpose()?,
            initramfs: self.initramfs.map(absolute).transpose()?,
            disks: self
                .disk
                .into_iter()
                .map(|(guest, path)| Ok((guest, absolute(path)?)))
                .collect::<Result<_>>()?,
            command_line: self.cmdline,
            memory_mib: self.memory,
            cpus: self.cpus,
            provider: self.provider.provider,
        };
        Ok((machine, self.copy.into_iter().map(absolute).collect::<Result<_>>()?))
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("Cannot use {}", path.display()))
}

/// Reads a guest's name.
fn parse_guest(text: &str) -> Result<char, String> {
    match text {
        "a" => Ok('a'),
        "b" => Ok('b'),
        _ => Err(format!("There is no guest {text}; the guests are a and b")),
    }
}

/// Reads `FILE`, `a:FILE` or `b:FILE`.
fn parse_disk(text: &str) -> Result<(Option<char>, PathBuf), String> {
    match text.split_once(':') {
        // One letter is taken for a guest; a file of such a name is written ./x:FILE.
        Some((guest, file)) if guest.len() == 1 => parse_guest(guest).map(|guest| (Some(guest), file)),
        _ => Ok((None, text)),
    }
    .and_then(|(guest, file)| match file {
        "" => Err("A disk needs a file".into()),
        file => Ok((guest, file.into())),
    })
}

/// Arguments of the test suite.
#[derive(Args, Clone, Debug, Default)]
pub struct SuiteArguments {
    /// Run only the cases with guests whose name contains this, and nothing else; `bare` stands for those without an
    /// operating system; repeatable
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
}

/// Arguments of what runs inside the lab.
#[derive(Args, Clone, Debug)]
pub struct InsideArguments {
    /// The job, as written by the program outside
    job: PathBuf,
}

/// What to do once everything is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    Demo { provider: Provider },
    Run(Commands),
    Shell { guest: char, machine: Machine, copy: Vec<PathBuf> },
    Suite { only: Vec<String> },
    Soak { what: Soak, only: Vec<String> },
}

impl Work {
    /// Files of the user that its guests may write to.
    fn writable(&self) -> Vec<PathBuf> {
        let machine = match self {
            Self::Run(commands) => &commands.machine,
            Self::Shell { machine, .. } => machine,
            Self::Demo { .. } | Self::Suite { .. } | Self::Soak { .. } => return Vec::new(),
        };
        machine.disks.iter().filter(|(guest, _)| guest.is_some()).map(|(_, path)| path.clone()).collect()
    }

    /// Memory of all its guests at a time, in MiB.
    fn guests_mib(&self) -> u32 {
        match self {
            Self::Demo { .. } => 1024,
            Self::Suite { .. } | Self::Soak { .. } => 2048,
            Self::Run(commands) => 2 * commands.machine.memory_mib,
            Self::Shell { machine, .. } => 2 * machine.memory_mib,
        }
    }

    fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Suite { .. } => Some(SUITE_TIMEOUT),
            Self::Demo { .. } | Self::Run(_) | Self::Shell { .. } | Self::Soak { .. } => None,
        }
    }

    /// What carries RDMA out.
    fn provider(&self) -> Provider {
        match self {
            Self::Demo { provider } => provider.clone(),
            Self::Run(commands) => commands.machine.provider.clone(),
            Self::Shell { machine, .. } => machine.provider.clone(),
            Self::Suite { .. } | Self::Soak { .. } => Provider::Engine,
        }
    }

    fn do_it(&self, setup: &Setup) -> Result<u8> {
        match self {
            Self::Demo { provider } => demo::run(setup, provider).map(|passed| u8::from(!passed)),
            Self::Run(commands) => own::run(setup, commands),
            Self::Shell { guest, machine, copy } => own::shell(setup, machine, copy, *guest),
            Self::Suite { only } => suite::run(setup, only).map(|passed| u8::from(!passed)),
            Self::Soak { what, only } => suite::soak(setup, *what, only).map(|passed| u8::from(!passed)),
        }
    }
}

/// A job for the program inside the lab.
#[derive(Serialize, Deserialize)]
struct Job {
    setup: Setup,
    work: Work,
}

/// Runs the demonstration and gives the exit status.
///
/// # Errors
///
/// When something cannot be made or the guests do not come up.
pub fn demo(arguments: DemoArguments, cache: &Cache) -> Result<u8> {
    let provider = arguments.provider.provider;
    carry_out(cache, Setup::make(cache, false)?, Work::Demo { provider })
}

/// Runs the user's commands in guests, or a shell, and gives the exit status.
///
/// # Errors
///
/// As [`demo()`], and for arguments that do not go together.
pub fn guests(arguments: GuestsArguments, cache: &Cache) -> Result<u8> {
    if let Some(ShellCommand::Shell { guest, machine }) = arguments.shell {
        let (machine, copy) = machine.machine()?;
        ensure!(std::io::stdin().is_terminal(), "A shell needs a terminal on standard input");
        return carry_out(cache, Setup::make(cache, false)?, Work::Shell { guest, machine, copy });
    }
    let (machine, copy) = arguments.machine.machine()?;
    let Some(a) = arguments.a else { bail!("Guest a needs a command: --a COMMAND") };
    if let (None, Some((_, disk))) = (&arguments.b, machine.disks.iter().find(|disk| disk.0 == Some('b'))) {
        bail!("{} is a disk of guest b, which starts only with a command: --b COMMAND", disk.display());
    }
    let commands = Commands {
        a,
        b: arguments.b,
        copy,
        timeout: Duration::from_secs(arguments.timeout),
        grace: Duration::from_secs(arguments.grace),
        machine,
    };
    carry_out(cache, Setup::make(cache, false)?, Work::Run(commands))
}

/// Runs the tests that boot guests and gives the exit status.
///
/// # Errors
///
/// When something cannot be made.
pub fn suite(arguments: SuiteArguments, cache: &Cache) -> Result<u8> {
    let setup = Setup::make(cache, true)?;
    let all = arguments.only.is_empty();
    let (bare, only): (Vec<_>, Vec<_>) =
        arguments.only.into_iter().partition(|name| name.starts_with("bare"));
    let failed = (all || !bare.is_empty()) && !bare::run(&setup.programs)?;
    let status = if all || !only.is_empty() { carry_out(cache, setup, Work::Suite { only })? } else { 0 };
    Ok(if failed { status.max(1) } else { status })
}

/// Runs long tests that boot guests, those whose name contains one of `only` or all, and gives the exit status.
///
/// # Errors
///
/// When something cannot be made.
pub fn soak(what: Soak, only: Vec<String>, cache: &Cache) -> Result<u8> {
    carry_out(cache, Setup::make(cache, true)?, Work::Soak { what, only })
}

/// Moves machines under load `count` times and gives the exit status.
///
/// # Errors
///
/// When something cannot be made, or a machine or its load did not survive.
pub fn soak_migrate(count: u32) -> Result<u8> {
    guests::end_all_on_signal()?;
    bare::migrate::soak(&Programs::build(true)?, count)?;
    Ok(0)
}

/// Does a job inside the lab and gives the exit status.
///
/// # Errors
///
/// When the job cannot be read, and as the command outside.
pub fn inside(arguments: InsideArguments) -> Result<u8> {
    let text =
        std::fs::read(&arguments.job).with_context(|| format!("Cannot read {}", arguments.job.display()))?;
    let job: Job = serde_json::from_slice(&text).context("The job is not one of this program's")?;
    guests::end_all_on_signal()?;
    job.work.do_it(&job.setup)
}

/// Does the work, here or in the lab.
fn carry_out(cache: &Cache, setup: Setup, work: Work) -> Result<u8> {
    work.provider().check(setup.way)?;
    if setup.way == Way::Direct {
        guests::end_all_on_signal()?;
        return work.do_it(&setup);
    }
    let options = LabOptions {
        memory_mib: LAB_MEMORY_MIB + work.guests_mib(),
        interactive: matches!(work, Work::Shell { .. }),
        writable: [vec![setup.results.clone()], work.writable()].concat(),
        timeout: work.timeout(),
        ..LabOptions::default()
    };
    let (command, _file) = inside_command(setup, work)?;
    Ok(cache.run_in_lab(&command, &options)?)
}

/// The command that does the work where guests can run, and the file with its job, which has to live as long.
pub(crate) fn inside_command(setup: Setup, work: Work) -> Result<([String; 3], NamedTempFile)> {
    let file = tempfile::Builder::new().prefix("job-").suffix(".json").tempfile_in(&setup.results)?;
    serde_json::to_writer(&file, &Job { setup, work })?;
    let program = std::env::current_exe().context("Cannot find this program's own file")?;
    let command = [&program, &PathBuf::from("inside"), file.path()].map(|part| part.display().to_string());
    Ok((command, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        guests: GuestsArguments,
    }

    fn parse(line: &[&str]) -> Result<GuestsArguments, clap::Error> {
        Whole::try_parse_from(std::iter::once(&"guests").chain(line)).map(|whole| whole.guests)
    }

    #[test]
    fn commands_of_both_guests_are_read() {
        let arguments =
            parse(&["--copy", "./app", "--a", "./app server", "--b", "./app client ADDR"]).unwrap();
        assert_eq!(arguments.a.as_deref(), Some("./app server"));
        assert_eq!(arguments.b.as_deref(), Some("./app client ADDR"));
        assert_eq!(arguments.machine.copy, [PathBuf::from("./app")]);
    }

    #[test]
    fn shell_needs_no_commands_and_commands_need_a() {
        let arguments = parse(&["shell", "b", "--memory", "1024"]).unwrap();
        assert!(matches!(arguments.shell, Some(ShellCommand::Shell { guest: 'b', .. })));
        let Some(ShellCommand::Shell { machine, .. }) =
            parse(&["shell", "b", "--provider", "host"]).unwrap().shell
        else {
            panic!("A shell was asked for");
        };
        assert_eq!(machine.provider.provider, Provider::Host(None));
        assert!(parse(&["shell", "a", "--memory", "0"]).is_err());
        assert!(parse(&["shell", "a", "--cpus", "0"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--b", "./client ADDR"]).is_err());
        assert!(parse(&["shell", "c"]).is_err_and(|error| error.to_string().contains("no guest c")));
    }

    #[test]
    fn disk_may_name_its_guest() {
        assert_eq!(parse_disk("b:/srv/x.img"), Ok((Some('b'), "/srv/x.img".into())));
        assert_eq!(parse_disk("/srv/x.img"), Ok((None, "/srv/x.img".into())));
        assert_eq!(parse_disk("./c:x.img"), Ok((None, "./c:x.img".into())));
        assert!(parse_disk("").is_err() && parse_disk("a:").is_err());
        assert!(parse_disk("c:x.img").unwrap_err().contains("no guest c"));
    }
}
