//! Pausing, saving and restoring machines from the command line, with bare guests under KVM.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use common::asm::Asm;
use common::{Guest, code_of, finish, kvm, stderr, until, verbena, wait};

/// Counts the bytes it gets on its first serial port in a word of memory, and answers each with the count: only a guest
/// that keeps memory and registers counts on. A `q` ends it.
fn counter() -> Guest {
    let code = Asm::new().print("ready").raw(&[0x30, 0xc9]);
    let top = code.here();
    let mut code = code.in_al(0x3fd).test_al(1);
    let empty = code.jump_if_zero();
    code = code.in_al(0x3f8).compare_al(b'q');
    let quit = code.jump_if_zero();
    // inc cl; inc byte [0x400000]; mov al, [0x400000] + 'a' - 1, if both agree
    code = code.raw(&[0xfe, 0xc1]).raw(&[0x48, 0xbb]).raw(&0x40_0000_u64.to_le_bytes());
    code = code.raw(&[0xfe, 0x03, 0x8a, 0x03, 0x38, 0xc8]);
    let agrees = code.jump_if_zero();
    code = code.exit(3);
    code.land(agrees);
    code = code.raw(&[0x04, b'a' - 1]).out_al(0x3f8).jump(top);
    code.land(empty);
    code = code.out32(0x514, 1000).jump(top);
    code.land(quit);
    Guest::new(&code.exit(0).code())
}

struct Machine {
    child: Child,
    serial: UnixStream,
    api: PathBuf,
}

impl Machine {
    fn start(guest: &Guest, name: &str, arguments: &[&str]) -> Self {
        let (com, api) = (guest.path(&format!("{name}.com")), guest.path(&format!("{name}.api")));
        let serial = format!("num=1,type=socket,path={}", com.display());
        let mut command = guest.command();
        command.args(["--serial", &serial, "--api-socket", api.to_str().unwrap()]).args(arguments);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let serial = until("the socket", || UnixStream::connect(&com).ok());
        serial.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { child, serial, api }
    }

    fn expect(&mut self, text: &str) {
        let mut bytes = vec![0; text.len()];
        self.serial.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }

    fn count(&mut self, answers: &str) {
        self.serial.write_all(&vec![b'.'; answers.len()]).unwrap();
        self.expect(answers);
    }

    fn control(&self, words: &[&str]) -> Output {
        let socket = ["--api-socket", self.api.to_str().unwrap()];
        finish(verbena().args(words).args(socket).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn quit(mut self) {
        self.serial.write_all(b"q").unwrap();
        assert_eq!(wait(&mut self.child).code(), Some(0));
    }
}

#[test]
fn paused_machine_stands_still_and_goes_on() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut machine = Machine::start(&guest, "a", &["--cpus", "1"]);
    machine.expect("ready");
    machine.count("abc");
    for _ in 0..2 {
        assert_eq!(code_of(&machine.control(&["pause"])), 0);
    }
    machine.serial.write_all(b"..").unwrap();
    machine.serial.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(machine.serial.read(&mut [0]).is_err(), "nothing may come of a paused machine");
    machine.serial.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(code_of(&machine.control(&["resume"])), 0);
    machine.expect("de");
    machine.quit();
}

#[test]
fn saved_machine_goes_on_where_it_was_and_so_does_its_copy() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let net = ["--net", "link=loopback,mac=52:54:00:00:00:01"];
    let mut machine = Machine::start(&guest, "a", &net);
    machine.expect("ready");
    machine.count("abc");
    let (first, second) = (guest.path("first"), guest.path("second"));
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
    let saved = machine.control(&["snapshot", "--to", first]);
    assert_eq!(code_of(&saved), 0, "{}", stderr(&saved));
    machine.count("de");
    let again = machine.control(&["snapshot", "--to", first]);
    assert!(stderr(&again).contains("holds a snapshot already"), "{}", stderr(&again));
    let saved = machine.control(&["snapshot", "--to", second, "--stop"]);
    assert_eq!(code_of(&saved), 0, "{}", stderr(&saved));
    assert_eq!(wait(&mut machine.child).code(), Some(0));

    for (name, directory, answers) in [("b", first, "def"), ("c", second, "fgh"), ("d", first, "def")] {
        let mut copy = Machine::start(&guest, name, &[&net[..], &["--restore", directory]].concat());
        copy.count(answers);
        copy.quit();
    }
}

#[test]
fn machine_of_another_shape_is_not_restored() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut machine = Machine::start(&guest, "a", &[]);
    machine.expect("ready");
    let directory = guest.path("saved");
    let directory = directory.to_str().unwrap();
    assert_eq!(code_of(&machine.control(&["snapshot", "--to", directory, "--stop"])), 0);
    wait(&mut machine.child);
    let program = guest.path("guest");
    let restore = |arguments: &[&str]| {
        let mut command = verbena();
        command.args(["run", "--rng", "off", "--restore", directory, "--bare"]).arg(&program).args(arguments);
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    };
    for (wrong, why) in [
        (&["--memory", "16M"][..], "give --memory as it was"),
        (&["--memory", "8M", "--cpus", "2"], "give --cpus and --memory"),
        (&["--memory", "8M", "--net", "link=none"], "same configuration"),
    ] {
        let output = restore(wrong);
        assert_ne!(code_of(&output), 0);
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    let output = guest.run(&["--restore", "/nowhere"]);
    assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
}
