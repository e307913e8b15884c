//! The user's own program, kernel and disks: what `./dev guests` does once it is where guests can run.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cli::{Work, inside_command};
use crate::own::{Commands, Machine};
use crate::provider::Provider;
use crate::setup::Setup;
use crate::suite::{Case, Stand};

/// What a run may take, in seconds.
const TIMEOUT: &str = "300";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("guests/commands-get-disks-files-and-words-and-give-their-output-and-status", commands),
        Case::new("guests/shell-is-on-the-users-terminal", shell),
        Case::new("guests/what-cannot-be-booted-is-named", refusals),
    ]
}

/// One CPU, the small guest given as if it were the user's own.
fn machine(setup: &Setup) -> Machine {
    Machine {
        kernel: Some(setup.stock.elf.clone()),
        initramfs: Some(setup.stock.initramfs.clone()),
        disks: Vec::new(),
        command_line: String::new(),
        memory_mib: 384,
        cpus: 1,
        provider: Provider::Engine,
    }
}

fn in_guests(machine: Machine, copy: Vec<PathBuf>, a: &str, b: &str) -> Work {
    Work::Run(Commands {
        a: a.into(),
        b: Some(b.into()),
        copy,
        timeout: Duration::from_secs(200),
        grace: Duration::from_secs(10),
        machine,
    })
}

fn run(setup: &Setup, work: Work) -> Result<Output> {
    let (words, _job) = inside_command(setup.clone(), work)?;
    Command::new("timeout").arg(TIMEOUT).args(words).output().context("Cannot start timeout")
}

fn commands(stand: &mut Stand<'_>) -> Result<()> {
    let files = ["shared.img", "own.img", "greeting"].map(|name| stand.scratch.join(name));
    let [shared, own, greeting] = &files;
    fs::write(shared, "everybody's disk".repeat(4096))?;
    fs::write(own, [0; 1 << 16])?;
    fs::write(greeting, "hello\n")?;
    let machine = Machine {
        disks: vec![(None, shared.clone()), (Some('a'), own.clone())],
        command_line: "of.the.user".into(),
        cpus: 2,
        ..machine(stand.setup)
    };
    let a = "head -c 16 /dev/vda && echo && echo CPUs $(nproc) && grep -o of.the.user /proc/cmdline && cat greeting && \
             cat /sys/block/vd[ab]/ro && printf written | dd of=/dev/vdb conv=fsync && echo to standard error >&2 && \
             nc -l -p 7000";
    let b = "head -c 16 /dev/vda && echo && ls /sys/block && echo from b | nc ADDR 7000 && exit 7";
    let output = run(stand.setup, in_guests(machine, vec![greeting.clone()], a, b))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(7), "It ended with {}\n{out}{err}", output.status);
    let of_a = ["everybody's disk", "CPUs 2", "of.the.user", "hello", "1", "0", "from b"];
    for (guest, line) in
        of_a.map(|line| ('a', line)).into_iter().chain([('b', "everybody's disk"), ('b', "vda")])
    {
        ensure!(out.lines().any(|seen| seen == format!("[{guest}] {line}")), "No [{guest}] {line} in\n{out}");
    }
    ensure!(!out.contains("[b] vdb"), "Guest b has the disk of guest a:\n{out}");
    ensure!(
        err.lines().any(|seen| seen == "[a] to standard error"),
        "No line of a's standard error in\n{err}"
    );
    ensure!(fs::read(own)?.starts_with(b"written"), "What a wrote is not on its disk");
    Ok(())
}

fn refusals(stand: &mut Stand<'_>) -> Result<()> {
    let file = stand.scratch.join("no-kernel");
    fs::write(&file, "no kernel".repeat(512))?;
    let no_kernel = Machine { kernel: Some(file.clone()), ..machine(stand.setup) };
    let both_write =
        Machine { disks: vec![(Some('a'), file.clone()), (Some('b'), file.clone())], ..machine(stand.setup) };
    for (machine, reason) in
        [(no_kernel, "neither a bzImage nor an ELF file"), (both_write, "in use by another process")]
    {
        let output = run(stand.setup, in_guests(machine, Vec::new(), "true", "true"))?;
        let err = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "It ended with {}\n{err}", output.status);
        ensure!(err.contains(reason), "No word of a file that is {reason}:\n{err}");
        ensure!(err.contains(&file.display().to_string()), "The file is not named:\n{err}");
    }
    Ok(())
}

fn shell(stand: &mut Stand<'_>) -> Result<()> {
    let work = Work::Shell { guest: 'b', machine: machine(stand.setup), copy: Vec::new() };
    let (words, _job) = inside_command(stand.setup.clone(), work)?;
    let (mut terminal, far) = terminal(37, 91)?;
    let mut shell = Command::new("timeout")
        .args(["--foreground", TIMEOUT])
        .args(words)
        .stdin(far.try_clone()?)
        .stdout(far)
        .stderr(Stdio::inherit())
        .spawn()?;
    // What is typed ahead waits in the terminal for the shell, as a user's typing does.
    terminal.write_all(b"stty size; echo on $(hostname) at $(tty)\rexit 5\r")?;
    let reader = thread::spawn(move || read_to_hangup(terminal));
    let status = shell.wait()?;
    let seen = reader.join().map_err(|_| anyhow::anyhow!("The terminal's reader panicked"))??;
    ensure!(status.code() == Some(5), "It ended with {status}\n{seen}");
    ensure!(seen.contains("37 91"), "The shell does not know the terminal's size:\n{seen}");
    ensure!(seen.contains("on b at /dev/pts/"), "The shell is not on a terminal in guest b:\n{seen}");
    Ok(())
}

/// A terminal of the given size: its near and its far end.
fn terminal(rows: u16, columns: u16) -> Result<(File, File)> {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&near)?;
    unlockpt(&near)?;
    tcsetwinsize(&near, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let path = ptsname(&near, Vec::new())?.into_string().context("A terminal's name is no text")?;
    Ok((near.into(), File::options().read(true).write(true).open(path)?))
}

/// Everything that is written to a terminal until the last program has let go of it, which reads as an error.
fn read_to_hangup(mut terminal: File) -> io::Result<String> {
    let mut seen = Vec::new();
    match terminal.read_to_end(&mut seen) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::IO.raw_os_error()) => Err(error),
        _ => Ok(String::from_utf8_lossy(&seen).into_owned()),
    }
}
