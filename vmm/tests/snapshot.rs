//! Pausing, saving and restoring machines from the command line, with bare guests under KVM.

mod common;

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use common::machine::{Machine, counter};
use common::{code_of, finish, kvm, stderr, verbena, wait};

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
