//! Moving running machines between processes, with bare guests under KVM.

mod common;

use common::machine::{Machine, counter};
use common::{Guest, code_of, kvm, stderr, until, wait};

/// Moves of one machine, one after the other.
const MOVES: usize = 20;

/// Moves `machine` to a process that waits at `at` for it.
fn migrate(guest: &Guest, mut machine: Machine, name: &str, at: &str, how: &[&str]) -> Machine {
    let mut target = Machine::receive(guest, name, at, &[]);
    let moved = until("the place to move to", || {
        let moved = machine.control(&[&["migrate", "--to", at], how].concat());
        let early = ["No such file", "refused"].iter().any(|text| stderr(&moved).contains(text));
        (!early).then_some(moved)
    });
    assert_eq!(code_of(&moved), 0, "{}", stderr(&moved));
    assert_eq!(wait(&mut machine.child).code(), Some(0), "whoever had the machine ends");
    assert!(target.child.try_wait().unwrap().is_none(), "it runs there");
    target
}

/// Counts on while it moves again and again.
fn move_about(at: &str, how: &[&str]) {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut machine = Machine::start(&guest, "first", &[]);
    machine.expect("ready");
    let at = at.replace("DIR", guest.dir.path().to_str().unwrap());
    for (letter, turn) in (b'a'..=b'z').cycle().zip(0..MOVES) {
        machine.count(std::str::from_utf8(&[letter]).unwrap());
        machine = migrate(&guest, machine, &format!("turn{turn}"), &at, how);
    }
    machine.quit();
}

#[test]
fn machine_is_handed_over_on_one_host() {
    move_about("unix:DIR/move", &[]);
}

#[test]
fn machine_is_copied_to_another_process() {
    move_about("unix:DIR/move", &["--copy", "--connections", "3"]);
}

#[test]
fn machine_moves_over_tcp() {
    move_about("tcp:127.0.0.1:47123", &[]);
}
