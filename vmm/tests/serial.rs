//! Serial ports, from the host's side.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use common::asm::Asm;
use common::{Guest, kvm, until, wait};
use rustix::termios::{LocalModes, Termios, tcgetattr};

/// Prints `ready`, then echoes its input up to and including a `q`.
fn echo() -> Guest {
    let code = Asm::new().print("ready");
    let top = code.here();
    let mut code = code.in_al(0x3fd).test_al(1);
    let empty = code.jump_if_zero();
    code = code.in_al(0x3f8).out_al(0x3f8).compare_al(b'q');
    let quit = code.jump_if_zero();
    code = code.jump(top);
    code.land(empty);
    code = code.out32(0x514, 1000).jump(top);
    code.land(quit);
    Guest::new(&code.exit(0).code())
}

fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
}

#[test]
fn socket_keeps_output_for_its_client_and_takes_the_next_one() {
    if !kvm() {
        return;
    }
    let guest = echo();
    let path = guest.path("com1");
    let serial = format!("num=1,type=socket,path={}", path.display());
    let mut child = guest.command().args(["--serial", &serial]).stdin(Stdio::null()).spawn().unwrap();
    let connect = || until("the socket", || UnixStream::connect(&path).ok());
    let mut first = connect();
    expect(&mut first, b"ready");
    first.write_all(b"one").unwrap();
    expect(&mut first, b"one");
    drop(first);
    let mut second = connect();
    second.write_all(b"two q").unwrap();
    expect(&mut second, b"two q");
    assert_eq!(wait(&mut child).code(), Some(0));
    assert!(!path.exists(), "the socket goes with its process");
}

#[test]
fn input_longer_than_the_fifo_arrives_whole_and_in_order() {
    if !kvm() {
        return;
    }
    let guest = echo();
    let mut child = guest.command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text: Vec<u8> = (0..2000_u32).map(|i| b'a' + (i % 16) as u8).chain(*b"q").collect();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let mut output = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    assert_eq!(String::from_utf8(output).unwrap(), format!("ready{}", String::from_utf8(text).unwrap()));
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn input_from_a_file_is_read() {
    if !kvm() {
        return;
    }
    let guest = echo();
    let input = guest.path("input");
    std::fs::write(&input, "from a file q").unwrap();
    let output = guest.path("output");
    let status = guest
        .command()
        .stdin(std::fs::File::open(&input).unwrap())
        .stdout(std::fs::File::create(&output).unwrap())
        .status();
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "readyfrom a file q");
}

#[test]
fn file_takes_the_output() {
    if !kvm() {
        return;
    }
    let guest = Guest::new(&Asm::new().print("to a file").exit(0).code());
    let path = guest.path("log");
    guest.run(&["--serial", &format!("type=file,path={}", path.display())]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "to a file");
}

#[test]
fn a_reader_that_stands_still_does_not_keep_the_run_from_ending() {
    if !kvm() {
        return;
    }
    let code = Asm::new();
    let top = code.here();
    // 64 KiB of whatever lies at 2 MiB, again and again: MOV RSI; MOV ECX; MOV DX; REP OUTSB.
    let code =
        code.raw(&[0x48, 0xc7, 0xc6, 0, 0, 0x20, 0, 0xb9, 0, 0, 1, 0, 0x66, 0xba, 0xf8, 0x03, 0xf3, 0x6e]);
    let guest = Guest::new(&code.jump(top).code());
    let mut child = guest.command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    expect(&mut output, &[0x48]);
    common::send_signal(&child, rustix::process::Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(8));
}

/// The echo guest on a terminal of its own, its controlling one.
struct OnTerminal {
    _guest: Guest,
    child: std::process::Child,
    keyboard: std::fs::File,
    slave: std::os::fd::OwnedFd,
    before: Termios,
}

fn on_terminal() -> OnTerminal {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let guest = echo();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let slave = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap();
    let before = tcgetattr(&slave).unwrap();
    let run = guest.command();
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(run.get_program()).args(run.get_args());
    let end = || Stdio::from(slave.try_clone().unwrap());
    let child = command.stdin(end()).stdout(end()).stderr(Stdio::null()).spawn().unwrap();
    let mut keyboard = std::fs::File::from(master);
    expect(&mut keyboard, b"ready");
    OnTerminal { _guest: guest, child, keyboard, slave, before }
}

impl OnTerminal {
    fn wait_until_raw(&self) {
        until("raw mode", || {
            let modes = tcgetattr(&self.slave).unwrap().local_modes;
            (!modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)).then_some(())
        });
    }

    fn ends_with(mut self, expected: impl Fn(i32) -> bool) {
        let status = wait(&mut self.child);
        let status = status.code().or(status.signal()).unwrap();
        assert!(expected(status), "{status}");
        let after = tcgetattr(&self.slave).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
    }
}

#[test]
fn exit_key_ends_the_machine_and_gives_the_terminal_back() {
    if !kvm() {
        return;
    }
    let mut terminal = on_terminal();
    terminal.wait_until_raw();
    terminal.keyboard.write_all(b"\x03k\x01\x01").unwrap();
    expect(&mut terminal.keyboard, b"\x03k\x01");
    terminal.keyboard.write_all(b"\x01x").unwrap();
    terminal.ends_with(|status| status == 0);
}

#[test]
fn terminal_is_given_back_when_the_guest_ends() {
    if !kvm() {
        return;
    }
    let mut terminal = on_terminal();
    terminal.wait_until_raw();
    terminal.keyboard.write_all(b"q").unwrap();
    terminal.ends_with(|status| status == 0);
}

#[test]
fn terminal_is_given_back_after_signals() {
    if !kvm() {
        return;
    }
    // setsid either becomes the program or passes its wait status on, with or without the core dump bit.
    let by_segv = |status: i32| status & 0x7f == 11;
    let by_signal = |status: i32| status == 8;
    for (signal, expected) in
        [("INT", &by_signal as &dyn Fn(i32) -> bool), ("QUIT", &by_signal), ("SEGV", &by_segv)]
    {
        let terminal = on_terminal();
        terminal.wait_until_raw();
        let foreground = rustix::termios::tcgetpgrp(&terminal.keyboard).unwrap();
        let group = format!("-{}", foreground.as_raw_nonzero());
        assert!(Command::new("kill").args(["-s", signal, "--", &group]).status().unwrap().success());
        terminal.ends_with(expected);
    }
}
